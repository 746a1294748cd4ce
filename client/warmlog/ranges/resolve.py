"""Points become ranges: pure functions of what the user requests and what the broker has.

Ranges are final: later steps do not ask the broker again where they start and end. Offsets that the user names and the
log does not have are data loss: an error or, if the user allows it, a `Loss` to warn of.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from warmlog.points import Point, PointKind, Points, looked_up_ms, offset_of
from warmlog.ranges.offset_range import OffsetRange, PartitionOffsets
from warmlog_protocol.errors import InvalidConfig, OffsetOutOfRange
from warmlog_transport.responses import TopicPartition

REMOVED = "retention or DeleteRecords removed them"


@dataclass(frozen=True)
class ReadBounds:
    """What is requested, and what to do if it does not exist."""

    starting: Points
    ending: Points
    starting_name: str = "option startingOffsets"
    ending_name: str = "option endingOffsets"
    fails_on_data_loss: bool = True
    fails_on_missing_time: bool = True
    """Whether a starting time after the last record is an error; else nothing is read."""
    loss_remedy: str = ""
    """How the user allows data loss, for the error message."""
    missing_time_remedy: str = ""


class Loss(NamedTuple):
    """Offsets `[start, end)` that were requested and cannot be read, and why."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets {self.start} to {self.end}: {self.reason}"


class Resolved(NamedTuple):
    """A range for each partition, empty ones included, and what is missing."""

    ranges: list[OffsetRange]
    losses: list[Loss]


def starting_times(starting: Points, states: Sequence[PartitionOffsets]) -> dict[TopicPartition, int]:
    """Return the times to look up at the broker, by partition, before ranges can be resolved."""
    points = {state.tp: point for state in states if (point := _point(starting, state)) is not None}
    return {tp: time_ms for tp, point in points.items() if (time_ms := looked_up_ms(point)) is not None}


def resolve_ranges(
    states: Sequence[PartitionOffsets], bounds: ReadBounds, offset_of_time: Mapping[TopicPartition, int] | None = None
) -> Resolved:
    """Return the ranges of all partitions.

    `offset_of_time` is the broker's response for `starting_times`, -1 if there is no such record. Raises InvalidConfig
    if the points do not fit the partitions, a start is after its end, or no record is at or after a starting time;
    OffsetOutOfRange for data loss unless that is allowed.
    """
    lost: list[Loss] = []
    for name, points in ((bounds.starting_name, bounds.starting), (bounds.ending_name, bounds.ending)):
        lost += _missing_partitions(name, points, states, fails=bounds.fails_on_data_loss)
    ranges = []
    for state in states:
        planned = _range_of(state, bounds, offset_of_time or {})
        kept, losses = keep_available(planned, state)
        if planned.from_ms is not None and state.latest < planned.start == planned.end:
            # The first record of the starting time came after the end of the log was looked up: nothing is lost, the
            # range is empty, at that record, where a stream starts.
            kept, losses = planned, []
        if losses and bounds.fails_on_data_loss:
            raise OffsetOutOfRange(_in_words(planned, state, bounds.loss_remedy))
        ranges.append(kept)
        lost += losses
    return Resolved(ranges, lost)


def keep_available(planned: OffsetRange, state: PartitionOffsets) -> tuple[OffsetRange, list[Loss]]:
    """Return what the log has of `planned`, and what is missing."""
    lost: list[Loss] = []
    start, end = planned.start, planned.end
    if start < state.earliest:
        lost.append(Loss(*planned.tp, start, min(state.earliest, end), f"gone: {REMOVED} ({state})"))
    if max(start, end) > state.latest:
        lost.append(Loss(*planned.tp, max(start, state.latest), max(start, end), f"not there ({state})"))
    start = min(max(start, state.earliest), state.latest)
    return planned._replace(start=start, end=max(start, min(end, state.latest))), lost


def _in_words(planned: OffsetRange, state: PartitionOffsets, remedy: str) -> str:
    remedy = f", or {remedy}" if remedy else ""
    if planned.start < state.earliest:
        return (
            f"{planned}: gone before {state.earliest} ({state}): {REMOVED}; "
            f"start at earliest or at {state.earliest}{remedy}"
        )
    if planned.start > state.latest and planned.from_ms is None:
        where = f"{state.topic}-{state.partition} offset {planned.start}"
        return f"{where}: not there yet ({state}); start at latest or at {state.latest}{remedy}"
    return f"{planned}: not there yet ({state}); end at latest or at {state.latest}{remedy}"


def _point(points: Points, state: PartitionOffsets) -> Point | None:
    return points if isinstance(points, Point) else points.get(state.tp)


def _missing_partitions(name: str, points: Points, states: Sequence[PartitionOffsets], *, fails: bool) -> list[Loss]:
    """The partitions in `points` that do not exist. Raises InvalidConfig if it leaves out one that does."""
    if isinstance(points, Point):
        return []
    existing = {state.tp for state in states}
    for problem, partitions in (("leaves out", existing - points.keys()), ("names unknown", points.keys() - existing)):
        if partitions and (fails or problem == "leaves out"):
            listed = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions))
            raise InvalidConfig(f"{name} {problem} {listed}: it must give every partition that is read a value")
    gone = sorted(points.keys() - existing)
    return [Loss(topic, partition, 0, 0, "there is no such partition") for topic, partition in gone]


def _range_of(state: PartitionOffsets, bounds: ReadBounds, offset_of_time: Mapping[TopicPartition, int]) -> OffsetRange:
    starting, ending = _point(bounds.starting, state), _point(bounds.ending, state)
    assert starting is not None
    assert ending is not None
    found = offset_of_time.get(state.tp, -1)
    start = offset_of(starting, state.earliest, state.latest, found if found >= 0 else None)
    end = state.latest if ending.kind is PointKind.TIME else offset_of(ending, state.earliest, state.latest, None)
    from_ms = starting.number if starting.kind is PointKind.TIME else None
    until_ms = ending.number if ending.kind is PointKind.TIME else None
    planned = OffsetRange.of(state, start, end, from_ms, until_ms)
    is_time_upside_down = from_ms is not None and until_ms is not None and from_ms > until_ms
    if is_time_upside_down or (start > end and starting.kind is ending.kind is PointKind.OFFSET):
        times = f" (times {from_ms} to {until_ms} ms)" if is_time_upside_down else ""
        raise InvalidConfig(f"{planned}{times}: the start is after the end ({state})")
    is_missing = from_ms is not None and (state.earliest >= state.latest if from_ms < 0 else found < 0)
    if bounds.fails_on_missing_time and is_missing:
        raise InvalidConfig(
            f"{state.topic}-{state.partition}: no record at or after the start, {starting} ({state}); "
            f"start earlier{f', or {bounds.missing_time_remedy}' if bounds.missing_time_remedy else ''}"
        )
    is_out_of_log = starting.kind is PointKind.OFFSET and start > state.latest
    return planned if end >= start or is_out_of_log else planned._replace(end=start)
