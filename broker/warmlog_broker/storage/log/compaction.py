"""The log's side of compaction: what of it may be compacted now, and taking in what a `Cleaning` has made.

All of it belongs to the thread that owns the log. A cleaning that is under way elsewhere is called off when the log is
closed, deleted, cut, or compacted no more: it holds on to nothing but files.
"""

from itertools import pairwise

from warmlog_broker.storage.cleaner.cleaner import CleaningTask
from warmlog_broker.storage.cleaner.plan import CleanableRange, cleanable_range
from warmlog_broker.storage.cleaner.rewriter import Rewritten
from warmlog_broker.storage.cleaner.rules import NO_DATA, UNKNOWN, LastOfProducer
from warmlog_broker.storage.cleaner.sources import CleaningAborted, CleaningPace, SourceSegment
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.log.bounds import Bounds
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.producer.producer_state import ProducerEntry, ProducerStates
from warmlog_broker.storage.segment.segment_files import TRANSACTION_INDEX_KIND
from warmlog_broker.storage.segment.segment_swap import Replacement


class Compaction:
    """What one log offers to whoever compacts it."""

    def __init__(self, local: LocalLog, bounds: Bounds, producers: ProducerStates, first_dirty_offset: int) -> None:
        self.first_dirty_offset = first_dirty_offset
        """Where the last compaction ended, for the checkpoint; 0 before the first."""
        self.compacted_below = first_dirty_offset
        """There may be gaps between offsets below this."""
        self._local = local
        self._bounds = bounds
        self._producers = producers
        self._pace: CleaningPace | None = None

    def take_over(self, original: "Compaction") -> None:
        """Take over where `original`, of whose log this one is a copy, may have left gaps."""
        self.compacted_below = original.compacted_below

    def range(self, now_ms: int) -> CleanableRange:
        """How the log stands. May read a header or two."""
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

    def begin(self, found: CleanableRange, pace: CleaningPace, now_ms: int) -> CleaningTask:
        """What a `Cleaning` of `found` needs to know. Until `end` the log stops `pace` when it must be called off.

        OSError when the disk refuses a transaction index that has to be made anew.
        """
        local = self._local
        local.check_online()
        local.settle()
        segments = list(local.segments)
        for segment in segments:
            local.settle_transactions(segment, now_ms)
        self._pace = pace
        return CleaningTask(
            range=found,
            sources=tuple(
                SourceSegment(segment.path, segment.base_offset, following.base_offset, segment.size_bytes)
                for segment, following in pairwise(segments)
                if segment.base_offset < found.first_uncleanable_offset
            ),
            transaction_indexes=tuple(segment.path_of(TRANSACTION_INDEX_KIND) for segment in segments),
            last_of_producers={
                entry.producer_id: LastOfProducer(_last_flushed(entry, self._bounds.flushed.offset), entry.epoch)
                for entry in self._producers.entries
            },
            config=local.factory.config,
            open_files=local.factory.open_files,
        )

    def end(self, cleaned_below: int | None = None) -> None:
        """The cleaning is over; with `cleaned_below` all of its groups were taken in, and the log is clean below that.

        What was called off is forgotten: another may have begun, or the log been cut, meanwhile.
        """
        is_valid = self._pace is not None and not self._pace.is_stopped
        self._pace = None
        if cleaned_below is not None and is_valid:
            self.first_dirty_offset = cleaned_below
            self.compacted_below = max(self.compacted_below, cleaned_below)

    @property
    def replacement(self) -> Replacement | None:
        """New segments that are on their way in: to be completed by `sync` in any thread and `advance`, in turn."""
        return self._local.replacement

    @property
    def is_taking_in(self) -> bool:
        """Whether `replacement` is part of a cleaning that is under way, which completes it."""
        return self._pace is not None and self.replacement is not None

    def stop(self) -> None:
        """Calls off the cleaning that is under way, if any: it ends at its next batch."""
        if self._pace is not None:
            self._pace.stop()

    def update_config(self, config: LogConfig) -> None:
        """The topic's settings change: a topic that is compacted no more ends the cleaning that is under way."""
        self._local.may_have_gaps = self._local.may_have_gaps or config.is_compacted
        if not config.is_compacted:
            self.stop()

    def truncated(self, offset: int) -> None:
        """The log is about to be cut at `offset`: what is under way is called off, or, if it is too late, completed."""
        self.stop()
        self._local.settle()
        self.compacted_below = min(self.compacted_below, offset)
        self.first_dirty_offset = min(self.first_dirty_offset, offset)

    def take(self, rewritten: Rewritten) -> Replacement:
        """Begins to put the new segment of `rewritten` in its sources' place; `sync` and `advance` it until it is done.

        CleaningAborted, and the new segment is gone, when the sources are not what the log has any more.
        """
        assert rewritten.segment is not None, "there is nothing to be replaced"
        old = [self._local.segments.get(source.base_offset) for source in rewritten.sources]
        found = [segment for segment in old if segment is not None]
        is_called_off = self._pace is None or self._pace.is_stopped
        if is_called_off or [(one.base_offset, one.size_bytes) for one in found] != [
            (source.base_offset, source.size_bytes) for source in rewritten.sources
        ]:
            rewritten.segment.delete()
            raise CleaningAborted(f"{self._local.directory} has changed while it was compacted")
        self.compacted_below = max(self.compacted_below, rewritten.sources[-1].next_base_offset)
        return self._local.begin_replacement([rewritten.segment], found)

    def advance(self, replacement: Replacement) -> bool:
        """Takes the next step; True once all are taken."""
        return self._local.advance(replacement)


def _last_flushed(entry: ProducerEntry, flushed_offset: int) -> int:
    """The last offset of the producer's newest batch below `flushed_offset`; NO_DATA or UNKNOWN where there is none."""
    if not entry.batches:
        return NO_DATA
    return next((batch.last_offset for batch in reversed(entry.batches) if batch.last_offset < flushed_offset), UNKNOWN)
