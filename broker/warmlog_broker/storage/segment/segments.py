"""The segments of one log, ordered by base offset.

A segment holds the offsets from its base offset to the next one's; the last segment is the active one. Lookups are by
bisection over a list of base offsets, which changes only at rolls and deletions.

An offset with its position (`LogOffsetMetadata`) bounds a read, and lets unread bytes be counted, without a lookup.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from warmlog_broker.storage.segment.file_records import DamagedLog
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_protocol.batch.header import NO_OFFSET


class LogOffsetMetadata(NamedTuple):
    """`position` is in the file of the segment with that base offset; both are -1 if unknown."""

    offset: int
    segment_base_offset: int = NO_OFFSET
    position: int = -1

    @property
    def is_message_only(self) -> bool:
        return self.segment_base_offset == NO_OFFSET


class LogSegments:
    """An ordered map from base offset to segment. Not thread-safe; returned lists belong to the caller."""

    def __init__(self, segments: Iterable[LogSegment] = ()) -> None:
        self._by_base_offset = {segment.base_offset: segment for segment in segments}
        self._base_offsets = sorted(self._by_base_offset)

    def add(self, segment: LogSegment) -> None:
        """Add `segment`, in place of one with the same base offset if there is one."""
        if segment.base_offset not in self._by_base_offset:
            insort(self._base_offsets, segment.base_offset)
        self._by_base_offset[segment.base_offset] = segment

    def remove(self, base_offset: int) -> None:
        """Remove the segment with that base offset, if there is one. Its files are not touched."""
        if self._by_base_offset.pop(base_offset, None) is not None:
            del self._base_offsets[bisect_left(self._base_offsets, base_offset)]

    def __len__(self) -> int:
        return len(self._base_offsets)

    def __iter__(self) -> Iterator[LogSegment]:
        """From the oldest to the active one, as a snapshot: the map may change meanwhile."""
        return iter(self._at(0, len(self._base_offsets)))

    def get(self, base_offset: int) -> LogSegment | None:
        return self._by_base_offset.get(base_offset)

    @property
    def base_offsets(self) -> list[int]:
        return self._base_offsets.copy()

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._by_base_offset.values())

    @property
    def first(self) -> LogSegment | None:
        return self._by_base_offset[self._base_offsets[0]] if self._base_offsets else None

    @property
    def active(self) -> LogSegment:
        """The last segment, which is appended to; IndexError if there is none."""
        return self._by_base_offset[self._base_offsets[-1]]

    def floor(self, offset: int) -> LogSegment | None:
        """The segment whose base offset is `offset` or the greatest below it: the one that would hold `offset`."""
        return self._one(bisect_right(self._base_offsets, offset) - 1)

    def lower(self, offset: int) -> LogSegment | None:
        """The segment with the greatest base offset below `offset`."""
        return self._one(bisect_left(self._base_offsets, offset) - 1)

    def higher(self, offset: int) -> LogSegment | None:
        """The segment with the smallest base offset above `offset`."""
        return self._one(bisect_right(self._base_offsets, offset))

    def higher_segments(self, offset: int) -> list[LogSegment]:
        return self._at(bisect_right(self._base_offsets, offset), len(self._base_offsets))

    def values(self, from_offset: int, to_offset: int) -> list[LogSegment]:
        """The segments that may hold offsets in `[from_offset, to_offset)`: from the floor of the first on.

        ValueError if `to_offset` is below `from_offset`; empty for an empty range.
        """
        if to_offset < from_offset:
            raise ValueError(f"invalid range of offsets: from {from_offset} to {to_offset}")
        if to_offset == from_offset:
            return []
        start = bisect_right(self._base_offsets, from_offset) - 1
        return self._at(max(start, 0), bisect_left(self._base_offsets, to_offset))

    def locate(self, offset: int) -> LogOffsetMetadata:
        """`offset` with the position of the batch that holds it, or of the first one after it, or of the log's end.

        If that batch is damaged, it is the position of the damage. Message-only if there is no segment.
        """
        segment = self.floor(offset) or self.first
        while segment is not None:
            try:
                found = segment.lookup.find_batch(offset)
            except DamagedLog as error:
                return LogOffsetMetadata(offset, segment.base_offset, error.position)
            following = self.higher(segment.base_offset)
            if found is not None or following is None:
                position = segment.size_bytes if found is None else found.position
                return LogOffsetMetadata(offset, segment.base_offset, position)
            segment = following
        return LogOffsetMetadata(offset)

    def update_directory(self, directory: Path) -> None:
        for segment in self._by_base_offset.values():
            segment.update_directory(directory)

    def close(self, *, sync: bool = True) -> None:
        for segment in self:
            segment.close(sync=sync)

    def close_handles(self) -> None:
        for segment in self:
            segment.close_handles()

    def _one(self, i: int) -> LogSegment | None:
        return self._by_base_offset[self._base_offsets[i]] if 0 <= i < len(self._base_offsets) else None

    def _at(self, start: int, end: int) -> list[LogSegment]:
        return [self._by_base_offset[base_offset] for base_offset in self._base_offsets[start:end]]
