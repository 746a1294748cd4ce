"""From the offsets of a stream to ranges, and what was lost in between: plain functions, no I/O.

A micro-batch goes from the offsets where the last one ended to the offsets that it was given. Both stand in the
checkpoint, so a micro-batch that is run again has the same ranges. Two things are not plain:

- a partition that the start lacks is new, and begins at 0;
- a partition that ends before it starts was made anew with its topic, and begins at 0. `advance` ends a micro-batch so,
  at 0, where a topic has another id than before, and where a log was cut, if that is known: what is new comes with the
  next one. The process that has planned it knows the cut and reads nothing in between; another one would read the
  partition from its first record.

What the log does not have of a range is data loss, as is a partition that is gone and a topic made anew.

The first micro-batch is another matter: until it is committed the checkpoint has its end alone, and Spark asks anew
where it started. So it ends where that can be told from its end (see `first_end` and `first_start`).
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from warmlog.ranges.offset_range import OffsetRange, PartitionState, TopicPartition
from warmlog.ranges.points import LATEST, Point, PointKind, Points
from warmlog.ranges.resolve import Loss, keep_available
from warmlog.spark.stream.admission import begin_of

Offsets = Mapping[TopicPartition, int]


class Advance(NamedTuple):
    """How far a stream could go, and what is lost on the way."""

    available: dict[TopicPartition, int]
    losses: list[Loss]


def advance(
    start: Offsets,
    states: Sequence[PartitionState],
    made_anew: Collection[str],
    cuts: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> Advance:
    """The end of every partition that there is.

    `made_anew` are topics that have another id than before. `cuts` says where logs were cut below `start`, which has
    been reported.
    """
    available: dict[TopicPartition, int] = {}
    losses: list[Loss] = []
    for state in states:
        begin = start.get(state.place)
        if state.place in cuts:
            available[state.place] = cuts[state.place]
            continue
        if begin is None or (begin <= max(state.latest, state.high_watermark or 0) and state.topic not in made_anew):
            available[state.place] = max(state.latest, begin or 0)
            continue
        available[state.place] = 0 if state.topic in made_anew else state.latest
        reason = f"the topic was made anew, or lost its end, after this stream had read to {begin} ({state})"
        losses.append(Loss(*state.place, begin, begin, reason))
    gone = sorted(start.keys() - available.keys())
    losses += [Loss(*place, start[place], start[place], "the partition is gone") for place in gone]
    return Advance(available, losses)


def first_end(start: Offsets, available: Offsets, at_end: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """`available`, as far as the start can be told again from it.

    Nothing is read of the partitions `at_end`, which started at the end of the log, nor of one that came since then: it
    begins with the second micro-batch.
    """
    return {
        place: min(start[place], available[place]) if place in at_end else available[place]
        for place in start.keys() & available.keys()
    }


def first_start(found: Offsets, end: Offsets, starting: Points) -> dict[TopicPartition, int]:
    """Where a first micro-batch started that ends at `end`, when it is run again; `found` is where it would start now.

    What started at the end of the log ended there, too (`first_end`): at latest, or below the offset that was asked
    for. A time found behind the end says that nothing before the end is so young.
    """
    start = dict(found)
    for place in found.keys() & end.keys():
        point = _point(starting, place)
        if point == LATEST or (point.kind is PointKind.OFFSET and end[place] < point.number):
            start[place] = end[place]
        elif point.kind is PointKind.TIME:
            start[place] = min(found[place], end[place])
    return start


def _point(starting: Points, place: TopicPartition) -> Point:
    return starting if isinstance(starting, Point) else starting[place]


class StreamRanges(NamedTuple):
    """The ranges of a micro-batch, and what is missing of them."""

    ranges: list[OffsetRange]
    losses: list[Loss]


def stream_ranges(start: Offsets, end: Offsets, states: Mapping[TopicPartition, PartitionState]) -> StreamRanges:
    """What lies between two offsets of a stream, as far as the log has it."""
    ranges: list[OffsetRange] = []
    losses: list[Loss] = []
    for (topic, partition), until in sorted(end.items()):
        begin = begin_of(start, (topic, partition), until)
        if begin == until:
            continue
        state = states.get((topic, partition))
        if state is None:
            losses.append(Loss(topic, partition, begin, until, "the partition is gone, or its topic was made anew"))
            continue
        planned = OffsetRange(
            topic, partition, begin, until, state.leader, state.topic_id, leader_epoch=state.leader_epoch
        )
        kept, lost = keep_available(planned, state)
        losses += lost
        if kept.span:
            ranges.append(kept)
    return StreamRanges(ranges, losses)
