"""Turns the offsets of a stream into ranges and losses: plain functions, no I/O.

A micro-batch reads from the end of the one before to the end that it was given. Both are in the checkpoint, so a rerun
has the same ranges. Special cases:

- a partition that the start lacks is new, and begins at 0;
- a partition that ends before it starts was recreated with its topic, and begins at 0. If a topic has another id than
  before, `advance` ends a micro-batch at 0, and if a log is known to be cut, at the cut: new records come with the next
  one. The process that planned it knows the cut and reads nothing in between; another process would read the partition
  from its first record.

Offsets of a range that the log does not have are data loss, as are a missing partition and a recreated topic.

For the first micro-batch the checkpoint has only the end until it is committed, and Spark asks again where it started.
So it ends where its start can be derived from its end (see `first_end` and `first_start`).

With a limit (`admit_offsets`, `admit_bytes`), each partition gets a share in proportion to its new data, and at least
something, so that a small partition does not wait until a large one is read, as in Spark's Kafka connector.
"""

from collections.abc import Collection, Mapping, Sequence

from warmlog.points import LATEST, Point, PointKind, Points
from warmlog.ranges.offset_range import OffsetRange, PartitionOffsets, Piece
from warmlog.ranges.resolve import Loss, keep_available
from warmlog_transport.responses import TopicPartition

Offsets = Mapping[TopicPartition, int]


def advance(
    start: Offsets, states: Sequence[PartitionOffsets], recreated: Collection[str], cuts: Offsets
) -> tuple[dict[TopicPartition, int], list[Loss]]:
    """Return the end of every existing partition, as far as a stream can read, and what is lost.

    `recreated` are topics with another id than before. `cuts` are the offsets below `start` where logs were cut, which
    the caller has reported.
    """
    available: dict[TopicPartition, int] = {}
    losses: list[Loss] = []
    for state in states:
        begin = start.get(state.tp)
        if state.tp in cuts:
            available[state.tp] = cuts[state.tp]
            continue
        if begin is None or (begin <= max(state.latest, state.high_watermark or 0) and state.topic not in recreated):
            available[state.tp] = max(state.latest, begin or 0)
            continue
        available[state.tp] = 0 if state.topic in recreated else state.latest
        reason = f"the topic was recreated, or lost its end, after this stream had read to {begin} ({state})"
        losses.append(Loss(*state.tp, begin, begin, reason))
    gone = sorted(start.keys() - available.keys())
    losses += [Loss(*tp, start[tp], start[tp], "the partition is gone") for tp in gone]
    return available, losses


def first_end(start: Offsets, available: Offsets, at_end: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Return `available`, changed so that the start can be derived from it.

    The partitions `at_end`, which start at the end of the log, are not read, and new ones are left out: they begin with
    the second micro-batch.
    """
    return {
        tp: min(start[tp], available[tp]) if tp in at_end else available[tp] for tp in start.keys() & available.keys()
    }


def first_start(found: Offsets, end: Offsets, starting: Points) -> dict[TopicPartition, int]:
    """Return where the first micro-batch, which ends at `end`, had started; `found` is where it would start now.

    A partition that started at the end of the log also ended there (`first_end`): at latest, or below the requested
    offset. If the offset of a time is now after the end, no record before the end has such a time.
    """
    start = dict(found)
    for tp in found.keys() & end.keys():
        point = starting if isinstance(starting, Point) else starting[tp]
        if point == LATEST or (point.kind is PointKind.OFFSET and end[tp] < point.number):
            start[tp] = end[tp]
        elif point.kind is PointKind.TIME:
            start[tp] = min(found[tp], end[tp])
    return start


def stream_ranges(
    start: Offsets, end: Offsets, states: Mapping[TopicPartition, PartitionOffsets]
) -> tuple[list[OffsetRange], list[Loss]]:
    """Return the ranges between two offsets of a stream, and what the log lacks of them."""
    ranges: list[OffsetRange] = []
    losses: list[Loss] = []
    for (topic, partition), until in sorted(end.items()):
        begin = begin_of(start, (topic, partition), until)
        if begin == until:
            continue
        state = states.get((topic, partition))
        if state is None:
            losses.append(Loss(topic, partition, begin, until, "the partition is gone, or its topic was recreated"))
            continue
        kept, lost = keep_available(OffsetRange.of(state, begin, until), state)
        losses += lost
        if kept.span:
            ranges.append(kept)
    return ranges, losses


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
    return sum(max(0, end - begin_of(start, tp, end)) for tp, end in available.items()) >= min_offsets


def begin_of(start: Offsets, tp: TopicPartition, end: int) -> int:
    """Return where a micro-batch that ends at `end` begins in a partition: at 0 if it is new or was recreated."""
    begin = start.get(tp, 0)
    return begin if begin <= end else 0
