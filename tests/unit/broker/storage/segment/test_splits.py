"""Splits of a range: they lie between batches, their bytes add up, and their times bound every record."""

import math
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from unit.broker.storage.log_room import QUICK, TINY, LogRoom
from warmlog_broker.storage.segment.splits import Split, TimestampCache, measure
from warmlog_protocol.batch import BatchHeader, encode_batch, read_batch, to_rows

CONFIG = replace(TINY, segment_bytes=3_000, segment_index_bytes=2_400)

batches = st.lists(
    st.tuples(
        st.integers(1, 5), st.integers(0, 200), st.lists(st.integers(0, 10**6), min_size=5, max_size=5), st.booleans()
    ),
    min_size=1,
    max_size=30,
)
"""How many records, how large their values are, their timestamps, and whether the batch has rows."""


def fill(room: LogRoom, wanted: list[tuple[int, int, list[int], bool]]) -> None:
    for count, value_bytes, times, as_rows in wanted:
        batch = encode_batch([b"x" * value_bytes] * count, timestamps_ms=times[:count])
        room.append_bytes(to_rows(read_batch(batch)) if as_rows else batch)
    room.flush()


def splits_of(
    room: LogRoom, start: int, end: int, target_bytes: int, times: TimestampCache | None = None
) -> list[Split]:
    found: list[Split] = []
    for extents, end_offset in room.log.reader.find_extents(start, end, target_bytes):
        found += measure(extents, end_offset, times, math.inf)
    return found


def headers_of(room: LogRoom) -> list[tuple[BatchHeader, list[int]]]:
    """The header of each batch in the log, and the timestamps of its records."""
    return [
        (header, list(read_batch(segment.records.read(position, header.size_bytes)).timestamps_ms()))
        for segment in room.log.local.segments
        for header, position in segment.records.batches()
    ]


@settings(max_examples=30, deadline=None)
@given(batches, st.integers(100, 4_000), st.data())
def test_splits_lie_between_batches_and_their_bytes_add_up(
    wanted: list[tuple[int, int, list[int], bool]], target_bytes: int, data: st.DataObject
) -> None:
    with TemporaryDirectory(prefix="warmlog-", dir=QUICK) as name:
        room = LogRoom(Path(name), CONFIG)
        fill(room, wanted)
        start = data.draw(st.integers(0, room.log.log_end_offset))
        end = data.draw(st.integers(start, room.log.log_end_offset))
        splits = splits_of(room, start, end, target_bytes)
        headers = [header for header, _ in headers_of(room)]
        cuts = [split.end_offset for split in splits]
        assert cuts == sorted(set(cuts))
        assert not splits or cuts[-1] == end
        assert set(cuts[:-1]) <= {header.base_offset for header in headers}
        inside = [h for h in headers if start < h.next_offset and h.base_offset < end] if end > start else []
        assert sum(split.size_bytes for split in splits) == sum(header.size_bytes for header in inside)
        largest_bytes = max(header.size_bytes for header in headers)
        assert all(split.size_bytes < target_bytes + 2 * (100 + largest_bytes) for split in splits)
        room.close()


@settings(max_examples=20, deadline=None)
@given(batches, st.integers(100, 4_000))
def test_the_times_of_a_split_bound_every_record_in_it(
    wanted: list[tuple[int, int, list[int], bool]], target_bytes: int
) -> None:
    with TemporaryDirectory(prefix="warmlog-", dir=QUICK) as name:
        room = LogRoom(Path(name), CONFIG)
        fill(room, wanted)
        found = TimestampCache()
        splits = splits_of(room, 0, room.log.log_end_offset, target_bytes, found)
        start = 0
        for split in splits:
            inside = [(h, times) for h, times in headers_of(room) if start <= h.base_offset < split.end_offset]
            stamps = [time for _, times in inside for time in times]
            assert split.max_timestamp_ms == max(stamps)
            has_rows = any(header.magic == 2 for header, _ in inside)
            assert split.min_timestamp_ms == (None if has_rows else min(stamps))
            start = split.end_offset
        assert splits_of(room, 0, room.log.log_end_offset, target_bytes, found) == splits
        room.close()


def test_a_log_without_records_has_no_splits(quick_path: Path) -> None:
    room = LogRoom(quick_path, CONFIG)
    assert splits_of(room, 0, 10, 100) == []
    room.close()


def test_what_may_not_be_read_yet_is_left_out(quick_path: Path) -> None:
    room = LogRoom(quick_path, CONFIG)
    fill(room, [(5, 100, [1] * 5, False)] * 3)
    room.append(b"not flushed")
    assert splits_of(room, 0, 16, 100_000)[-1].end_offset == 15
    room.close()


def test_a_cut_that_an_index_entry_puts_in_the_wrong_place_is_left_out(quick_path: Path) -> None:
    room = LogRoom(
        quick_path, CONFIG.__class__(segment_bytes=100_000, index_interval_bytes=100, segment_index_bytes=2_400)
    )
    fill(room, [(1, 150, [1] * 5, False)] * 20)
    honest = splits_of(room, 0, 20, 500)
    (segment,) = room.log.local.segments
    index = segment.indexes.offset.get()
    entry = next(each for each in index if each.offset == honest[1].end_offset)
    (slot,) = [i for i, each in enumerate(index) if each == entry]
    os.pwrite(index.open_file().fd, (entry.offset - 1 - index.base_offset).to_bytes(4, "big"), slot * 8)
    spoilt = splits_of(room, 0, 20, 500)
    assert {split.end_offset for split in spoilt} <= {split.end_offset for split in honest}
    assert sum(split.size_bytes for split in spoilt) == sum(split.size_bytes for split in honest)
    room.close()


def test_segments_that_are_gone_meanwhile_have_their_size_and_no_cuts(quick_path: Path) -> None:
    room = LogRoom(quick_path, CONFIG)
    fill(room, [(5, 100, [1] * 5, False)] * 30)
    walk = room.log.reader.find_extents(0, room.log.log_end_offset, 500)
    found = [next(walk)]
    for segment in list(room.log.local.segments)[1:]:
        segment.close_handles()
    found += list(walk)
    splits = [measure(extents, end, TimestampCache(), math.inf) for extents, end in found]
    assert len(splits[0]) > 1
    assert [len(each) for each in splits[1:]] == [1] * (len(splits) - 1)
    assert all(each[0].max_timestamp_ms is None for each in splits[1:])
