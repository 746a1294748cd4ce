"""Compaction of one log: it keeps the last value of each key, at its original offset.

`log.compaction` (`LogCompaction`) says what may be compacted and takes over new segments; a `Cleaning` does the
expensive part, on closed segments that are not written to. A pass, with the thread of each step::

    found = log.compaction.range(now_ms)                    owner       what is dirty (`plan`)
    task = log.compaction.begin(found, pace)                owner
    cleaning = Cleaning(task, pace, …)                      owner
    cleaning.build_map()                                    any         the dirty part: each key's last offset
    for group in cleaning.groups():                         any
        rewritten = cleaning.rewrite(group)                 any         what stays: `rules`, in files ending in .cleaned
        replacement = log.compaction.take(rewritten)        owner       replaces the old segments: `segment_swap`
        replacement.sync()                                  any         before each of the steps that `advance` takes
        log.local.advance(replacement)                      owner       until it returns True
    log.compaction.end(cleaning.end_offset)                 owner

If the map is full before the dirty part ends, the pass ends there too and the next one continues. Compacted data keeps
offsets, order, timestamps, leader epochs and producer fields; readers skip the gaps.

Compared with Kafka: nothing above the flushed offset is touched; a segment that would not change is left as it is;
transactions that were aborted beyond the cleanable part are known too (Kafka asks the indexes of the dirty part only).
"""

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from warmlog_broker.storage.cleaner.offset_map import OffsetMap, fill_map
from warmlog_broker.storage.cleaner.plan import CleanableRange, group_segments
from warmlog_broker.storage.cleaner.rules import CompactionRules, LastRecord
from warmlog_broker.storage.cleaner.sources import SourceSegment, read_aborted
from warmlog_broker.storage.cleaner.throttle import CleaningPace
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.partition_files import note_gaps, read_gaps
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.segment.file_records import MAX_LOG_BYTES
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_files import KINDS
from warmlog_broker.storage.segment.segment_swap import CLEANED_SUFFIX
from warmlog_protocol.batch import CRC_START, RecordBatch, read_header
from warmlog_protocol.codec.compression import DEFAULT_MAX_DECOMPRESSED_BYTES

logger = logging.getLogger(__name__)


class CleaningStats(Struct):
    """What a pass, or the rewriting of one group, has done so far."""

    read_bytes: int = 0
    written_bytes: int = 0
    read_records: int = 0
    kept_records: int = 0
    dropped_without_key: int = 0
    """Records that were removed because they have no key: they are from before the topic was compacted."""
    replaced_segments: int = 0

    def __iadd__(self, other: "CleaningStats") -> "CleaningStats":
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


class Rewritten(Struct):
    """The result of rewriting a group."""

    sources: Sequence[SourceSegment]
    segment: LogSegment | None
    """The new segment; None if it would be the same as the old one."""
    stats: CleaningStats
    has_changed: bool = False


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
        """Apply the rules to the batches of one group; groups come in order. No file is left over if it raises.

        Raises as `build_map` does, or OSError from the disk. On return the new segment is on disk, indexes included.
        Its transaction index has the aborted transactions of which data was still there, its files the time at which
        the last source was written: retention uses it if records have no timestamps.
        """
        assert self._rules is not None, "build_map comes first"
        directory = group[0].path.parent
        for path in directory.glob(f"*{CLEANED_SUFFIX}"):  # they would make the next swap look unfinished
            logger.warning("%s is left over and removed", path)
            path.unlink(missing_ok=True)
        segment = LogSegment(
            directory,
            group[0].base_offset,
            config=self.task.config,
            open_files=self.task.open_files,
            now_ms=self._now_ms,
            suffix=CLEANED_SUFFIX,
        )
        result = Rewritten(group, segment, CleaningStats(), has_changed=len(group) > 1)
        try:
            total_bytes = sum(source.size_bytes for source in group)
            for source in group:
                for batch in source.batches(self.pace, self._max_decompressed_bytes):
                    written_bytes = _rewrite(batch, segment, self._rules, result, total_bytes)
                    self.pace.after(batch.size_bytes + written_bytes)
            if result.has_changed:
                result.stats.replaced_segments = len(group)
                modified_ns = group[-1].path.stat().st_mtime_ns
                segment.on_become_inactive()
                segment.flush()
                for kind in KINDS:
                    with suppress(FileNotFoundError):
                        os.utime(segment.path_of(kind), ns=(modified_ns, modified_ns))
                if not read_gaps(directory).everywhere:
                    note_gaps(directory)  # the checkpoint, which says so too, is not written before the last group
            else:
                segment.delete()
                result.segment = None
        except BaseException:
            segment.delete()
            raise
        self.stats += result.stats
        return result


def _rewrite(
    batch: RecordBatch, target: LogSegment, rules: CompactionRules, result: Rewritten, total_bytes: int
) -> int:
    """Append what stays of `batch`; return how many bytes that is."""
    stats = result.stats
    stats.read_bytes += batch.size_bytes
    stats.read_records += batch.record_count
    retained = rules.apply(batch)
    data, kept_records, dropped_without_key = retained.batch, retained.kept_records, retained.dropped_without_key
    if data is not batch.buffer:
        to_come_bytes = total_bytes - stats.read_bytes
        if data is not None and target.size_bytes + len(data) + to_come_bytes > MAX_LOG_BYTES:
            # The batch has grown and does not fit into the file.
            data, kept_records, dropped_without_key = batch.buffer, batch.record_count, 0
        else:
            result.has_changed = True
    stats.kept_records += kept_records
    stats.dropped_without_key += dropped_without_key
    if retained.aborted is not None:
        target.add_aborted(retained.aborted)
    if data is None:
        return 0
    header = read_header(data)
    target.append(header.last_offset, header.max_timestamp_ms, bytes(data[:CRC_START]), memoryview(data)[CRC_START:])
    stats.written_bytes += len(data)
    return len(data)
