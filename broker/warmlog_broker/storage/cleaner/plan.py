"""What of a log must be compacted, how urgent that is, and which segments become one. Nothing here changes a file.

A log is clean below its *first dirty offset* (where the last compaction ended) and dirty from there up to the *first
uncleanable offset*. The active segment, what is not yet stable or flushed, and what is younger than
`min.compaction.lag.ms` are above that and are not touched::

    log start ... first dirty ... first uncleanable ... active segment ... log end
         clean    |    dirty     |        not yet

If the first dirty offset is not between the log start and the active segment (after a deletion, a truncation, a
restored checkpoint), the whole log is dirty (KAFKA-9826: otherwise the same log is chosen again and again without
effect).
"""

from collections.abc import Sequence
from operator import add, le

from msgspec import Struct

from warmlog_broker.storage.cleaner.sources import SourceSegment
from warmlog_broker.storage.config import MAX_INT64, LogConfig
from warmlog_broker.storage.index.abstract_index import MAX_RELATIVE_OFFSET
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_files import OFFSET_INDEX_KIND, TIME_INDEX_KIND


class CleanableRange(Struct, frozen=True):
    """Which part of one log is clean, and which is dirty."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    """Between the two offsets."""
    is_overdue: bool = False
    """Something dirty is older than max.compaction.lag.ms."""
    was_reset: bool = False
    """The known first dirty offset was no longer in this log."""

    @property
    def dirty_ratio(self) -> float:
        """Dirty bytes divided by all that a compaction would read; 0 if there are none."""
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0

    def is_due(self, min_dirty_ratio: float) -> bool:
        """Whether more than that share is dirty, or something has waited for too long."""
        return self.dirty_bytes > 0 and (self.is_overdue or self.dirty_ratio > min_dirty_ratio)

    @property
    def urgency(self) -> tuple[bool, float]:
        """The greater, the sooner: what is overdue, then the dirtiest."""
        return self.is_overdue, self.dirty_ratio


def cleanable_range(
    segments: Sequence[LogSegment],
    *,
    known_dirty_offset: int,
    log_start_offset: int,
    stable_offset: int,
    config: LogConfig,
    now_ms: int,
) -> CleanableRange:
    """What may be compacted. `segments` are all segments in order; at and above `stable_offset` nothing is touched.

    `known_dirty_offset` is where the last compaction ended, 0 if there was none.
    """
    active_base = segments[-1].base_offset
    was_reset = not log_start_offset <= known_dirty_offset <= max(active_base, log_start_offset)
    first_dirty = log_start_offset if was_reset else known_dirty_offset
    closed = segments[:-1]
    dirty_from = max(sum(segment.base_offset <= first_dirty for segment in segments) - 1, 0)
    first_uncleanable = _first_uncleanable(closed[dirty_from:], active_base, stable_offset, config, now_ms)
    first_uncleanable = max(first_uncleanable, first_dirty)
    dirty = [segment for segment in closed[dirty_from:] if segment.base_offset < first_uncleanable]
    is_overdue = False
    if config.max_compaction_lag_ms != MAX_INT64:
        firsts = [segment.first_batch_timestamp_ms() for segment in dirty]
        oldest_ms = min((first for first in firsts if first is not None and first > 0), default=now_ms)
        is_overdue = oldest_ms < now_ms - config.max_compaction_lag_ms
    return CleanableRange(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=first_uncleanable,
        clean_bytes=sum(segment.size_bytes for segment in closed[:dirty_from]),
        dirty_bytes=sum(segment.size_bytes for segment in dirty),
        is_overdue=is_overdue,
        was_reset=was_reset,
    )


def _first_uncleanable(
    closed: Sequence[LogSegment], active_base: int, stable_offset: int, config: LogConfig, now_ms: int
) -> int:
    """The base offset of the first segment, among these closed ones or the active one, that must not be touched."""
    next_bases = [*(segment.base_offset for segment in closed[1:]), active_base]
    for segment, next_base in zip(closed, next_bases, strict=False):
        if next_base > stable_offset:
            return segment.base_offset
        lag_ms = config.min_compaction_lag_ms
        if lag_ms > 0 and segment.largest_timestamp_ms > now_ms - lag_ms:
            return segment.base_offset
    return active_base


def group_segments(
    sources: Sequence[SourceSegment], *, max_bytes: int, max_index_bytes: int
) -> list[list[SourceSegment]]:
    """Group neighbours that fit into one segment: by size, by the size of each index, and by the span of offsets.

    Each is in exactly one group; one that is too large stays alone. The span counts up to the next segment's base
    offset, as the last offset of a segment that was emptied is not known otherwise (KAFKA-5413).
    """
    limits = max_bytes, max_index_bytes, max_index_bytes
    groups: list[list[SourceSegment]] = []
    sums: tuple[int, ...] = (0, 0, 0)
    for source in sources:
        sizes = source.size_bytes, source.index_bytes(OFFSET_INDEX_KIND), source.index_bytes(TIME_INDEX_KIND)
        sums = tuple(map(add, sums, sizes))
        first_offset = groups[-1][0].base_offset if groups else source.base_offset
        is_near = not source.size_bytes or source.next_base_offset - 1 - first_offset <= MAX_RELATIVE_OFFSET
        if groups and is_near and all(map(le, sums, limits)):
            groups[-1].append(source)
        else:
            groups.append([source])
            sums = sizes
    return groups
