"""Which offsets each Spark task reads: plain functions, no I/O.

An `OffsetRange` is one stretch of one partition, its end exclusive. A plan is made once for a `load()`; a task that
Spark runs again reads the same offsets again.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from warmlog.spark.options import EARLIEST, LATEST, Offsets
from warmlog_protocol.errors import InvalidConfig, OffsetOutOfRange


class PartitionState(NamedTuple):
    """What the broker says of one partition: who leads it, and what a reader can have of it."""

    topic: str
    partition: int
    topic_id: bytes
    leader: str
    earliest: int
    latest: int


class OffsetRange(NamedTuple):
    """`[start, end)` of one partition, and the broker (host:port) that serves it.

    `topic_id` is that of the topic when the plan was made: a topic that was deleted and made anew has another.
    """

    topic: str
    partition: int
    start: int
    end: int
    leader: str = ""
    topic_id: bytes = b""

    @property
    def span(self) -> int:
        """How many offsets it spans; there may be fewer records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets {self.start} to {self.end}"


def resolve_ranges(states: Sequence[PartitionState], starting: Offsets, ending: Offsets) -> list[OffsetRange]:
    """The range of every partition, empty ones included.

    Raises InvalidConfig when offsets are given for other partitions than there are or a start lies after its end,
    OffsetOutOfRange when a range is not, or no longer, in the log.
    """
    for name, offsets in (("startingOffsets", starting), ("endingOffsets", ending)):
        _check_partitions(name, offsets, states)
    ranges = []
    for state in states:
        start = _resolve(starting, state)
        end = _resolve(ending, state)
        planned = OffsetRange(state.topic, state.partition, start, end, state.leader, state.topic_id)
        _check_bounds(planned, state)
        ranges.append(planned)
    return ranges


def split_ranges(ranges: Sequence[OffsetRange], min_partitions: int | None) -> list[OffsetRange]:
    """The ranges cut so that there are `min_partitions`, or one an offset where there are fewer; empty ones are gone.

    Cuts are by offset count and in order: each next cut goes to the range whose pieces are the largest so far.
    """
    ranges = [planned for planned in ranges if planned.span > 0]
    total = sum(planned.span for planned in ranges)
    wanted = min(max(min_partitions or 0, len(ranges)), total)
    pieces = _share_pieces([planned.span for planned in ranges], wanted)
    return [piece for planned, count in zip(ranges, pieces, strict=True) for piece in _cut(planned, count)]


def _check_partitions(name: str, offsets: Offsets, states: Sequence[PartitionState]) -> None:
    if isinstance(offsets, int):
        return
    given = {(topic, partition) for topic, by_partition in offsets.items() for partition in by_partition}
    existing = {(state.topic, state.partition) for state in states}
    for problem, partitions in (("leaves out", existing - given), ("names unknown", given - existing)):
        if partitions:
            listed = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions))
            raise InvalidConfig(f"option {name} {problem} {listed}: it must give every partition an offset")


def _resolve(offsets: Offsets, state: PartitionState) -> int:
    offset = offsets if isinstance(offsets, int) else offsets[state.topic][state.partition]
    return {EARLIEST: state.earliest, LATEST: state.latest}.get(offset, offset)


def _check_bounds(planned: OffsetRange, state: PartitionState) -> None:
    where = f"broker {state.leader} has {state.earliest} to {state.latest}"
    if planned.start < state.earliest:
        raise OffsetOutOfRange(
            f"{planned}: gone before {state.earliest} ({where}): retention or DeleteRecords removed them; "
            f"start at earliest or at {state.earliest}"
        )
    if planned.start > planned.end:
        raise InvalidConfig(f"{planned}: the start lies after the end ({where})")
    if planned.end > state.latest:
        raise OffsetOutOfRange(f"{planned}: not there yet ({where}); end at latest or at {state.latest}")


def _share_pieces(counts: Sequence[int], wanted: int) -> list[int]:
    """How many pieces each count is cut into: at least 1, at most itself, `wanted` together; 0 for no counts.

    Largest remainder: in proportion first, and what is left one by one to where the pieces are largest. Needs
    len(counts) <= wanted <= sum(counts).
    """
    total = sum(counts)
    pieces = [max(1, count * wanted // total) for count in counts]
    while (missing := wanted - sum(pieces)) != 0:
        step = 1 if missing > 0 else -1
        movable = [i for i, (count, n) in enumerate(zip(counts, pieces, strict=True)) if 1 <= n + step <= count]
        chosen = (max if step > 0 else min)(movable, key=lambda i: counts[i] / pieces[i])
        pieces[chosen] += step
    return pieces


def _cut(planned: OffsetRange, pieces: int) -> list[OffsetRange]:
    """`pieces` ranges, as even as they get, that together are `planned`."""
    borders = [planned.start + planned.span * i // pieces for i in range(pieces + 1)]
    return [planned._replace(start=start, end=end) for start, end in pairwise(borders)]
