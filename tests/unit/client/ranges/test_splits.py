"""What is left of a range after splits that lie outside its times are taken out."""

from hypothesis import given, settings
from hypothesis import strategies as st

from warmlog.ranges.offset_range import OffsetRange, Piece, sized_ranges
from warmlog_protocol.messages import FoundSplit

times = st.none() | st.integers(0, 20)
splits_with_times = st.lists(st.tuples(st.integers(1, 10), st.integers(0, 100), times, times), max_size=12)


@settings(max_examples=100)
@given(splits_with_times, times, times, st.integers(0, 5))
def test_every_offset_is_kept_once_unless_it_is_known_to_lie_outside_the_times(
    parts: list[tuple[int, int, int | None, int | None]], from_ms: int | None, until_ms: int | None, behind: int
) -> None:
    splits, end, expected = [], 100, []
    for span, size_bytes, smallest, largest in parts:
        is_outside = (None not in (from_ms, largest) and largest < from_ms) or (  # type: ignore[operator]
            None not in (until_ms, smallest) and smallest >= until_ms  # type: ignore[operator]
        )
        expected += [] if is_outside else range(end, end + span)
        end += span
        splits.append(FoundSplit(end, size_bytes, smallest, largest))
    expected += range(end, end + behind)
    planned = OffsetRange("t", 0, 100, end + behind, "b:1", b"id", from_ms, until_ms)
    found = sized_ranges(planned, splits)
    assert [offset for sized in found for offset in range(sized.range.start, sized.range.end)] == expected
    for sized in found:
        assert sized.pieces[-1].end == sized.range.end
        assert sized.range.span > 0
        assert sized.range._replace(start=0, end=0) == planned._replace(start=0, end=0)
    kept_bytes = sum(split.size_bytes for split in splits if split.end_offset - 1 in expected)
    assert sum(sized.size_bytes for sized in found) == kept_bytes


def test_without_splits_the_range_is_one_piece_of_unknown_size() -> None:
    planned = OffsetRange("t", 0, 5, 9)
    assert sized_ranges(planned, []) == [(planned, (Piece(9, 0),))]
    assert sized_ranges(planned._replace(end=5), []) == []
