"""Which records are within a time range; whole batches are left out or taken by their header if that is enough.

The largest timestamp of a batch is in its header. The smallest is the base timestamp of a batch in columns; with
LogAppendTime all records have the largest. The header of a batch in rows, which Kafka wrote, does not have the
smallest: it can be left out only for being too old.
"""

from typing import Any, NamedTuple

from warmlog_protocol.batch import MAGIC_COLUMNS, BatchHeader


class TimeBounds(NamedTuple):
    """Milliseconds since 1970 in `[from_ms, until_ms)`; None leaves a side open."""

    from_ms: int | None = None
    until_ms: int | None = None

    def exclude(self, header: BatchHeader) -> bool:
        """Whether no record of the batch can be within the bounds."""
        if self.from_ms is not None and header.max_timestamp_ms < self.from_ms:
            return True
        smallest_ms = _smallest_ms(header)
        return self.until_ms is not None and smallest_ms is not None and smallest_ms >= self.until_ms

    def include(self, header: BatchHeader) -> bool:
        """Whether every record of the batch is within the bounds."""
        if self.until_ms is not None and header.max_timestamp_ms >= self.until_ms:
            return False
        smallest_ms = _smallest_ms(header)
        return self.from_ms is None or (smallest_ms is not None and smallest_ms >= self.from_ms)

    def mask(self, times_ms: Any) -> Any:
        """Which of these times, a numpy array, are within."""
        is_within = times_ms == times_ms
        if self.from_ms is not None:
            is_within &= times_ms >= self.from_ms
        if self.until_ms is not None:
            is_within &= times_ms < self.until_ms
        return is_within


ALL_TIMES = TimeBounds()


def _smallest_ms(header: BatchHeader) -> int | None:
    if header.is_log_append_time:
        return header.max_timestamp_ms
    return header.base_timestamp_ms if header.magic == MAGIC_COLUMNS else None
