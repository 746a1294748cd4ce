"""Writing a group of closed segments to a new one, without what compaction removes: the second half of a compaction.

The new segment's files end in `.cleaned` until they replace the old ones (`segment_swap`). They are on disk, indexes
included, when this returns. The transaction index is a new one: it has the aborted transactions of which data was still
there. The files' time of modification is the last source's, as retention uses it if records have no timestamps.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from warmlog_broker.storage.cleaner.rules import CompactionRules
from warmlog_broker.storage.cleaner.sources import SourceSegment
from warmlog_broker.storage.cleaner.throttle import CleaningPace
from warmlog_broker.storage.directory.partition_files import has_gaps, note_gaps
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.record.file_records import MAX_LOG_BYTES
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_files import KINDS
from warmlog_broker.storage.segment.segment_indexes import SegmentConfig
from warmlog_broker.storage.segment.segment_swap import CLEANED_SUFFIX
from warmlog_protocol.batch import CRC_START, RecordBatch, read_header

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


def rewrite_group(
    sources: Sequence[SourceSegment],
    rules: CompactionRules,
    *,
    config: SegmentConfig,
    open_files: OpenFiles,
    now_ms: int,
    pace: CleaningPace,
    max_decompressed_bytes: int,
) -> Rewritten:
    """Apply `rules` to the batches of `sources`, in order. No file is left over if it raises.

    CorruptBatch if a batch is damaged, CleaningAborted if it is cancelled, OSError from the disk.
    """
    directory = sources[0].path.parent
    remove_cleaned_files(directory)
    segment = LogSegment(
        directory,
        sources[0].base_offset,
        config=config,
        open_files=open_files,
        now_ms=now_ms,
        suffix=CLEANED_SUFFIX,
    )
    result = Rewritten(sources, segment, CleaningStats(), has_changed=len(sources) > 1)
    try:
        total_bytes = sum(source.size_bytes for source in sources)
        for source in sources:
            for batch in source.batches(pace, max_decompressed_bytes):
                written_bytes = _rewrite(batch, segment, rules, result, total_bytes)
                pace.after(batch.size_bytes + written_bytes)
        if not result.has_changed:
            segment.delete()
            result.segment = None
            return result
        result.stats.replaced_segments = len(sources)
        modified_ns = sources[-1].modified_ns
        segment.on_become_inactive()
        segment.flush()
        for kind in KINDS:
            with suppress(FileNotFoundError):
                os.utime(segment.path_of(kind), ns=(modified_ns, modified_ns))
        if not has_gaps(directory):
            note_gaps(directory)  # the checkpoint, which says so too, is not written before the last group
    except BaseException:
        segment.delete()
        raise
    return result


def remove_cleaned_files(directory: Path) -> None:
    """Unlink what an earlier attempt has left: a stray `.cleaned` file would make the next swap look unfinished."""
    for path in directory.glob(f"*{CLEANED_SUFFIX}"):
        logger.warning("%s is left over and removed", path)
        path.unlink(missing_ok=True)


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
    target.append(
        header.last_offset,
        header.max_timestamp_ms,
        header.last_offset,
        bytes(data[:CRC_START]),
        memoryview(data)[CRC_START:],
    )
    stats.written_bytes += len(data)
    return len(data)
