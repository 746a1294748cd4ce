"""The map of segments (Kafka's LogSegmentsTest)."""

from pathlib import Path

import pytest

from unit.broker.storage.log_files import append, open_segment
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segments import LogSegments


def segments_at(directory: Path, *base_offsets: int) -> LogSegments:
    return LogSegments(open_segment(directory, base_offset) for base_offset in base_offsets)


def bases(segments: list[LogSegment]) -> list[int]:
    return [segment.base_offset for segment in segments]


def base(segment: LogSegment | None) -> int | None:
    return None if segment is None else segment.base_offset


def test_adding_replaces_the_segment_with_the_same_base_offset(tmp_path: Path) -> None:
    segments = LogSegments()
    first, other, newest = (open_segment(tmp_path, base_offset) for base_offset in (40, 80, 40))
    for segment in (first, other, newest):
        segments.add(segment)
    assert (len(segments), segments.get(40), bases(list(segments))) == (2, newest, [40, 80])
    for _ in range(2):
        segments.remove(80)
        assert (len(segments), segments.get(40), segments.get(80)) == (1, newest, None)
    segments.remove(40)
    assert (len(segments), segments.first, segments.get(40)) == (0, None, None)
    with pytest.raises(IndexError):
        _ = segments.active


def test_ranges_include_the_segment_that_would_hold_their_first_offset(tmp_path: Path) -> None:
    segments = segments_at(tmp_path, 4, 2, 1, 3)
    with pytest.raises(ValueError, match="from 2 to 1"):
        segments.values(2, 1)
    expected = {
        (1, 1): [],
        (1, 2): [1],
        (1, 3): [1, 2],
        (1, 4): [1, 2, 3],
        (2, 4): [2, 3],
        (3, 4): [3],
        (4, 4): [],
        (4, 5): [4],
        (0, 9): [1, 2, 3, 4],
    }
    assert {key: bases(segments.values(*key)) for key in expected} == expected
    assert segments.active.base_offset == 4


def test_ranges_over_segments_with_several_offsets(tmp_path: Path) -> None:
    segments = segments_at(tmp_path, 0, 10, 20)
    expected = {(0, 21): [0, 10, 20], (1, 5): [0], (13, 21): [10, 20], (13, 17): [10], (10, 10): [], (15, 15): []}
    assert {key: bases(segments.values(*key)) for key in expected} == expected
    with pytest.raises(ValueError, match="invalid range"):
        segments.values(10, 0)


def test_neighbours_are_found_by_bisection(tmp_path: Path) -> None:
    segments = segments_at(tmp_path, 1, 3, 5, 7, 9)
    assert [base(segments.floor(offset)) for offset in (0, 1, 2, 3, 9, 100)] == [None, 1, 1, 3, 9, 9]
    assert [base(segments.lower(offset)) for offset in (0, 1, 2, 3, 9, 100)] == [None, None, 1, 1, 7, 9]
    assert [base(segments.higher(offset)) for offset in (0, 1, 2, 8, 9, 100)] == [1, 3, 3, 9, None, None]
    assert bases(segments.higher_segments(0)) == segments.base_offsets == [1, 3, 5, 7, 9]
    assert bases(segments.higher_segments(1)) == [3, 5, 7, 9]
    assert bases(segments.higher_segments(8)) == [9]
    assert segments.higher_segments(9) == []
    assert (base(segments.first), base(segments.active)) == (1, 9)


def test_the_size_is_that_of_all_log_files(tmp_path: Path) -> None:
    segments = segments_at(tmp_path, 0, 10)
    append(segments.active, 10, 11)
    first = segments.first
    assert first is not None
    append(first, 0)
    assert segments.size_bytes == sum(path.stat().st_size for path in tmp_path.glob("*.log"))


def test_the_map_may_change_while_it_is_walked(tmp_path: Path) -> None:
    segments = segments_at(tmp_path, 0, 10, 20)
    for segment in segments:
        segments.remove(segment.base_offset)
    assert len(segments) == 0


def test_all_segments_follow_their_directory_and_close(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    segments = segments_at(old, 0, 10)
    append(segments.active, *range(10, 20))
    old.rename(new)
    segments.update_directory(new)
    assert {segment.path.parent for segment in segments} == {new}
    segments.close()
    segments.close_handles()
    assert {path.suffix for path in new.iterdir()} == {".log", ".index", ".timeindex"}
