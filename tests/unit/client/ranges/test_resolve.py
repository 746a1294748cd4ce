"""Ranges out of points: where they start and end, what is said of what the log does not have, what splits leave."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmlog.errors import InvalidConfig, OffsetOutOfRange
from warmlog.points import EARLIEST, LATEST, Point, PointKind, Points
from warmlog.ranges.offset_range import OffsetRange, PartitionOffsets, Piece, sized_ranges
from warmlog.ranges.resolve import Loss, ReadBounds, resolve_ranges, starting_times
from warmlog_protocol.messages import FoundSplit

STATE = PartitionOffsets("orders", 3, b"id", "b:1", earliest=100, latest=200)
PLACE = ("orders", 3)


def offset(number: int) -> Point:
    return Point(PointKind.OFFSET, number)


def tail(number: int) -> Point:
    return Point(PointKind.TAIL, number)


def time_at(timestamp_ms: int) -> Point:
    return Point(PointKind.TIME, timestamp_ms)


def resolve_one(starting: Points, ending: Points, found: int = -1, **bounds: bool) -> OffsetRange:
    ((planned,), losses) = resolve_ranges([STATE], ReadBounds(starting, ending, **bounds), {PLACE: found})
    assert not losses
    return planned


@pytest.mark.parametrize(
    ("starting", "ending", "expected"),
    [
        (EARLIEST, LATEST, (100, 200)),
        ({PLACE: offset(120)}, {PLACE: offset(130)}, (120, 130)),
        ({PLACE: EARLIEST}, {PLACE: LATEST}, (100, 200)),
        (tail(30), LATEST, (170, 200)),
        (tail(30), tail(10), (170, 190)),
        (tail(3000), tail(2000), (100, 100)),
        (tail(10), tail(30), (190, 190)),
        (LATEST, LATEST, (200, 200)),
        ({PLACE: offset(200)}, LATEST, (200, 200)),
    ],
)
def test_offsets_and_tails_become_a_range(starting: Points, ending: Points, expected: tuple[int, int]) -> None:
    planned = resolve_one(starting, ending)
    assert (planned.start, planned.end) == expected
    assert (planned.leader, planned.topic_id, planned.from_ms, planned.until_ms) == ("b:1", b"id", None, None)


def test_times_bound_the_records_and_only_the_start_bounds_the_offsets() -> None:
    assert starting_times({PLACE: time_at(5)}, [STATE]) == {PLACE: 5}
    assert starting_times(EARLIEST, [STATE]) == {}
    planned = resolve_one(time_at(5), time_at(9), found=150)
    assert planned == OffsetRange("orders", 3, 150, 200, "b:1", b"id", 5, 9)
    planned = resolve_one(EARLIEST, {PLACE: time_at(9)})
    assert planned == OffsetRange("orders", 3, 100, 200, "b:1", b"id", None, 9)


def test_a_time_after_the_last_record_is_an_error_or_an_empty_range() -> None:
    with pytest.raises(
        InvalidConfig,
        match=r"orders-3: no record at or after the start, 1970-01-01T00:00:00.005\+00:00 .*start earlier",
    ):
        resolve_one(time_at(5), LATEST)
    planned = resolve_one(time_at(5), LATEST, fails_on_missing_time=False)
    assert (planned.start, planned.end, planned.from_ms) == (200, 200, 5)


@pytest.mark.parametrize("from_ms", [-1, -2, -3, -25_000 * 86_400_000])
def test_a_start_before_1970_is_the_earliest_and_is_not_asked_of_the_broker(from_ms: int) -> None:
    """There -1 would be the latest offset, and -25000 an error."""
    assert starting_times(time_at(from_ms), [STATE]) == {}
    assert starting_times({PLACE: time_at(from_ms), ("orders", 4): time_at(0)}, [STATE]) == {}
    ((planned,), losses) = resolve_ranges([STATE], ReadBounds(time_at(from_ms), LATEST), {})
    assert planned == OffsetRange("orders", 3, 100, 200, "b:1", b"id", from_ms)
    assert not losses


def test_an_empty_partition_has_no_record_after_a_time_before_1970_either() -> None:
    state = STATE._replace(earliest=200)
    with pytest.raises(InvalidConfig, match=r"orders-3: no record at or after the start, 1969-12-31T23:59:59.995"):
        resolve_ranges([state], ReadBounds(time_at(-5), LATEST), {})
    ((planned,), _) = resolve_ranges([state], ReadBounds(time_at(-5), LATEST, fails_on_missing_time=False), {})
    assert (planned.start, planned.end) == (200, 200)


def test_an_end_before_1970_keeps_only_records_before_it() -> None:
    """Those without a timestamp, which have -1, among them: the readers look at each record."""
    planned = resolve_one(EARLIEST, time_at(-1))
    assert (planned.start, planned.end, planned.from_ms, planned.until_ms) == (100, 200, None, -1)
    with pytest.raises(InvalidConfig, match=r"\(times 5 to -1 ms\): the start is after the end"):
        resolve_one(time_at(5), time_at(-1), found=150)


@pytest.mark.parametrize("ending", [LATEST, tail(10), time_at(9), {PLACE: offset(150)}])
def test_a_time_whose_first_record_came_after_the_end_was_asked_for_is_no_loss(ending: Points) -> None:
    """The range is empty, and a stream that starts there reads nothing older than the time."""
    planned = resolve_one(time_at(5), ending, found=203)
    assert (planned.start, planned.end, planned.from_ms) == (203, 203, 5)


def test_an_end_that_is_not_there_is_a_loss_also_when_the_start_is_a_time() -> None:
    with pytest.raises(OffsetOutOfRange, match=r"203 to 250: not there yet .*; end at latest or at 200"):
        resolve_one(time_at(5), {PLACE: offset(250)}, found=203)


def test_an_empty_partition_gives_an_empty_range() -> None:
    ((planned,), _) = resolve_ranges([STATE._replace(earliest=7, latest=7)], ReadBounds(EARLIEST, LATEST))
    assert planned.span == 0


@pytest.mark.parametrize(
    ("starting", "ending", "message", "kept", "lost"),
    [
        (
            offset(99),
            LATEST,
            r"orders-3 offsets 99 to 200: gone before 100 \(broker b:1 has 100 to 200\).*start at earliest or at 100",
            (100, 200),
            [(99, 100)],
        ),
        (
            EARLIEST,
            offset(201),
            r"orders-3 offsets 100 to 201: not there yet \(broker b:1 has 100 to 200\); end at latest or at 200",
            (100, 200),
            [(200, 201)],
        ),
        (
            offset(250),
            offset(260),
            r"orders-3 offset 250: not there yet .*; start at latest or at 200",
            (200, 200),
            [(250, 260)],
        ),
        (
            offset(250),
            LATEST,
            r"orders-3 offset 250: not there yet .*; start at latest or at 200",
            (200, 200),
            [(250, 250)],
        ),
        (offset(10), offset(20), "orders-3 offsets 10 to 20: gone before 100", (100, 100), [(10, 20)]),
        (offset(10), offset(250), "orders-3 offsets 10 to 250: gone", (100, 200), [(10, 100), (200, 250)]),
    ],
)
def test_what_the_log_does_not_have_is_an_error_or_a_loss(
    starting: Point, ending: Point, message: str, kept: tuple[int, int], lost: list[tuple[int, int]]
) -> None:
    points = [{PLACE: point} for point in (starting, ending)]
    with pytest.raises(OffsetOutOfRange, match=message):
        resolve_ranges([STATE], ReadBounds(*points))
    ((planned,), losses) = resolve_ranges([STATE], ReadBounds(*points, fails_on_data_loss=False))
    assert (planned.start, planned.end) == kept
    assert [(loss.start, loss.end) for loss in losses] == lost
    assert all("broker b:1 has 100 to 200" in str(loss) for loss in losses)


def test_the_error_says_how_to_allow_the_loss() -> None:
    bounds = ReadBounds({PLACE: offset(99)}, LATEST, loss_remedy="set it to false", missing_time_remedy="set that")
    with pytest.raises(OffsetOutOfRange, match="start at earliest or at 100, or set it to false"):
        resolve_ranges([STATE], bounds)


def test_a_start_after_its_end_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="orders-3 offsets 150 to 140: the start is after the end"):
        resolve_one({PLACE: offset(150)}, {PLACE: offset(140)})
    with pytest.raises(InvalidConfig, match=r"\(times 9 to 5 ms\): the start is after the end"):
        resolve_one(time_at(9), time_at(5), found=150)


def test_points_must_be_given_for_every_partition_and_for_no_other() -> None:
    states = [STATE, STATE._replace(partition=4)]
    with pytest.raises(InvalidConfig, match="option startingOffsets leaves out orders-4: it must give every partition"):
        resolve_ranges(states, ReadBounds({PLACE: offset(150)}, LATEST))
    unknown = {("orders", n): offset(150) for n in (3, 4, 5, 6)}
    with pytest.raises(InvalidConfig, match="option endingOffsets names unknown orders-5, orders-6"):
        resolve_ranges(states, ReadBounds(EARLIEST, unknown))
    losses = resolve_ranges(states, ReadBounds(EARLIEST, unknown, fails_on_data_loss=False)).losses
    assert losses == [Loss("orders", n, 0, 0, "there is no such partition") for n in (5, 6)]


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
