"""How much of the new data a micro-batch reads: plain functions, no I/O.

Each partition gets a share in proportion to its new data, and at least something, so that a small partition does not
wait until a large one is read, as in Spark's Kafka connector.
"""

from collections.abc import Mapping, Sequence

from warmlog.ranges.offset_range import Piece
from warmlog_transport.responses import TopicPartition

Offsets = Mapping[TopicPartition, int]


def admit_offsets(start: Offsets, available: Offsets, max_offsets: int) -> dict[TopicPartition, int]:
    """Return where each partition of `available` ends in this micro-batch of `max_offsets` offsets in total.

    It has more offsets only if more partitions than that have new ones. A partition that `start` lacks, or that ends
    before its start and so was recreated, begins at 0.
    """
    begins = {tp: begin_of(start, tp, end) for tp, end in available.items()}
    new = {tp: end - begins[tp] for tp, end in available.items() if end > begins[tp]}
    total = sum(new.values())
    if total <= max_offsets:
        return dict(available)
    shares = {tp: max(1, count * max_offsets // total) for tp, count in new.items()}
    excess = sum(shares.values()) - max_offsets
    for tp in sorted(shares, key=lambda tp: -shares[tp]):
        given_up = min(max(excess, 0), shares[tp] - 1)
        shares[tp] -= given_up
        excess -= given_up
    return {tp: begins[tp] + shares[tp] if tp in shares else end for tp, end in available.items()}


def admit_bytes(
    available: Offsets, pieces: Mapping[TopicPartition, Sequence[Piece]], max_bytes: int
) -> dict[TopicPartition, int]:
    """Return where each partition of `available` ends in this micro-batch of about `max_bytes` in total.

    `pieces` are the stored batches of each partition from its start on; at least the first one is read. A partition
    without pieces is read to its end.
    """
    sizes = {tp: sum(piece.size_bytes for piece in own) for tp, own in pieces.items()}
    total = sum(sizes.values())
    if total <= max_bytes:
        return dict(available)
    ends = dict(available)
    for tp, own in pieces.items():
        room = sizes[tp] * max_bytes // total
        for number, piece in enumerate(own):
            room -= piece.size_bytes
            if room < 0 and number:
                break
            ends[tp] = min(piece.end, available[tp])
    return ends


def is_enough(start: Offsets, available: Offsets, min_offsets: int) -> bool:
    """Whether at least `min_offsets` offsets are new."""
    return sum(max(0, end - begin_of(start, tp, end)) for tp, end in available.items()) >= min_offsets


def begin_of(start: Offsets, tp: TopicPartition, end: int) -> int:
    """Return where a micro-batch that ends at `end` begins in a partition: at 0 if it is new or was recreated."""
    begin = start.get(tp, 0)
    return begin if begin <= end else 0
