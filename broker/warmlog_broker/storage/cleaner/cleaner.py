"""Compaction of one log: it keeps the last value of each key, at its original offset.

`log.compaction` (`LogCompaction`) says what may be compacted and takes over new segments; a `Cleaning` does the
expensive part, on closed segments that are not written to. A pass, with the thread of each step::

    found = log.compaction.range(now_ms)                    owner       what is dirty (`plan`)
    task = log.compaction.begin(found, pace, now_ms)        owner
    cleaning = Cleaning(task, pace, …)                      owner
    cleaning.build_map()                                    any         the dirty part: each key's last offset
    for group in cleaning.groups():                         any
        rewritten = cleaning.rewrite(group)                 any         what stays: `rules`
        replacement = log.compaction.take(rewritten)        owner       replaces the old segments: `segment_swap`
        replacement.sync()                                  any         before each of the steps that `advance` takes
        log.local.advance(replacement)                      owner       until it returns True
    log.compaction.end(cleaning.end_offset)                 owner

If the map is full before the dirty part ends, the pass ends there too and the next one continues. Compacted data keeps
offsets, order, timestamps, leader epochs and producer fields; readers skip the gaps.

Compared with Kafka: nothing above the flushed offset is touched; a segment that would not change is left as it is;
transactions that were aborted beyond the cleanable part are known too (Kafka asks the indexes of the dirty part only).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from warmlog_broker.storage.cleaner.offset_map import OffsetMap, fill_map
from warmlog_broker.storage.cleaner.plan import CleanableRange, group_segments
from warmlog_broker.storage.cleaner.rewriter import CleaningStats, Rewritten, rewrite_group
from warmlog_broker.storage.cleaner.rules import CompactionRules, LastRecord
from warmlog_broker.storage.cleaner.sources import SourceSegment, read_aborted
from warmlog_broker.storage.cleaner.throttle import CleaningPace
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.segment.segment_indexes import SegmentConfig
from warmlog_protocol.codec.compression import DEFAULT_MAX_DECOMPRESSED_BYTES


class CleaningTask(Struct, frozen=True):
    """What to compact of one log, as it was when the task was made."""

    range: CleanableRange
    sources: tuple[SourceSegment, ...]
    """The closed segments below the first uncleanable offset."""
    transaction_indexes: tuple[Path, ...]
    """Of all segments of the log."""
    last_records: Mapping[int, LastRecord]
    config: LogConfig
    open_files: OpenFiles


class Cleaning:
    """One pass over one log. Used by one thread at a time; `pace.stop` may be called by any."""

    def __init__(
        self,
        task: CleaningTask,
        pace: CleaningPace,
        *,
        memory_bytes: int,
        now_ms: int,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    ) -> None:
        """`memory_bytes` bounds the map of offsets, `max_decompressed_bytes` what one batch may grow to."""
        self.task = task
        self.pace = pace
        self.stats = CleaningStats()
        self.end_offset = task.range.first_dirty_offset
        """The log is clean up to here once all groups are rewritten."""
        self._now_ms = now_ms
        self._max_decompressed_bytes = max_decompressed_bytes
        self._offsets = OffsetMap(memory_bytes)
        self._rules: CompactionRules | None = None

    def build_map(self) -> None:
        """Read the dirty part. CorruptBatch if it is damaged, CleaningAborted if the compaction is cancelled."""
        task = self.task
        aborted = read_aborted(task.transaction_indexes, task.open_files)
        first_dirty_offset = task.range.first_dirty_offset
        dirty = [source for source in task.sources if source.next_base_offset > first_dirty_offset]
        self.end_offset = fill_map(
            dirty, first_dirty_offset, self._offsets, aborted, self.pace, self._max_decompressed_bytes
        )
        self._rules = CompactionRules(
            self._offsets,
            aborted=aborted,
            last_records=task.last_records,
            end_offset=task.range.first_uncleanable_offset,
            now_ms=self._now_ms,
            delete_retention_ms=task.config.delete_retention_ms,
        )

    def groups(self) -> list[list[SourceSegment]]:
        """The segments up to the end offset, in groups, each of which becomes one segment. After `build_map`."""
        config = self.task.config
        sources = [source for source in self.task.sources if source.base_offset < self.end_offset]
        return group_segments(sources, max_bytes=config.segment_bytes, max_index_bytes=config.segment_index_bytes)

    def rewrite(self, group: Sequence[SourceSegment]) -> Rewritten:
        """Rewrite one group; groups come in order. Raises as `build_map` does, or OSError from the disk."""
        assert self._rules is not None, "build_map comes first"
        config = self.task.config
        rewritten = rewrite_group(
            group,
            self._rules,
            config=SegmentConfig(config.index_interval_bytes, config.segment_index_bytes),
            open_files=self.task.open_files,
            now_ms=self._now_ms,
            pace=self.pace,
            max_decompressed_bytes=self._max_decompressed_bytes,
        )
        self.stats += rewritten.stats
        return rewritten
