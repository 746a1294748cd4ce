"""When a segment says that the next one should begin (Kafka's LogSegmentTest)."""

from pathlib import Path

import pytest

from unit.broker.storage.log_files import HOUR_MS, append, open_segment, overwrite, read_offsets, reopened, rolls


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
