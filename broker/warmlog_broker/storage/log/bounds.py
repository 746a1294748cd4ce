"""What of a log may be read, and what of it is durable: log start, high watermark, last stable and flushed offset.

All but the first are exclusive ends::

    log start offset <= high watermark <= log end offset
    log start offset <= last stable offset <= high watermark
    log start offset <= recovery point <= log end offset      (with write.caching the log start may be ahead of it)

The high watermark and the flushed offset, which is the recovery point, never go back while nothing is truncated. Both
are kept with their position in the files, which bounds a read without a search.
"""

from collections.abc import Collection
from typing import Literal

from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.segment.segments import LogOffsetMetadata
from warmlog_protocol.errors import OffsetOutOfRange

ReadBound = Literal["log_end", "high_watermark", "committed"]


class LogBounds:
    """The offsets between which one log may be read."""

    __slots__ = ("_local", "flushed", "high_watermark", "log_start_offset")

    def __init__(self, local: LocalLog, log_start_offset: int, high_watermark: int) -> None:
        """All that the log holds is durable. `high_watermark` is as it was stored."""
        self._local = local
        self.log_start_offset = log_start_offset
        """The first offset that may be read."""
        self.flushed = local.end
        """All below it is on disk."""
        self.high_watermark = LogOffsetMetadata(max(log_start_offset, min(high_watermark, local.log_end_offset)))
        """Consumers may read below it. See `located_high_watermark` for its position."""
        local.on_replaced = self._forget_positions
        local.on_rolled = self._rolled

    @property
    def located_high_watermark(self) -> LogOffsetMetadata:
        """The high watermark with its position; message-only if that cannot be found."""
        if self.high_watermark.is_message_only:
            self.high_watermark = self._local.locate(self.high_watermark.offset)
        return self.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The end (exclusive) of what a read_committed reader may read.

        Each transaction that began below it has ended with a marker below the high watermark. Raising the log start
        raises it too.
        """
        unstable = self._local.producers.transactions.first_unstable_offset(self.high_watermark.offset)
        if unstable is None:
            return self.high_watermark.offset
        return min(self.high_watermark.offset, max(unstable, self.log_start_offset))

    @property
    def last_stable(self) -> LogOffsetMetadata:
        """The last stable offset with its position."""
        offset = self.last_stable_offset
        return self.located_high_watermark if offset == self.high_watermark.offset else self._local.locate(offset)

    def end_of(self, bound: ReadBound) -> LogOffsetMetadata:
        """Where reading ends."""
        if bound == "high_watermark":
            return self.located_high_watermark
        return self._local.end if bound == "log_end" else self.last_stable

    def raise_high_watermark(self, offset: int) -> int:
        """Raises the high watermark to `offset`, at most to the log end offset, and returns what it is then.

        It never goes back: a lower offset changes nothing.
        """
        if offset > self.high_watermark.offset:
            if offset == self.flushed.offset:
                self.high_watermark = self.flushed
            elif offset >= self._local.log_end_offset:
                self.high_watermark = self._local.end
            else:
                self.high_watermark = LogOffsetMetadata(offset)
        return self.high_watermark.offset

    def take_over(self, original: "LogBounds") -> None:
        """Take over the bounds of `original`, whose copy is not on disk yet. Positions are looked up again."""
        self.flushed = LogOffsetMetadata(original.flushed.offset)
        self.raise_high_watermark(original.high_watermark.offset)

    def raise_log_start(self, offset: int) -> bool:
        """Remove the records below `offset`; False if they are gone already. Retention removes their files.

        OffsetOutOfRange above the high watermark.
        """
        if offset > self.high_watermark.offset:
            raise OffsetOutOfRange(
                f"{self._local.key.directory_name}: {offset} is above the high watermark {self.high_watermark.offset}"
            )
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self._local.epochs.truncate_from_start(offset)
        return True

    def copied_up_to(self, end_offset: int) -> None:
        """Note that a copy which was taken over is on disk up to `end_offset`."""
        if end_offset > self.flushed.offset:
            self.flushed = LogOffsetMetadata(end_offset)

    def truncated(self) -> None:
        """The log ends earlier than it did: lower what is above its end."""
        end = self._local.end
        if self.high_watermark.offset >= end.offset:
            self.high_watermark = end
        if self.flushed.offset >= end.offset:
            self.flushed = end
        self.log_start_offset = min(self.log_start_offset, end.offset)

    def emptied(self, log_start_offset: int) -> None:
        """The log is empty: everything is at its end, except a log start that batches to come will reach."""
        self.high_watermark = self.flushed = self._local.end
        self.log_start_offset = log_start_offset

    def _rolled(self) -> None:
        """A new segment has begun: a high watermark at the log end offset is in that one."""
        if self.high_watermark.offset >= self._local.log_end_offset:
            self.high_watermark = self._local.end

    def _forget_positions(self, base_offsets: Collection[int]) -> None:
        """Segments were replaced: offsets that were found in one of them must be found again."""
        if self.high_watermark.segment_base_offset in base_offsets:
            self.high_watermark = LogOffsetMetadata(self.high_watermark.offset)
        if self.flushed.segment_base_offset in base_offsets:
            self.flushed = LogOffsetMetadata(self.flushed.offset)
