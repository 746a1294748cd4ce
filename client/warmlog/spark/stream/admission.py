"""How much of what there is a micro-batch takes: plain functions, no I/O.

Each partition gets its share in proportion to what it has that is new. One that has anything gets something, so that a
small partition does not wait behind a large one until that is empty, as in Spark's Kafka connector.
"""

from collections.abc import Mapping, Sequence

from warmlog.ranges.offset_range import Piece, TopicPartition

Offsets = Mapping[TopicPartition, int]


def admit_offsets(start: Offsets, available: Offsets, max_offsets: int) -> dict[TopicPartition, int]:
    """Where each partition of `available` ends in this micro-batch, of `max_offsets` offsets together.

    More only where there are more partitions with something new than that. A partition that `start` lacks begins at 0;
    one that ends before its start is made anew and begins at 0, too.
    """
    begins = {place: begin_of(start, place, end) for place, end in available.items()}
    new = {place: end - begins[place] for place, end in available.items() if end > begins[place]}
    total = sum(new.values())
    if total <= max_offsets:
        return dict(available)
    shares = {place: max(1, count * max_offsets // total) for place, count in new.items()}
    excess = sum(shares.values()) - max_offsets
    for place in sorted(shares, key=lambda place: -shares[place]):
        given_up = min(max(excess, 0), shares[place] - 1)
        shares[place] -= given_up
        excess -= given_up
    return {place: begins[place] + shares[place] if place in shares else end for place, end in available.items()}


def admit_bytes(
    available: Offsets, pieces: Mapping[TopicPartition, Sequence[Piece]], max_bytes: int
) -> dict[TopicPartition, int]:
    """Where each partition of `available` ends in this micro-batch, of about `max_bytes` together.

    `pieces` are the stored batches of each partition from its start on, as the broker told; at least the first one is
    taken. A partition without pieces is taken as it is.
    """
    sizes = {place: sum(piece.size_bytes for piece in own) for place, own in pieces.items()}
    total = sum(sizes.values())
    if total <= max_bytes:
        return dict(available)
    ends = dict(available)
    for place, own in pieces.items():
        room = sizes[place] * max_bytes // total
        for number, piece in enumerate(own):
            room -= piece.size_bytes
            if room < 0 and number:
                break
            ends[place] = min(piece.end, available[place])
    return ends


def is_enough(start: Offsets, available: Offsets, min_offsets: int) -> bool:
    """Whether at least so many offsets are new."""
    return sum(max(0, end - begin_of(start, place, end)) for place, end in available.items()) >= min_offsets


def begin_of(start: Offsets, place: TopicPartition, end: int) -> int:
    """Where a micro-batch that ends at `end` begins in a partition: 0 in one that is new, or made anew."""
    begin = start.get(place, 0)
    return begin if begin <= end else 0
