"""How a micro-batch's limit is shared out."""

from hypothesis import given
from hypothesis import strategies as st

from warmlog.ranges.offset_range import Piece
from warmlog.spark.stream.ranges import admit_bytes, admit_offsets, begin_of, is_enough
from warmlog_transport.responses import TopicPartition

places = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 12))
starts = st.dictionaries(places, st.integers(0, 1000), max_size=8)
growths = st.dictionaries(places, st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 10**6)), max_size=8)


@given(start=starts, growth=growths, limit=st.integers(1, 10_000))
def test_the_limit_is_shared_in_proportion_and_nobody_is_left_out(
    start: dict[TopicPartition, int], growth: dict[TopicPartition, int], limit: int
) -> None:
    available = {place: start.get(place, 0) + more for place, more in growth.items()}
    end = admit_offsets(start, available, limit)
    taken = {place: end[place] - start.get(place, 0) for place in available}
    new = {place: more for place, more in growth.items() if more}
    assert end.keys() == available.keys()
    assert all(0 <= taken[place] <= growth[place] for place in available)
    assert all(taken[place] >= 1 for place in new)
    assert sum(taken.values()) <= max(limit, len(new))
    assert sum(taken.values()) >= min(limit, sum(new.values())) - len(new)


@given(start=starts, growth=growths, limit=st.integers(1000, 10**6))
def test_micro_batches_come_to_the_end(
    start: dict[TopicPartition, int], growth: dict[TopicPartition, int], limit: int
) -> None:
    available = {place: start.get(place, 0) + more for place, more in growth.items()}
    position = dict(start)
    for _ in range(sum(growth.values()) // (limit // 2) + 8 + 1):
        position |= admit_offsets(position, available, limit)
    assert {place: position.get(place, 0) for place in available} == available


piece_lists = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 10_000)), max_size=10)


@given(lists=st.dictionaries(places, piece_lists, max_size=5), limit=st.integers(1, 30_000))
def test_a_limit_in_bytes_ends_partitions_between_stored_batches(
    lists: dict[TopicPartition, list[tuple[int, int]]], limit: int
) -> None:
    pieces: dict[TopicPartition, list[Piece]] = {}
    for place, own in lists.items():
        ends = [sum(count for count, _ in own[: number + 1]) for number in range(len(own))]
        pieces[place] = [Piece(end, size) for end, (_, size) in zip(ends, own, strict=True)]
    available = {place: own[-1].end if own else 0 for place, own in pieces.items()}
    end = admit_bytes(available, pieces, limit)
    taken = 0
    for place, own in pieces.items():
        inside = [piece for piece in own if piece.end <= end[place]]
        assert not own or (inside and inside[-1].end == end[place])
        taken += sum(piece.size_bytes for piece in inside[1:])
    assert taken <= limit


def test_a_partition_that_is_new_or_made_anew_begins_at_0() -> None:
    start = {("t", 0): 50}
    assert begin_of(start, ("t", 0), 60) == 50
    assert begin_of(start, ("t", 0), 7) == 0
    assert begin_of(start, ("t", 1), 7) == 0
    assert admit_offsets(start, {("t", 0): 7, ("t", 1): 7}, 6) == {("t", 0): 3, ("t", 1): 3}


def test_enough_is_counted_over_all_partitions() -> None:
    start = {("t", 0): 50}
    assert is_enough(start, {("t", 0): 55, ("t", 1): 5}, 10)
    assert not is_enough(start, {("t", 0): 55, ("t", 1): 5}, 11)
