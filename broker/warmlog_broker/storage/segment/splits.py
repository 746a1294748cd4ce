"""Find batch-aligned split points in a range of a log, about every N bytes, for parallel bulk readers.

A split point costs one search in the offset index and one header to read: an index entry has a batch's position and
last offset, but a split needs the first. `find_extents` reads indexes, so it belongs to the thread that owns the log;
`measure` reads files and may run in any thread.

Only the offsets of the splits must be exact. A split point whose header cannot be read, or does not match its index
entry, is left out; readers of that range then report the damage.

**Timestamps.** The largest timestamp of an extent is in its headers. The smallest is too for columnar batches and for
append times; row batches do not have it, so an extent with such a batch has no smallest timestamp. Reading all headers
takes long on a cold disk, so the caller sets a deadline, and results are cached while their file does not change.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from warmlog_broker.storage.io.open_files import ClosedFile
from warmlog_broker.storage.segment.file_records import FileSlice, chain
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_indexes import LostIndex
from warmlog_broker.storage.segment.segments import LogOffsetMetadata, LogSegments
from warmlog_protocol.batch.header import HEADER_BYTES, MAGIC_COLUMNS, read_header
from warmlog_protocol.errors import CorruptBatch

MAX_SPLITS = 65_536
"""The limit for one range: if more were requested, they are further apart."""
CACHED_EXTENTS = 65_536


class Extent(NamedTuple):
    """Bytes of one segment that begin with a batch. `slice` is None if the file is gone or damaged."""

    slice: FileSlice | None
    size_bytes: int
    first_offset: int | None
    """The first offset; None while only the index entry is known."""
    last_offset_of_first_batch: int | None = None
    """By the index entry."""


class Split(NamedTuple):
    """Consecutive batches, from the end of the previous split to `end_offset`."""

    end_offset: int
    size_bytes: int
    min_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None


class TimestampRange(NamedTuple):
    """The smallest and largest timestamp of an extent; None if it is not known, or there is no record."""

    smallest_ms: int | None
    largest_ms: int | None


def find_extents(
    segments: LogSegments, start_offset: int, end: LogOffsetMetadata, target_bytes: int
) -> Iterator[tuple[list[Extent], int]]:
    """Yield the extents of `[start_offset, end)`, segment by segment, and where each segment's last one ends.

    Between two segments the caller may let others use the log; of segments removed meanwhile only the size is known.
    """
    found = segments.values(start_offset, end.offset)
    target_bytes = max(target_bytes, sum(segment.size_bytes for segment in found) // MAX_SPLITS + 1)
    ends = [segment.base_offset for segment in found[1:]] + [end.offset]
    for segment, end_offset in zip(found, ends, strict=False):
        first_offset = max(start_offset, segment.base_offset)
        try:
            segment.indexes.for_offsets(defers_rebuild=True)
            start, stop = 0, end.position
            if segment.base_offset < start_offset:  # where the batch begins that holds it
                following = segment.lookup.find_batch(start_offset)
                start = segment.size_bytes if following is None else following.position
            if segment.base_offset != end.segment_base_offset:  # where the batch with the last offset before it ends
                following = segment.lookup.find_batch(end.offset)
                stop = segment.size_bytes
                if following is not None:
                    stop = following.position + (following.size_bytes if following.base_offset < end.offset else 0)
            yield _extents(segment, first_offset, start, stop, target_bytes), end_offset
        except (ClosedFile, CorruptBatch, LostIndex, OSError):
            yield [Extent(None, segment.size_bytes, first_offset)], end_offset


def _extents(segment: LogSegment, first_offset: int, start: int, end: int, target_bytes: int) -> list[Extent]:
    cuts: list[tuple[int, int | None, int | None]] = [(start, first_offset, None)]
    index = segment.indexes.for_offsets()
    while index is not None:
        entry = index.fetch_upper_bound(cuts[-1][0], target_bytes)
        if entry is None or entry.position >= end:
            break
        cuts.append((entry.position, None, entry.offset))
    stops = [position for position, _, _ in cuts[1:]] + [end]
    return [
        Extent(segment.records.slice(position, stop - position), stop - position, offset, last_offset)
        for (position, offset, last_offset), stop in zip(cuts, stops, strict=True)
        if stop > position
    ]


class TimestampCache:
    """Timestamps of extents by file and position; the oldest are evicted. For any thread."""

    def __init__(self, limit: int = CACHED_EXTENTS) -> None:
        self._limit = limit
        self._ranges: OrderedDict[tuple[int, ...], TimestampRange] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, piece: FileSlice) -> TimestampRange:
        """The timestamps in the headers of `piece`, read unless they are cached. DamagedLog, OSError."""
        state = os.fstat(piece.file.fd)
        key = (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size, piece.position, piece.size_bytes)
        with self._lock:
            found = self._ranges.pop(key, None)
        found = found or read_timestamps(piece)
        with self._lock:
            self._ranges[key] = found
            if len(self._ranges) > self._limit:
                self._ranges.popitem(last=False)
        return found


def read_timestamps(piece: FileSlice) -> TimestampRange:
    smallest: int | None = None
    largest: int | None = None
    is_smallest_known = True
    end = piece.position + piece.size_bytes
    for header, _ in chain(piece.file, piece.file.path, piece.position, end):
        if header.is_control or header.record_count == 0:
            continue
        last_ms = header.max_timestamp_ms
        first_ms = last_ms if header.is_log_append_time else header.base_timestamp_ms
        is_smallest_known &= header.magic == MAGIC_COLUMNS or header.is_log_append_time
        smallest = first_ms if smallest is None else min(smallest, first_ms)
        largest = last_ms if largest is None else max(largest, last_ms)
    return TimestampRange(smallest if is_smallest_known else None, largest)


def measure(extents: Sequence[Extent], end_offset: int, cache: TimestampCache | None, deadline_s: float) -> list[Split]:
    """The splits of `extents`, all of one segment; the last one ends at `end_offset`.

    With `cache` they have timestamps, as far as those can be read before `deadline_s` of the monotonic clock.
    """
    splits: list[Split] = []
    kept: list[Extent] = []
    for extent in extents:
        first_offset = extent.first_offset if extent.first_offset is not None else _read_first_offset(extent)
        if first_offset is None:
            kept[-1] = _joined(kept[-1], extent)
        else:
            kept.append(extent._replace(first_offset=first_offset))
    for i, extent in enumerate(kept):
        following = kept[i + 1].first_offset if i + 1 < len(kept) else end_offset
        assert following is not None
        timestamps = TimestampRange(None, None)
        if cache is not None and extent.slice is not None and time.monotonic() < deadline_s:
            with suppress(CorruptBatch, OSError):
                timestamps = cache.of(extent.slice)
        splits.append(Split(following, extent.size_bytes, *timestamps))
    return splits


def _read_first_offset(extent: Extent) -> int | None:
    """The offset at which the extent begins; None if the batch there does not match the index entry."""
    assert extent.slice is not None
    try:
        header = read_header(extent.slice.slice(0, HEADER_BYTES).pread())
    except (CorruptBatch, OSError):
        return None
    return header.base_offset if header.last_offset == extent.last_offset_of_first_batch else None


def _joined(before: Extent, after: Extent) -> Extent:
    """Two adjacent extents of one segment as one."""
    size_bytes = before.size_bytes + after.size_bytes
    if before.slice is None or after.slice is None:
        return Extent(None, size_bytes, before.first_offset)
    return Extent(FileSlice(before.slice.file, before.slice.position, size_bytes), size_bytes, before.first_offset)
