"""Plans: every offset is read once, whatever is asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.errors import InvalidConfig, OffsetOutOfRange
from warmlog.spark.options import EARLIEST, LATEST
from warmlog.spark.plan import OffsetRange, PartitionState, resolve_ranges, split_ranges

STATE = PartitionState("orders", 3, b"id", "b:1", earliest=100, latest=200)

spans = st.integers(0, 3) | st.integers(0, 2_000) | st.integers(10**9, 10**12)
range_lists = st.lists(st.tuples(st.integers(0, 10**12), spans), max_size=8).map(
    lambda pairs: [OffsetRange("t", i, start, start + span) for i, (start, span) in enumerate(pairs)]
)


@given(ranges=range_lists, min_partitions=st.none() | st.integers(1, 300))
def test_every_offset_is_in_one_piece_only_and_there_are_as_many_pieces_as_asked_for(
    ranges: list[OffsetRange], min_partitions: int | None
) -> None:
    pieces = split_ranges(ranges, min_partitions)
    assert all(piece.span > 0 for piece in pieces)
    for whole in ranges:
        own = [piece for piece in pieces if piece.partition == whole.partition]
        borders = [whole.start, *(piece.end for piece in own)]
        assert [piece.start for piece in own] == borders[:-1]
        assert borders[-1] == whole.end
    occupied = sum(1 for whole in ranges if whole.span)
    total = sum(whole.span for whole in ranges)
    assert len(pieces) == min(max(min_partitions or 0, occupied), total)


@given(ranges=range_lists, min_partitions=st.integers(1, 300))
def test_no_piece_is_much_larger_than_another_that_was_cut(ranges: list[OffsetRange], min_partitions: int) -> None:
    pieces = split_ranges(ranges, min_partitions)
    largest = max((piece.span for piece in pieces), default=0)
    for whole in ranges:
        own = [piece.span for piece in pieces if piece.partition == whole.partition]
        if len(own) > 1:
            assert max(own) - min(own) <= 1
            assert largest <= 2 * max(own) + 2


def test_pieces_keep_what_the_reader_has_to_know() -> None:
    whole = OffsetRange("t", 5, 0, 10, "b:1", b"id")
    assert split_ranges([whole], 2) == [whole._replace(end=5), whole._replace(start=5)]


def test_ranges_go_from_the_earliest_to_the_latest_offset_unless_told_otherwise() -> None:
    assert resolve_ranges([STATE], EARLIEST, LATEST) == [OffsetRange("orders", 3, 100, 200, "b:1", b"id")]
    (planned,) = resolve_ranges([STATE], {"orders": {3: 120}}, {"orders": {3: 130}})
    assert (planned.start, planned.end) == (120, 130)
    (planned,) = resolve_ranges([STATE], {"orders": {3: EARLIEST}}, {"orders": {3: LATEST}})
    assert (planned.start, planned.end) == (100, 200)


def test_an_empty_partition_gives_an_empty_range() -> None:
    (planned,) = resolve_ranges([STATE._replace(earliest=7, latest=7)], EARLIEST, LATEST)
    assert planned.span == 0
    assert split_ranges([planned], 4) == []


@pytest.mark.parametrize(
    ("starting", "ending", "message"),
    [
        (
            {"orders": {3: 99}},
            LATEST,
            "orders-3 offsets 99 to 200: gone before 100 .broker b:1 has 100 to 200.*start at",
        ),
        (
            EARLIEST,
            {"orders": {3: 201}},
            "orders-3 offsets 100 to 201: not there yet .broker b:1 has 100 to 200.*end at",
        ),
        ({"orders": {3: 250}}, {"orders": {3: 260}}, "orders-3 offsets 250 to 260: not there yet"),
    ],
)
def test_a_range_that_is_not_in_the_log_is_refused_with_what_is(
    starting: dict[str, dict[int, int]], ending: dict[str, dict[int, int]], message: str
) -> None:
    with pytest.raises(OffsetOutOfRange, match=message):
        resolve_ranges([STATE], starting, ending)


def test_a_start_after_its_end_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="orders-3 offsets 150 to 140: the start lies after the end"):
        resolve_ranges([STATE], {"orders": {3: 150}}, {"orders": {3: 140}})


def test_offsets_must_be_given_for_every_partition_and_for_no_other() -> None:
    states = [STATE, STATE._replace(partition=4)]
    with pytest.raises(InvalidConfig, match="option startingOffsets leaves out orders-4: it must give every partition"):
        resolve_ranges(states, {"orders": {3: 150}}, LATEST)
    with pytest.raises(InvalidConfig, match="option endingOffsets names unknown orders-5, orders-6"):
        resolve_ranges(states, EARLIEST, {"orders": {3: 150, 4: 150, 5: 1, 6: 1}})
