"""One segment: append, read, find by time, roll and truncate (Kafka's LogSegmentTest)."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from present import present
from unit.broker.storage.log_files import (
    HOUR_MS,
    append,
    append_batch,
    batch_of,
    full_disk_for_indexes,
    no_file_grows_beyond,
    open_segment,
    overwrite,
    read_offsets,
    reopened,
    rolls,
)
from unit.broker.storage.time_lookups import latest_record_in, record_in
from warmlog_broker.storage.index.abstract_index import MAX_UNWRITTEN
from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_broker.storage.segment.segment import SegmentOffsetOverflow
from warmlog_protocol.batch import encode_batch, stamp_append_time

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
        segment.append(last_offset, 0, batch[:21], batch[21:])
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


# Reading


def test_reading_an_empty_segment_or_behind_its_end_finds_nothing(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, 40)
    assert read_offsets(segment, 40, 300) is None
    append_batch(segment, batch_of(["hello", "there"], offset=50))
    assert read_offsets(segment, 52, 200) is None


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
    assert present(segment.lookup.last_before(offset)).next_offset == offset
    segment.close()


# Times


def test_a_time_is_found_at_the_first_record_that_is_as_late(tmp_path: Path) -> None:
    size = len(batch_of(["msg00"], timestamps_ms=420))
    segment = open_segment(tmp_path, 40, index_interval_bytes=2 * size - 1)
    append(segment, *range(40, 50))
    for _ in range(2):
        assert segment.largest_timestamp_ms == 490
        for wanted_ms, offset in ((420, 42), (421, 43), (430, 43), (431, 44), (401, 41), (399, 40), (0, 40), (490, 49)):
            assert record_in(segment, wanted_ms, 0) == (10 * offset, offset, 0)
        assert record_in(segment, 491, 0) is None
        assert record_in(segment, 420, 45) == (450, 45, 0)
        segment = reopened(segment)


def test_a_time_is_looked_for_within_batches_and_past_earlier_ones(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, index_interval_bytes=0)
    append_batch(segment, batch_of(["a", "b", "c"], offset=0, timestamps_ms=[50, 10, 30], leader_epoch=4))
    append_batch(segment, batch_of(["d"], offset=3, timestamps_ms=20, leader_epoch=5))
    append_batch(segment, batch_of(["e", "f"], offset=4, timestamps_ms=[40, 60], leader_epoch=6))
    assert record_in(segment, 20, 0) == (50, 0, 4)
    assert record_in(segment, 20, 1) == (30, 2, 4)
    assert record_in(segment, 20, 3) == (20, 3, 5)
    assert record_in(segment, 40, 1) == (40, 4, 6)
    assert record_in(segment, 51, 0) == (60, 5, 6)
    assert record_in(segment, 61, 0) is None


def test_the_time_of_appending_counts_for_every_record_of_its_batch(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append_batch(segment, stamp_append_time(batch_of(["a", "b"], offset=0, timestamps_ms=[1, 2]), 700))
    assert record_in(segment, 3, 0) == (700, 0, 0)
    assert record_in(segment, 3, 1) == (700, 1, 0)
    assert latest_record_in(segment) == (700, 0, 0)


def test_the_largest_timestamp_is_found_with_its_first_record(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    assert latest_record_in(segment) is None
    for offset, timestamp_ms in enumerate((0, 1, 2, 3, 4, 6, 5, 6)):
        append(segment, offset, timestamp_ms=timestamp_ms)
    append_batch(segment, batch_of(["a", "b", "c"], offset=8, timestamps_ms=[1, 9, 9]))
    assert segment.max_timestamp == (9, 10)
    for _ in range(2):
        assert latest_record_in(segment) == (9, 9, 0)
        segment = reopened(segment)
    segment.truncate_to(8, 0)
    assert latest_record_in(segment) == (6, 5, 0)


def test_without_timestamps_the_time_of_modification_stands_in(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, 0, 1, timestamp_ms=-1)
    os.utime(segment.path, ns=(0, 1234 * 10**6))
    assert (segment.max_timestamp_ms, segment.largest_timestamp_ms) == (-1, 1234)
    assert latest_record_in(segment) is None


def test_the_largest_timestamp_survives_a_close_between_index_entries(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, index_interval_bytes=10_000)
    append(segment, 0, 1, 2)
    append(segment, 3, timestamp_ms=5)
    again = reopened(segment)
    assert again.max_timestamp == (20, 2)
    append(again, 4, timestamp_ms=1000)
    assert reopened(again).max_timestamp == (1000, 4)


def test_a_value_may_be_as_large_as_a_batch_allows(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    value = os.urandom(3_000_000)
    batch = encode_batch([value, b"", None], timestamps_ms=1)
    append_batch(segment, batch)
    found = segment.read(0, 1, max_position=segment.size_bytes, min_one_batch=True)
    assert found is not None
    assert found.slice is not None
    assert found.slice.pread() == batch


# Rolling


def test_an_empty_segment_rolls_for_no_time_or_size_but_for_offsets_too_far_away(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    assert not rolls(segment, now_ms=HOUR_MS + 1)
    assert not rolls(segment, now_ms=HOUR_MS + 1, max_timestamp_ms=10**13)
    assert not rolls(segment, last_offset=2**31 - 1)
    assert rolls(segment, last_offset=2**31)
    assert rolls(segment, last_offset=-1)
    assert not rolls(segment, size_bytes=10_001)


def test_records_without_timestamps_roll_by_the_clock_since_the_segment_was_made(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, now_ms=500)
    append(segment, 0, timestamp_ms=-1)
    assert segment.time_waited_for_roll_ms(1000, 10**13) == 500
    assert not rolls(segment, now_ms=500 + HOUR_MS)
    assert rolls(segment, now_ms=501 + HOUR_MS)


def test_the_first_batch_timestamp_is_read_from_the_file_after_a_restart(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    assert segment.first_batch_timestamp_ms() is None
    append(segment, 0, timestamp_ms=1000)
    append(segment, 1, timestamp_ms=2000)
    again = reopened(segment)
    assert again.first_batch_timestamp_ms() == 1000
    assert rolls(again, max_timestamp_ms=1001 + HOUR_MS)


def test_a_damaged_first_batch_does_not_stand_in_the_way_of_appends(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, index_interval_bytes=300)
    append(segment, *range(20))
    segment = reopened(segment)
    overwrite(segment.path, 0, b"\xff" * 61)
    assert not rolls(segment, max_timestamp_ms=10**13)
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


# Truncation


ABORTED = AbortedTxn(7, 0, 1, 2)


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
    assert segment.time_waited_for_roll_ms(500, -1) == 500
    segment.truncate_to(0, 500)
    assert segment.time_waited_for_roll_ms(500, -1) == 0
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
    assert segment.time_waited_for_roll_ms(500, -1) == 0
    assert not segment.indexes.are_full()
    arguments = {"segment_ms": 300_000, "last_offset": 100, "size_bytes": 1024}
    assert not rolls(segment, now_ms=500, **arguments)
    assert not rolls(segment, now_ms=300_501, **arguments)
    assert segment.time_waited_for_roll_ms(300_501, -1) == 300_001
    assert rolls(segment, now_ms=300_501, **(arguments | {"last_offset": 2**31 + 199}))
