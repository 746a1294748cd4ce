"""Distributes rows of Arrow columns over partitions and cuts them into batches, without I/O.

A row goes to the partition that it names, or else to that of its key (see `partitioner`). Rows without a key, or with
an empty one, are sticky: they go to one partition until its batch is full, and then to the next. The rows of a
partition keep their order. If only some rows are sticky, those get their partitions first, by the space in the batches,
and then all rows are sorted by partition.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from warmlog.arrow_write.key_hash import Array, crc32_of_keys
from warmlog.arrow_write.rows import ArrowRows, BytesColumn, PreparedRows, RowSpan
from warmlog.errors import MessageTooLarge, UnknownTopicOrPartition
from warmlog.producer.record_input import BATCH_OVERHEAD_BYTES
from warmlog_transport.responses import partition_range

HOLD_BYTES = 64 * 1024 * 1024
"""A row keeps the whole Arrow batch that it belongs to in memory; beyond this size, batches are ended early."""


class BatchOfRows(NamedTuple):
    """The rows of one batch, and an upper bound of its size."""

    partition: int
    spans: Sequence[RowSpan]
    size_bytes: int


class _Filling:
    """A batch that is being filled."""

    __slots__ = ("size_bytes", "spans")

    def __init__(self) -> None:
        self.spans: list[RowSpan] = []
        self.size_bytes = BATCH_OVERHEAD_BYTES


class TopicBatches:
    """Cuts the rows of one topic into batches of at most `limit_bytes`; a larger record gets a batch of its own."""

    def __init__(
        self, topic: str, partitions: int, *, limit_bytes: int, max_message_bytes: int, first_sticky: int
    ) -> None:
        """`first_sticky` should be random, so that writers start at different partitions."""
        self._topic = topic
        self._partitions = partitions
        self._limit_bytes = min(limit_bytes, max_message_bytes)
        self._max_message_bytes = max_message_bytes
        self._sticky = first_sticky % partitions
        self._filling: dict[int, _Filling] = {}
        self._held_bytes = 0

    def add(self, rows: ArrowRows, chosen: pa.Array | None = None) -> Iterator[BatchOfRows]:
        """Add `rows` and yield full batches. `chosen` has the partition of each row, null if its key decides.

        Raises MessageTooLarge for a record beyond `max_message_bytes` and UnknownTopicOrPartition for a partition that
        does not exist, before any of `rows` is added.
        """
        numbers = self._partition_of_each(rows, chosen)
        counts = None
        if numbers is not None:
            self._assign_sticky(rows, numbers)
            counts = np.bincount(numbers)
            if np.count_nonzero(counts) > 1:  # numpy sorts 16-bit numbers by radix, in a tenth of the time
                narrow = numbers.astype(np.uint16) if self._partitions < 1 << 16 else numbers
                rows = rows.take(np.argsort(narrow, kind="stable"))
        prepared = PreparedRows(rows)
        largest = prepared.largest_bytes + BATCH_OVERHEAD_BYTES
        if largest > self._max_message_bytes:
            raise MessageTooLarge(
                f"a record for topic {self._topic}: {largest} bytes with its batch, larger than "
                f"max.message.bytes={self._max_message_bytes}"
            )
        self._held_bytes += int(prepared.ends_bytes[-1])
        if counts is None:
            span = prepared.span()
            while (span := self._fill(self._sticky, span)).count:
                yield self._seal(self._sticky)
                self._sticky = (self._sticky + 1) % self._partitions
        else:
            yield from self._distribute(prepared, counts)
        if self._held_bytes >= HOLD_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[BatchOfRows]:
        self._held_bytes = 0
        for partition in sorted(self._filling):
            yield self._seal(partition)

    def _partition_of_each(self, rows: ArrowRows, chosen: pa.Array | None) -> Array | None:
        """The partition of each row, `partitions` for sticky ones; None if all are sticky or there is one partition."""
        numbers = None
        if self._partitions > 1 and rows.keys is not None and rows.keys.null_count < len(rows):
            keys = BytesColumn.of(rows.keys)
            numbers = (crc32_of_keys(keys.offsets, keys.content) % np.uint32(self._partitions)).astype(np.int64)
            numbers[keys.lengths <= 1] = self._partitions  # empty or null
        if chosen is not None and chosen.null_count < len(chosen):
            wanted = chosen.cast(pa.int64()).fill_null(-1).to_numpy()
            is_chosen = chosen.is_valid().to_numpy(zero_copy_only=False)
            beyond = wanted[is_chosen & ((wanted < 0) | (wanted >= self._partitions))]
            if len(beyond):
                raise UnknownTopicOrPartition(
                    f"topic {self._topic} has {partition_range(self._partitions)}, not {beyond[0]}"
                )
            stuck = np.full(len(rows), self._partitions, np.int64) if numbers is None else numbers
            numbers = np.where(is_chosen, wanted, stuck)
        return None if self._partitions == 1 or numbers is None or numbers.min() == self._partitions else numbers

    def _assign_sticky(self, rows: ArrowRows, numbers: Array) -> None:
        """Give the sticky rows a partition in `numbers`: the next one after each full batch."""
        stuck = np.flatnonzero(numbers == self._partitions)
        if not len(stuck):
            return
        sizes = np.diff(PreparedRows(ArrowRows(rows.values, headers=rows.headers)).ends_bytes)[stuck]
        filling = self._filling.get(self._sticky) or _Filling()
        full_bytes = max(1, self._limit_bytes - BATCH_OVERHEAD_BYTES)
        beyond = np.maximum(np.cumsum(sizes) - (self._limit_bytes - filling.size_bytes), 0)
        numbers[stuck] = (self._sticky + (beyond + full_bytes - 1) // full_bytes) % self._partitions
        self._sticky = int(numbers[stuck[-1]])

    def _distribute(self, rows: PreparedRows, counts: Array) -> Iterator[BatchOfRows]:
        """Fill batches from `rows`, which are sorted by partition; `counts` has the number of rows of each."""
        start = 0
        for partition in np.flatnonzero(counts).tolist():
            span = rows.span(start, start + int(counts[partition]))
            start = span.stop
            while (span := self._fill(partition, span)).count:
                yield self._seal(partition)

    def _fill(self, partition: int, span: RowSpan) -> RowSpan:
        """Add the first rows of `span` to the partition's batch, at least one if it is empty. Return the rest."""
        if not span.count:
            return span
        rows, start, stop = span.rows, span.start, span.stop
        filling = self._filling.get(partition)
        if filling is None:
            filling = self._filling[partition] = _Filling()
        ends = rows.ends_bytes
        before_bytes = ends.item(start)
        room_end = before_bytes + self._limit_bytes - filling.size_bytes
        if ends.item(stop) > room_end:
            stop = int(np.searchsorted(ends[: stop + 1], room_end, side="right")) - 1
            if stop <= start:
                if filling.spans:
                    return span
                stop = start + 1
        filling.spans.append(RowSpan(rows, start, stop))
        filling.size_bytes += ends.item(stop) - before_bytes
        return RowSpan(rows, stop, span.stop)

    def _seal(self, partition: int) -> BatchOfRows:
        filling = self._filling.pop(partition)
        return BatchOfRows(partition, filling.spans, filling.size_bytes)
