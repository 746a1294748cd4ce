"""One segment: append, roll, read, find by time, truncate, rename, delete, close (Kafka's LogSegmentTest)."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.broker.log.log_files import (
    append,
    append_batch,
    batch_of,
    full_disk_for_indexes,
    no_file_grows_beyond,
    open_segment,
    overwrite,
    read_offsets,
    reopened,
)
from warmlog_broker.log.abstract_index import MAX_UNWRITTEN
from warmlog_broker.log.open_files import ClosedFile, OpenFiles
from warmlog_broker.log.rolling import should_roll, time_waited_for_roll_ms
from warmlog_broker.log.segment import LogSegment, SegmentOffsetOverflow
from warmlog_broker.log.transaction_index import AbortedTxn
from warmlog_protocol.batch import encode_batch, read_header, stamp_append_time

HOUR_MS = 3_600_000


def file_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def rolls(segment: LogSegment, **changes: int) -> bool:
    """should_roll for a harmless batch, except for `changes`."""
    arguments = {
        "incoming_bytes": 100,
        "incoming_last_offset": segment.base_offset + 1000,
        "incoming_max_timestamp_ms": -1,
        "segment_bytes": 10_000,
        "segment_ms": HOUR_MS,
        "now_ms": segment.created_ms,
    }
    return should_roll(segment, **(arguments | changes))


# Appending


@pytest.mark.parametrize(
    ("base_offset", "last_offset"),
    [(0, -(2**31)), (0, 2**31), (1, 0), (100, 10), (2**31, 0), (2**31, 2**32)],
)
def test_an_offset_that_does_not_fit_is_refused_and_nothing_is_written(
    base_offset: int, last_offset: int, tmp_path: Path
) -> None:
    segment = open_segment(tmp_path, base_offset)
    batch = batch_of(["hello"])
    with pytest.raises(SegmentOffsetOverflow, match="does not fit"):
        segment.append(last_offset, 0, last_offset, batch[:21], batch[21:])
    assert segment.size_bytes == 0


def test_the_first_append_is_not_indexed_and_each_later_one_at_a_small_interval_is(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, index_interval_bytes=10)
    append(segment, *range(20))
    index = segment.indexes.for_offsets()
    assert index is not None
    size = len(batch_of(["hello"]))
    assert list(index) == [(offset, offset * size) for offset in range(1, 20)]


def test_appends_at_an_interval_of_almost_two_batches_index_every_other_one(tmp_path: Path) -> None:
    size = len(batch_of(["hello"], timestamps_ms=5))
    segment = open_segment(tmp_path, index_interval_bytes=2 * size - 1)
    append(segment, *range(20), timestamp_ms=5)
    index = segment.indexes.for_offsets()
    assert index is not None
    assert [entry.offset for entry in index] == [2, 4, 6, 8, 10, 12, 14, 16, 18]
    assert list(segment.indexes.time.get()) == [(5, 0)]


def test_an_append_that_the_disk_refuses_leaves_the_segment_as_it_was(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, *range(10))
    size_bytes = segment.size_bytes
    with no_file_grows_beyond(size_bytes + 50), pytest.raises(OSError, match="too large"):
        append(segment, 10)
    assert segment.size_bytes == size_bytes
    assert segment.max_timestamp == (90, 9)
    append(segment, 10)
    assert [read_offsets(segment, offset) for offset in range(12)] == [[offset] for offset in range(11)] + [None]


def test_an_index_entry_that_the_disk_refuses_does_not_fail_the_append(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    segment = open_segment(tmp_path)
    refused = MAX_UNWRITTEN + 1  # when the disk is asked; the first batch has no entry
    append(segment, *range(refused))
    with full_disk_for_indexes():
        append(segment, refused)
    assert f"no index entry for offset {refused}" in caplog.text
    append(segment, refused + 1)
    assert [read_offsets(segment, offset) for offset in range(refused + 2)] == [[n] for n in range(refused + 2)]
    index = segment.indexes.for_offsets()
    assert index is not None
    assert [entry.offset for entry in index] == [*range(1, refused), refused + 1]


# Rolling


def test_a_segment_rolls_when_the_batch_would_make_it_too_large(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, 0)
    left = 10_000 - segment.size_bytes
    assert not rolls(segment, incoming_bytes=left)
    assert rolls(segment, incoming_bytes=left + 1)


def test_an_empty_segment_rolls_for_no_time_or_size_but_for_offsets_too_far_away(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    assert not rolls(segment, now_ms=HOUR_MS + 1)
    assert not rolls(segment, now_ms=HOUR_MS + 1, incoming_max_timestamp_ms=10**13)
    assert not rolls(segment, incoming_last_offset=2**31 - 1)
    assert rolls(segment, incoming_last_offset=2**31)
    assert rolls(segment, incoming_last_offset=-1)
    assert not rolls(segment, incoming_bytes=10_001)


def test_records_with_timestamps_roll_by_their_timestamps_and_never_by_the_clock(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, 0, timestamp_ms=5000)
    append(segment, 1, timestamp_ms=1)
    assert segment.first_batch_timestamp_ms() == 5000
    assert not rolls(segment, now_ms=100 * HOUR_MS, incoming_max_timestamp_ms=5000 + HOUR_MS)
    assert not rolls(segment, now_ms=100 * HOUR_MS, incoming_max_timestamp_ms=1)
    assert not rolls(segment, now_ms=100 * HOUR_MS, incoming_max_timestamp_ms=-1)
    assert rolls(segment, now_ms=0, incoming_max_timestamp_ms=5001 + HOUR_MS)


def test_records_without_timestamps_roll_by_the_clock_since_the_segment_was_made(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, now_ms=500)
    append(segment, 0, timestamp_ms=-1)
    assert time_waited_for_roll_ms(segment, 1000, 10**13) == 500
    assert not rolls(segment, now_ms=500 + HOUR_MS)
    assert rolls(segment, now_ms=501 + HOUR_MS)


def test_jitter_is_taken_off_the_time(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, roll_jitter_ms=1000)
    append(segment, 0, timestamp_ms=0)
    assert not rolls(segment, incoming_max_timestamp_ms=HOUR_MS - 1000)
    assert rolls(segment, incoming_max_timestamp_ms=HOUR_MS - 999)


def test_the_first_batch_timestamp_is_read_from_the_file_after_a_restart(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    assert segment.first_batch_timestamp_ms() is None
    append(segment, 0, timestamp_ms=1000)
    append(segment, 1, timestamp_ms=2000)
    again = reopened(segment)
    assert again.first_batch_timestamp_ms() == 1000
    assert rolls(again, incoming_max_timestamp_ms=1001 + HOUR_MS)


def test_a_damaged_first_batch_does_not_stand_in_the_way_of_appends(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, index_interval_bytes=300)
    append(segment, *range(20))
    segment = reopened(segment)
    overwrite(segment.path, 0, b"\xff" * 61)
    assert not rolls(segment, incoming_max_timestamp_ms=10**13)
    assert rolls(segment, now_ms=HOUR_MS + 1)
    append(segment, 20)
    assert read_offsets(segment, 20) == [20]


@pytest.mark.parametrize("is_time_index", [False, True])
def test_a_full_index_rolls_the_segment(is_time_index: bool, tmp_path: Path) -> None:
    """240 bytes hold 30 entries of the offset index, and 19 of the time index besides the last one's slot."""
    segment = open_segment(tmp_path, max_index_bytes=240)
    offset = 0
    while not rolls(segment):
        append(segment, offset, timestamp_ms=None if is_time_index else 7)
        offset += 1
    assert offset == (20 if is_time_index else 31)
    segment.on_become_inactive()
    assert [read_offsets(segment, o) for o in range(offset)] == [[o] for o in range(offset)]


def test_a_full_index_rolls_the_segment_after_a_restart_too_and_a_trimmed_one_does_not(tmp_path: Path) -> None:
    config = {"max_index_bytes": 240}
    segment = open_segment(tmp_path, **config)
    append(segment, *range(19))
    segment.close()
    segment = open_segment(tmp_path, **config)
    assert not rolls(segment)
    append(segment, 19)
    segment.close()
    segment = open_segment(tmp_path, **config)
    assert rolls(segment)
    assert segment.indexes.loaded() == []


# Reading


def test_reading_an_empty_segment_or_behind_its_end_finds_nothing(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, 40)
    assert read_offsets(segment, 40, 300) is None
    append_batch(segment, batch_of(["hello", "there"], offset=50))
    assert read_offsets(segment, 52, 200) is None


def test_reading_before_the_first_offset_and_in_a_gap_finds_the_next_batch(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, 40)
    append_batch(segment, batch_of(["a", "b", "c"], offset=50))
    assert read_offsets(segment, 41, 300) == [50, 51, 52]
    append_batch(segment, batch_of(["d", "e"], offset=60))
    assert read_offsets(segment, 55, 200) == [60, 61]


def test_reading_within_a_batch_begins_with_the_whole_batch(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append_batch(segment, batch_of(["a", "b"], offset=0))
    append_batch(segment, batch_of(["c", "d"], offset=2))
    assert [read_offsets(segment, offset) for offset in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_a_read_says_where_the_batch_lies_and_whether_it_is_whole(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, 0, 1, 2)
    size = segment.size_bytes // 3

    def read(max_size_bytes: int, max_position: int | None, *, min_one_batch: bool) -> tuple[int, int, bool]:
        found = segment.read(1, max_size_bytes, max_position=max_position, min_one_batch=min_one_batch)
        assert found is not None
        return found.position, 0 if found.slice is None else found.slice.size_bytes, found.is_first_batch_incomplete

    end = segment.size_bytes
    assert read(size, end, min_one_batch=False) == (size, size, False)
    assert read(10 * size, end, min_one_batch=False) == (size, 2 * size, False)
    assert read(1, end, min_one_batch=False) == (size, 1, True)
    assert read(1, end, min_one_batch=True) == (size, size, False)
    assert read(10 * size, 2 * size, min_one_batch=True) == (size, size, False)
    assert read(10 * size, size, min_one_batch=True) == (size, 0, False)
    assert read(10 * size, None, min_one_batch=True) == (size, 0, False)
    assert read(0, end, min_one_batch=False) == (size, 0, False)
    assert read(0, end, min_one_batch=True) == (size, size, False)
    with pytest.raises(ValueError, match="negative"):
        read(-1, end, min_one_batch=True)


def test_the_upper_bound_of_a_fetch_comes_from_the_index(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    assert segment.fetch_upper_bound_offset(0, 10) is None
    append(segment, *range(10))
    size = segment.size_bytes // 10
    assert segment.fetch_upper_bound_offset(0, 3 * size) == 3
    assert segment.fetch_upper_bound_offset(0, 3 * size + 1) == 4
    assert segment.fetch_upper_bound_offset(0, 10 * size) is None


def test_the_next_offset_follows_the_last_batch(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, 40)
    assert segment.read_next_offset() == 40
    append_batch(segment, batch_of(["a", "b", "c"], offset=50))
    assert segment.read_next_offset() == 53
    append(segment, *range(53, 80))
    assert segment.read_next_offset() == reopened(segment).read_next_offset() == 80


@settings(max_examples=40, deadline=None)
@given(
    batches=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(0, 300)), min_size=1, max_size=40),
    interval=st.sampled_from([0, 100, 400, 2000]),
    is_reopened=st.booleans(),
)
def test_a_segment_reads_like_a_list_of_batches(
    batches: list[tuple[int, int, int]], interval: int, is_reopened: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    segment = open_segment(tmp_path_factory.mktemp("log"), 10, index_interval_bytes=interval, max_index_bytes=2000)
    model: list[range] = []
    offset = 10
    for gap, count, value_bytes in batches:
        offset += gap
        append_batch(segment, batch_of(["x" * value_bytes] * count, offset=offset, timestamps_ms=offset))
        model.append(range(offset, offset + count))
        offset += count
    if is_reopened:
        segment = reopened(segment)
    for start in range(10, offset):
        expected = next(offsets for offsets in model if offsets[-1] >= start)
        assert read_offsets(segment, start) == list(expected)
    assert read_offsets(segment, offset) is None
    assert read_offsets(segment, 10, 10**6) == [o for offsets in model for o in offsets]
    assert segment.read_next_offset() == offset
    segment.close()


# Times


def test_a_time_is_found_at_the_first_record_that_is_as_late(tmp_path: Path) -> None:
    size = len(batch_of(["msg00"], timestamps_ms=420))
    segment = open_segment(tmp_path, 40, index_interval_bytes=2 * size - 1)
    append(segment, *range(40, 50))
    for _ in range(2):
        assert segment.largest_timestamp_ms == 490
        for wanted_ms, offset in ((420, 42), (421, 43), (430, 43), (431, 44), (401, 41), (399, 40), (0, 40), (490, 49)):
            assert segment.find_offset_by_timestamp(wanted_ms, 0) == (10 * offset, offset, 0)
        assert segment.find_offset_by_timestamp(491, 0) is None
        assert segment.find_offset_by_timestamp(420, 45) == (450, 45, 0)
        segment = reopened(segment)


def test_a_time_is_looked_for_within_batches_and_past_earlier_ones(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, index_interval_bytes=0)
    append_batch(segment, batch_of(["a", "b", "c"], offset=0, timestamps_ms=[50, 10, 30], leader_epoch=4))
    append_batch(segment, batch_of(["d"], offset=3, timestamps_ms=20, leader_epoch=5))
    append_batch(segment, batch_of(["e", "f"], offset=4, timestamps_ms=[40, 60], leader_epoch=6))
    assert segment.find_offset_by_timestamp(20, 0) == (50, 0, 4)
    assert segment.find_offset_by_timestamp(20, 1) == (30, 2, 4)
    assert segment.find_offset_by_timestamp(20, 3) == (20, 3, 5)
    assert segment.find_offset_by_timestamp(40, 1) == (40, 4, 6)
    assert segment.find_offset_by_timestamp(51, 0) == (60, 5, 6)
    assert segment.find_offset_by_timestamp(61, 0) is None


def test_the_time_of_appending_counts_for_every_record_of_its_batch(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append_batch(segment, stamp_append_time(batch_of(["a", "b"], offset=0, timestamps_ms=[1, 2]), 700))
    assert segment.find_offset_by_timestamp(3, 0) == (700, 0, 0)
    assert segment.find_offset_by_timestamp(3, 1) == (700, 1, 0)
    assert segment.find_max_timestamp() == (700, 0, 0)


def test_the_largest_timestamp_is_found_with_its_first_record(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    assert segment.find_max_timestamp() is None
    for offset, timestamp_ms in enumerate((0, 1, 2, 3, 4, 6, 5, 6)):
        append(segment, offset, timestamp_ms=timestamp_ms)
    append_batch(segment, batch_of(["a", "b", "c"], offset=8, timestamps_ms=[1, 9, 9]))
    assert segment.max_timestamp == (9, 10)
    for _ in range(2):
        assert segment.find_max_timestamp() == (9, 9, 0)
        segment = reopened(segment)
    segment.truncate_to(8, 0)
    assert segment.find_max_timestamp() == (6, 5, 0)


def test_without_timestamps_the_time_of_modification_stands_in(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, 0, 1, timestamp_ms=-1)
    os.utime(segment.path, ns=(0, 1234 * 10**6))
    assert (segment.max_timestamp_ms, segment.largest_timestamp_ms) == (-1, 1234)
    assert segment.find_max_timestamp() is None


def test_the_largest_timestamp_survives_a_close_between_index_entries(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, index_interval_bytes=10_000)
    append(segment, 0, 1, 2)
    append(segment, 3, timestamp_ms=5)
    again = reopened(segment)
    assert again.max_timestamp == (20, 2)
    append(again, 4, timestamp_ms=1000)
    assert reopened(again).max_timestamp == (1000, 4)


# Truncation


def test_truncation_drops_the_batch_of_the_offset_and_appending_goes_on(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, 40, max_index_bytes=4000)
    for offset in range(40, 100, 2):
        append(segment, offset, offset + 1)
        assert read_offsets(segment, offset, 10_000) == [offset, offset + 1]
        segment.truncate_to(offset + 1, 0)
        assert read_offsets(segment, offset, 10_000) == [offset]
        assert read_offsets(segment, offset + 1) is None
        append(segment, offset + 1)


def test_truncation_says_how_many_bytes_went(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append_batch(segment, batch_of(["a", "b"], offset=0))
    first = segment.size_bytes
    append_batch(segment, batch_of(["c", "d"], offset=2))
    assert segment.truncate_to(4, 0) == 0
    assert segment.truncate_to(3, 0) == segment.path.stat().st_size == first
    assert segment.truncate_to(0, 0) == first


def test_a_segment_truncated_to_nothing_is_as_new(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, 40)
    append(segment, 40, 41, timestamp_ms=-1)
    assert time_waited_for_roll_ms(segment, 500, -1) == 500
    segment.truncate_to(0, 500)
    assert time_waited_for_roll_ms(segment, 500, -1) == 0
    assert segment.max_timestamp == (-1, 40)
    assert not rolls(segment)
    assert read_offsets(segment, 0, 1024) is None
    append(segment, 40, 41)
    assert [read_offsets(segment, 40), read_offsets(segment, 41)] == [[40], [41]]
    assert segment.max_timestamp == (410, 41)


def test_truncation_makes_room_in_the_indexes_of_a_segment_that_was_closed(tmp_path: Path) -> None:
    """Else it would count as full, and roll at once (KAFKA-6492)."""
    segment = open_segment(tmp_path)
    append(segment, *range(10))
    segment.on_become_inactive()
    segment.truncate_to(5, 0)
    assert not rolls(segment)
    append(segment, *range(5, 10))
    assert [read_offsets(segment, offset) for offset in range(11)] == [[offset] for offset in range(10)] + [None]


def test_a_segment_that_was_truncated_and_closed_is_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    segment = open_segment(tmp_path, index_interval_bytes=300)
    append(segment, *range(20))
    segment = reopened(segment)
    segment.truncate_to(10, 0)
    assert segment.unflushed() is not None
    segment = reopened(segment)
    assert segment.max_timestamp == (90, 9)
    assert [read_offsets(segment, offset) for offset in range(11)] == [[offset] for offset in range(10)] + [None]
    assert caplog.text == ""


def test_truncation_finds_the_largest_timestamp_again(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, index_interval_bytes=300)
    timestamps = [5, 9, 3, 30, 2, 31, 8, 40, 1]
    for offset, timestamp_ms in enumerate(timestamps):
        append(segment, offset, timestamp_ms=timestamp_ms)
    for end in range(len(timestamps) - 1, 0, -1):
        segment.truncate_to(end, 0)
        largest = max(timestamps[:end])
        assert segment.max_timestamp == (largest, timestamps.index(largest))


def test_an_empty_segment_that_was_closed_may_be_truncated_and_rolls_only_for_far_offsets(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    segment.indexes.reset()
    segment = reopened(segment)
    segment.truncate_to(57, 500)
    assert time_waited_for_roll_ms(segment, 500, -1) == 0
    assert not segment.indexes.are_full()
    arguments = {"segment_ms": 300_000, "incoming_last_offset": 100, "incoming_bytes": 1024}
    assert not rolls(segment, now_ms=500, **arguments)
    assert not rolls(segment, now_ms=300_501, **arguments)
    assert time_waited_for_roll_ms(segment, 300_501, -1) == 300_001
    assert rolls(segment, now_ms=300_501, **(arguments | {"incoming_last_offset": 2**31 + 199}))


# Files


def test_a_new_segment_has_no_index_files_and_reading_it_makes_none(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, 0)
    assert read_offsets(segment, 0) == [0]
    assert segment.find_offset_by_timestamp(0, 0) == (0, 0, 0)
    segment.truncate_to(5, 0)
    assert file_names(tmp_path) == ["00000000000000000000.log"]
    append(segment, 1, 2)
    assert file_names(tmp_path) == [f"{0:020d}.{kind}" for kind in ("index", "log", "timeindex")]


def test_opening_and_closing_an_old_segment_opens_nothing(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, *range(10))
    segment.close()
    before = {path.name: path.stat() for path in tmp_path.iterdir()}
    open_files = OpenFiles()
    again = open_segment(tmp_path, open_files=open_files)
    assert again.size_bytes == before[again.path.name].st_size
    assert again.unflushed() is None
    again.on_become_inactive()
    again.close()
    assert open_files.open_count == 0
    assert again.indexes.loaded() == []
    after = {path.name: path.stat() for path in tmp_path.iterdir()}
    assert {name: stat.st_mtime_ns for name, stat in after.items()} == {n: s.st_mtime_ns for n, s in before.items()}
    assert {name: stat.st_ctime_ns for name, stat in after.items()} == {n: s.st_ctime_ns for n, s in before.items()}


def test_inactive_segments_are_trimmed_and_end_with_their_largest_timestamp(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, index_interval_bytes=300, preallocate_bytes=100_000)
    append(segment, *range(10))
    assert segment.path.stat().st_size == 100_000
    segment.on_become_inactive()
    segment.on_become_inactive()
    offset_index, time_index = segment.indexes.for_offsets(), segment.indexes.for_times()
    assert offset_index is not None
    assert time_index is not None
    assert segment.path.stat().st_size == segment.size_bytes
    assert offset_index.path.stat().st_size == 8 * offset_index.entries > 0
    assert time_index.path.stat().st_size == 12 * time_index.entries
    assert time_index.last_entry == (90, 9)
    assert [read_offsets(segment, offset) for offset in range(10)] == [[offset] for offset in range(10)]


def test_preallocation_lasts_until_the_segment_is_closed(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, 40, preallocate_bytes=512 << 20)
    append_batch(segment, batch_of(["hello", "there"], offset=50))
    append_batch(segment, batch_of(["a", "b"], offset=60))
    assert segment.path.stat().st_size == 512 << 20
    assert read_offsets(segment, 55, 200) == [60, 61]
    size_bytes = segment.size_bytes
    again = reopened(segment)
    assert again.size_bytes == again.path.stat().st_size == size_bytes
    assert read_offsets(again, 55, 200) == [60, 61]


@pytest.mark.parametrize("has_indexes", [False, True])
def test_changing_the_suffix_renames_what_there_is(has_indexes: bool, tmp_path: Path) -> None:
    segment = open_segment(tmp_path, 40)
    append(segment, *range(40, 45 if has_indexes else 41))
    before = file_names(tmp_path)
    (tmp_path / f"{40:020d}.txnindex").write_bytes(b"kafka's")
    segment.change_suffix("", ".deleted")
    assert file_names(tmp_path) == sorted(f"{name}.deleted" for name in [*before, f"{40:020d}.txnindex"])
    assert segment.path.name == f"{40:020d}.log.deleted"
    assert segment.indexes.time.path.name == f"{40:020d}.timeindex.deleted"
    assert read_offsets(segment, 40) == [40]
    append(segment, 45, 46)
    assert segment.indexes.offset.path.exists()
    with pytest.raises(ValueError, match="suffix"):
        segment.change_suffix("", ".swap")
    segment.change_suffix(".deleted", "")
    assert f"{40:020d}.log" in file_names(tmp_path)
    segment.delete()
    assert file_names(tmp_path) == []


def test_a_segment_follows_its_directory(tmp_path: Path) -> None:
    old, new = tmp_path / "flights-0", tmp_path / "flights-0.deleting"
    old.mkdir()
    segment = open_segment(old)
    append(segment, *range(10))
    old.rename(new)
    segment.update_directory(new)
    segment.records.let_go()
    segment.records.mark_synced(segment.records.writes)
    for index in segment.indexes.loaded():
        index.let_go()
    append(segment, 10)
    assert [read_offsets(segment, offset) for offset in range(11)] == [[offset] for offset in range(11)]
    segment.close()
    assert sorted(path.parent for path in new.iterdir()) == [new] * 3


def test_deleting_leaves_no_file_and_slices_stay_readable(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, *range(10))
    found = segment.read(3, 10_000, max_position=segment.size_bytes, min_one_batch=True)
    assert found is not None
    assert found.slice is not None
    segment.delete()
    segment.delete()
    assert file_names(tmp_path) == []
    assert read_header(found.slice.pread()).base_offset == 3
    for use in (lambda: read_offsets(segment, 3), lambda: append(segment, 10), lambda: segment.truncate_to(3, 0)):
        with pytest.raises(ClosedFile):
            use()


def test_deleting_tries_every_file_before_it_fails(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, *range(10))
    segment.close()
    segment.indexes.offset.path.unlink()
    segment.indexes.offset.path.mkdir()
    with pytest.raises(OSError, match=r"\.index"):
        segment.delete()
    assert file_names(tmp_path) == [f"{0:020d}.index"]


def test_closing_twice_is_harmless_and_use_after_it_a_clear_error(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, *range(10))
    segment.close()
    segment.close()
    segment.close_handles()
    for use in (lambda: read_offsets(segment, 3), lambda: append(segment, 10), lambda: segment.records.read(0, 1)):
        with pytest.raises(ClosedFile):
            use()


def test_letting_go_of_a_failed_directory_changes_no_file(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, preallocate_bytes=5000)
    append(segment, *range(10))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    segment.close_handles()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_few_descriptors_serve_many_segments(tmp_path: Path) -> None:
    open_files = OpenFiles(limit=6)
    segments = []
    for base_offset in range(0, 400, 10):
        segment = open_segment(tmp_path, base_offset, open_files=open_files)
        append(segment, *range(base_offset, base_offset + 10))
        segment.on_become_inactive()
        segment.flush()
        segments.append(segment)
    for _ in range(2):
        for segment in segments:
            for offset in range(segment.base_offset, segment.base_offset + 10):
                assert read_offsets(segment, offset) == [offset]
                assert segment.find_offset_by_timestamp(10 * offset, 0) == (10 * offset, offset, 0)
            assert open_files.open_count <= 6
    append(segments[-1], 400, 401)
    for segment in segments:
        segment.close()
    assert open_files.open_count == 0


def test_threads_with_segments_of_their_own_may_share_a_few_descriptors(tmp_path: Path) -> None:
    open_files = OpenFiles(limit=4)

    def write_and_read(number: int) -> None:
        directory = tmp_path / f"{number}"
        directory.mkdir()
        segments = [open_segment(directory, base, open_files=open_files) for base in range(0, 80, 10)]
        for segment in segments:
            append(segment, *range(segment.base_offset, segment.base_offset + 10))
            segment.on_become_inactive()
            segment.flush()
        for segment in segments:
            for offset in range(segment.base_offset, segment.base_offset + 10):
                assert read_offsets(segment, offset) == [offset]
                assert segment.find_offset_by_timestamp(10 * offset, 0) == (10 * offset, offset, 0)
            segment.recover(lambda header, position, read_batch: None)
            segment.close()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write_and_read, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert open_files.open_count == 0


# Flushing


def test_a_new_segment_is_unflushed_until_its_file_and_its_directory_were_synced(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    unflushed = segment.unflushed()
    assert unflushed is not None
    assert unflushed.is_directory_dirty
    assert [file.path for file in unflushed.files] == [str(segment.path)]
    segment.mark_flushed(unflushed)
    assert segment.unflushed() is None
    append(segment, 0)
    unflushed = segment.unflushed()
    assert unflushed is not None
    assert not unflushed.is_directory_dirty
    append(segment, 1)
    segment.mark_flushed(unflushed)
    assert segment.unflushed() is not None
    segment.flush()
    assert segment.unflushed() is None


def test_index_files_are_flushed_with_the_flush_that_follows_the_roll(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, *range(10))
    unflushed = segment.unflushed()
    assert unflushed is not None
    assert [Path(file.path).suffix for file in unflushed.files] == [".log"]
    segment.mark_flushed(unflushed)
    assert segment.unflushed() is None
    segment.on_become_inactive()
    unflushed = segment.unflushed()
    assert unflushed is not None
    assert [Path(file.path).suffix for file in unflushed.files] == [".index", ".timeindex"]
    segment.mark_flushed(unflushed)
    assert segment.unflushed() is None


def test_what_a_flush_holds_stays_open_while_the_segment_is_deleted(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, *range(10))
    segment.on_become_inactive()
    unflushed = segment.unflushed()
    assert unflushed is not None
    segment.delete()
    for file in unflushed.files:
        os.fdatasync(file.fd)
    segment.mark_flushed(unflushed)


def test_truncation_and_recovery_must_be_flushed(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, *range(10))
    segment.flush()
    segment.truncate_to(5, 0)
    assert segment.unflushed() is not None
    segment.flush()
    segment.recover(lambda header, position, read_batch: None)
    unflushed = segment.unflushed()
    assert unflushed is not None
    assert [Path(file.path).suffix for file in unflushed.files] == [".index", ".timeindex"]


def test_a_value_may_be_as_large_as_a_batch_allows(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    value = os.urandom(3_000_000)
    batch = encode_batch([value, b"", None], timestamps_ms=1)
    append_batch(segment, batch)
    found = segment.read(0, 1, max_position=segment.size_bytes, min_one_batch=True)
    assert found is not None
    assert found.slice is not None
    assert found.slice.pread() == batch


# The transaction index

ABORTED = AbortedTxn(7, 0, 1, 2)


def test_a_transaction_index_goes_along_with_its_segment(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, 0, 1)
    assert not segment.transactions.file_exists()
    segment.add_aborted(ABORTED)
    assert "00000000000000000000.txnindex" in file_names(tmp_path)
    segment.change_suffix("", ".deleted")
    assert all(name.endswith(".deleted") for name in file_names(tmp_path))
    assert list(segment.transactions) == [ABORTED]
    segment.update_directory(tmp_path)
    segment.delete()
    assert file_names(tmp_path) == []


def test_truncating_a_segment_truncates_its_transaction_index(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, *range(6))
    segment.add_aborted(ABORTED)
    segment.add_aborted(AbortedTxn(8, 2, 5, 6))
    segment.truncate_to(5, 0)
    assert list(segment.transactions) == [ABORTED]


def test_entries_of_aborted_transactions_are_synced_with_the_indexes_of_an_inactive_segment(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, 0, 1)
    segment.flush()
    segment.add_aborted(ABORTED)
    segment.on_become_inactive()
    unflushed = segment.unflushed()
    assert unflushed is not None
    assert unflushed.is_directory_dirty
    assert any(file.path.endswith(".txnindex") for file in unflushed.files)
    segment.flush()
    assert segment.unflushed() is None
    segment.close()
    assert list(reopened(segment).transactions) == [ABORTED]
