"""A segment that is cut: what goes, what stays, and how it goes on (Kafka's LogSegmentTest)."""

from pathlib import Path

import pytest

from unit.broker.storage.log_files import append, append_batch, batch_of, open_segment, read_offsets, reopened, rolls
from warmlog_broker.storage.index.transaction_index import AbortedTxn

ABORTED = AbortedTxn(7, 0, 1, 2)


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
