"""The log's side of compaction: what of it may be compacted now, and taking over what a `Cleaning` has written.

All of it belongs to the thread that owns the log. A cleaning that is under way elsewhere is cancelled when the log is
closed, deleted, cut, or no longer compacted; it holds only files.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.segment.segment_files import TRANSACTION_INDEX_KIND
from warmlog_broker.storage.segment.segment_swap import Replacement

if TYPE_CHECKING:
    from warmlog_broker.storage.cleaner.cleaner import CleaningTask, Rewritten
    from warmlog_broker.storage.cleaner.plan import CleanableRange
    from warmlog_broker.storage.cleaner.throttle import CleaningPace


class LogCompaction:
    """What one log offers to the cleaner."""

    def __init__(self, local: LocalLog, first_dirty_offset: int, copied_removed_below: int) -> None:
        self.first_dirty_offset = first_dirty_offset
        """Where the last compaction ended, for the checkpoint; 0 before the first."""
        self.compacted_below = first_dirty_offset
        """There may be gaps between offsets below this."""
        self.copied_removed_below = copied_removed_below
        """As `removed_below`, of the log that this one was filled from; 0 if there was none."""
        self._local = local
        self._bounds = local.bounds
        self._pace: CleaningPace | None = None

    @property
    def removed_below(self) -> int:
        """Keys and markers below this may be gone together with what told of their removal."""
        return max(self.first_dirty_offset, self.copied_removed_below)

    def range(self, now_ms: int) -> "CleanableRange":
        """What may be compacted now. May read a header or two."""
        from warmlog_broker.storage.cleaner.plan import cleanable_range  # only logs that are compacted need it

        found = cleanable_range(
            list(self._local.segments),
            known_dirty_offset=self.first_dirty_offset,
            log_start_offset=self._bounds.log_start_offset,
            stable_offset=min(self._bounds.last_stable_offset, self._bounds.flushed.offset),
            config=self._local.factory.config,
            now_ms=now_ms,
        )
        if found.was_reset:
            self.first_dirty_offset = found.first_dirty_offset
        return found

    def begin(self, found: "CleanableRange", pace: "CleaningPace") -> "CleaningTask":
        """What a `Cleaning` of `found` needs to know. Until `end` the log stops `pace` to cancel it.

        OSError from the disk if a transaction index must be rebuilt.
        """
        from warmlog_broker.storage.cleaner.cleaner import CleaningTask
        from warmlog_broker.storage.cleaner.rules import NO_DATA, UNKNOWN_DATA, LastRecord
        from warmlog_broker.storage.cleaner.sources import SourceSegment

        local = self._local
        local.check_online()
        local.finish_replacement()
        segments = list(local.segments)
        for segment in segments:
            local.load_transaction_index(segment)
        self._pace = pace
        last_records = {}
        for entry in local.producers.entries:
            flushed = [each.last_offset for each in entry.batches if each.last_offset < self._bounds.flushed.offset]
            last_offset = flushed[-1] if flushed else UNKNOWN_DATA if entry.batches else NO_DATA
            last_records[entry.producer_id] = LastRecord(last_offset, entry.epoch)
        return CleaningTask(
            range=found,
            sources=tuple(
                SourceSegment(segment.path, segment.base_offset, following.base_offset, segment.size_bytes)
                for segment, following in pairwise(segments)
                if segment.base_offset < found.first_uncleanable_offset
            ),
            transaction_indexes=tuple(segment.path_of(TRANSACTION_INDEX_KIND) for segment in segments),
            last_records=last_records,
            config=local.factory.config,
            open_files=local.factory.open_files,
        )

    def end(self, cleaned_below: int | None = None) -> None:
        """The cleaning is over; with `cleaned_below` all of its groups were taken over: the log is clean below that.

        A cancelled one does not count: another may have begun, or the log been cut, meanwhile.
        """
        is_valid = self._pace is not None and not self._pace.is_stopped
        self._pace = None
        if cleaned_below is not None and is_valid:
            self.first_dirty_offset = cleaned_below
            self.compacted_below = max(self.compacted_below, cleaned_below)

    @property
    def is_taking_in(self) -> bool:
        """Whether `LocalLog.replacement` is part of a cleaning that is under way, which completes it."""
        return self._pace is not None and self._local.replacement is not None

    def stop(self) -> None:
        """Cancel the cleaning that is under way, if any: it ends at its next batch."""
        if self._pace is not None:
            self._pace.stop()

    def update_config(self, config: LogConfig) -> None:
        """The topic's settings change: cancel the cleaning that is under way if the topic is no longer compacted."""
        self._local.may_have_gaps = self._local.may_have_gaps or config.is_compacted
        if not config.is_compacted:
            self.stop()

    def truncated(self, offset: int) -> None:
        """The log is about to be cut at `offset`: cancel what is under way, or complete it if it is too late."""
        self.stop()
        self._local.finish_replacement()
        self.compacted_below = min(self.compacted_below, offset)
        self.first_dirty_offset = min(self.first_dirty_offset, offset)

    def take(self, rewritten: "Rewritten") -> Replacement:
        """Begin to replace the sources of `rewritten` by its segment.

        `Replacement.sync` in any thread and `LocalLog.advance` complete that, in turn.

        CleaningAborted, and the new segment is deleted, if the log no longer has these sources.
        """
        assert rewritten.segment is not None, "there is nothing to be replaced"
        old = [self._local.segments.get(source.base_offset) for source in rewritten.sources]
        found = [segment for segment in old if segment is not None]
        is_cancelled = self._pace is None or self._pace.is_stopped
        if is_cancelled or [(one.base_offset, one.size_bytes) for one in found] != [
            (source.base_offset, source.size_bytes) for source in rewritten.sources
        ]:
            rewritten.segment.delete()
            from warmlog_broker.storage.cleaner.throttle import CleaningAborted

            raise CleaningAborted(f"{self._local.directory} has changed while it was compacted")
        self.compacted_below = max(self.compacted_below, rewritten.sources[-1].next_base_offset)
        return self._local.begin_replacement([rewritten.segment], found)
