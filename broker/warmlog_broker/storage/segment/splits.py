"""Where a range of one log can be cut between batches, about every so many bytes: for bulk readers that share it out.

A cut costs one search in the offset index, and one header to read: an index entry has the position of a batch and its
last offset, but a cut needs the first. `find_stretches` looks into indexes, so it belongs to the thread that owns the
log; `measure` reads files and may run in any.

Nothing here has to be exact but the offsets of the cuts: a cut whose header cannot be read, or is not the one that the
index promised, is left out, and whoever reads there finds out what is wrong.

**Timestamps.** The largest of a stretch is in its headers. The smallest is too where batches have columns, or the time
of appending; rows do not say theirs, so a stretch with one such batch has no smallest timestamp. Reading all headers
takes long on a cold disk: the caller sets a deadline, and what was found is remembered for stretches of files that did
not change since.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from warmlog_broker.storage.io.open_files import ClosedFile
from warmlog_broker.storage.record.batch_scan import scan_headers
from warmlog_broker.storage.record.file_records import FileSlice
from warmlog_broker.storage.segment.offset_metadata import LogOffsetMetadata
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_indexes import LostIndex
from warmlog_broker.storage.segment.segments import LogSegments
from warmlog_protocol.batch.header import HEADER_BYTES, MAGIC_COLUMNS, read_header
from warmlog_protocol.errors import CorruptBatch

MAX_SPLITS = 65_536
"""Of one range: where more were asked for, they are further apart."""
REMEMBERED_STRETCHES = 65_536


class Stretch(NamedTuple):
    """Bytes of one segment that begin with a batch. `slice` is None where the file is gone meanwhile, or damaged."""

    slice: FileSlice | None
    size_bytes: int
    first_offset: int | None
    """Where the cut before it lies; None while only its index entry is known."""
    last_offset_of_first_batch: int | None = None
    """What the index entry says."""


class Split(NamedTuple):
    """Batches one after another, from the end of the split before up to `end_offset`."""

    end_offset: int
    size_bytes: int
    min_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None


class Times(NamedTuple):
    """The smallest and largest timestamp of a stretch; None where it is not known, or there is no record."""

    smallest_ms: int | None
    largest_ms: int | None


UNKNOWN_TIMES = Times(None, None)


def find_stretches(
    segments: LogSegments, start_offset: int, end: LogOffsetMetadata, target_bytes: int
) -> Iterator[tuple[list[Stretch], int]]:
    """The stretches of `[start_offset, end)`, segment by segment, and where each segment's last one ends.

    Between two segments the caller may let others have the log; of those that are gone by then only sizes are known.
    """
    found = segments.values(start_offset, end.offset)
    target_bytes = max(target_bytes, sum(segment.size_bytes for segment in found) // MAX_SPLITS + 1)
    ends = [segment.base_offset for segment in found[1:]] + [end.offset]
    for segment, end_offset in zip(found, ends, strict=False):
        first_offset = max(start_offset, segment.base_offset)
        try:
            segment.indexes.for_offsets(defers_rebuild=True)
            start = _position(segment, start_offset) if segment.base_offset < start_offset else 0
            is_last = segment.base_offset == end.segment_base_offset
            stop = end.position if is_last else _end_position(segment, end.offset)
            yield _stretches(segment, first_offset, start, stop, target_bytes), end_offset
        except (ClosedFile, CorruptBatch, LostIndex, OSError):
            yield [Stretch(None, segment.size_bytes, first_offset)], end_offset


def _position(segment: LogSegment, offset: int) -> int:
    """Where the batch that holds `offset` begins; the segment's end when all lie before it."""
    following = segment.translate_offset(offset)
    return segment.size_bytes if following is None else following.position


def _end_position(segment: LogSegment, end_offset: int) -> int:
    """Where the batch with the last offset before `end_offset` ends; the segment's end when all batches do."""
    following = segment.translate_offset(end_offset)
    if following is None:
        return segment.size_bytes
    return following.position + (following.size_bytes if following.base_offset < end_offset else 0)


def _stretches(segment: LogSegment, first_offset: int, start: int, end: int, target_bytes: int) -> list[Stretch]:
    cuts: list[tuple[int, int | None, int | None]] = [(start, first_offset, None)]
    index = segment.indexes.for_offsets()
    while index is not None:
        entry = index.fetch_upper_bound(cuts[-1][0], target_bytes)
        if entry is None or entry.position >= end:
            break
        cuts.append((entry.position, None, entry.offset))
    stops = [position for position, _, _ in cuts[1:]] + [end]
    return [
        Stretch(segment.records.slice(position, stop - position), stop - position, offset, last_offset)
        for (position, offset, last_offset), stop in zip(cuts, stops, strict=True)
        if stop > position
    ]


class TimesFound:
    """Timestamps of stretches, by file and place; the oldest are forgotten. Any thread may use it."""

    def __init__(self, limit: int = REMEMBERED_STRETCHES) -> None:
        self._limit = limit
        self._times: OrderedDict[tuple[int, ...], Times] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, piece: FileSlice) -> Times:
        """The times in the headers of `piece`, read unless they are remembered. DamagedLog, OSError."""
        state = os.fstat(piece.file.fd)
        key = (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size, piece.position, piece.size_bytes)
        with self._lock:
            times = self._times.pop(key, None)
        times = times or read_times(piece)
        with self._lock:
            self._times[key] = times
            if len(self._times) > self._limit:
                self._times.popitem(last=False)
        return times


def read_times(piece: FileSlice) -> Times:
    """The smallest and largest timestamp of the records in `piece`, by the headers of its batches."""
    smallest: int | None = None
    largest: int | None = None
    is_smallest_known = True
    end = piece.position + piece.size_bytes
    for header, _ in scan_headers(piece.file, piece.file.path, piece.position, end):
        if header.is_control or header.record_count == 0:
            continue
        last_ms = header.max_timestamp_ms
        first_ms = last_ms if header.is_log_append_time else header.base_timestamp_ms
        is_smallest_known &= header.magic == MAGIC_COLUMNS or header.is_log_append_time
        smallest = first_ms if smallest is None else min(smallest, first_ms)
        largest = last_ms if largest is None else max(largest, last_ms)
    return Times(smallest if is_smallest_known else None, largest)


def measure(stretches: Sequence[Stretch], end_offset: int, times: TimesFound | None, deadline_s: float) -> list[Split]:
    """The splits that `stretches`, all of one segment, make together; the last one ends at `end_offset`.

    With `times` their timestamps too, as far as they can be read before `deadline_s` of the monotonic clock.
    """
    splits: list[Split] = []
    kept: list[Stretch] = []
    for stretch in stretches:
        first_offset = stretch.first_offset if stretch.first_offset is not None else _read_first_offset(stretch)
        if first_offset is None:
            kept[-1] = _joined(kept[-1], stretch)
        else:
            kept.append(stretch._replace(first_offset=first_offset))
    for i, stretch in enumerate(kept):
        following = kept[i + 1].first_offset if i + 1 < len(kept) else end_offset
        assert following is not None
        found = _times_of(stretch, times) if times is not None and time.monotonic() < deadline_s else UNKNOWN_TIMES
        splits.append(Split(following, stretch.size_bytes, *found))
    return splits


def _read_first_offset(stretch: Stretch) -> int | None:
    """The offset at which the stretch begins; None when another batch lies there than its index entry says."""
    assert stretch.slice is not None
    try:
        header = read_header(stretch.slice.slice(0, HEADER_BYTES).pread())
    except (CorruptBatch, OSError):
        return None
    return header.base_offset if header.last_offset == stretch.last_offset_of_first_batch else None


def _joined(before: Stretch, after: Stretch) -> Stretch:
    """Two stretches of one segment as one."""
    size_bytes = before.size_bytes + after.size_bytes
    if before.slice is None or after.slice is None:
        return Stretch(None, size_bytes, before.first_offset)
    return Stretch(FileSlice(before.slice.file, before.slice.position, size_bytes), size_bytes, before.first_offset)


def _times_of(stretch: Stretch, times: TimesFound) -> Times:
    try:
        return UNKNOWN_TIMES if stretch.slice is None else times.of(stretch.slice)
    except (CorruptBatch, OSError):
        return UNKNOWN_TIMES
