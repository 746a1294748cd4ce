"""What is read: ranges of offsets, the pieces that they can be split into, and the state of their partitions."""

from collections.abc import Sequence
from typing import NamedTuple

from warmlog_protocol.messages import NO_LEADER_EPOCH, FoundSplit
from warmlog_transport.responses import TopicPartition

LARGEST_PARTITION = 2**31 - 1


class PartitionOffsets(NamedTuple):
    """The leader of a partition and the offsets that can be read, as the broker says."""

    topic: str
    partition: int
    topic_id: bytes
    leader: str
    earliest: int
    latest: int
    high_watermark: int | None = None
    """Only with read_committed, where `latest` is the start of the first open transaction."""
    leader_epoch: int = NO_LEADER_EPOCH
    """At the time when `latest` was looked up."""
    replicas: tuple[str, ...] = ()
    """All brokers that have the partition: one of them leads it after the leader."""

    @property
    def tp(self) -> TopicPartition:
        return self.topic, self.partition

    def __str__(self) -> str:
        return f"broker {self.leader} has {self.earliest} to {self.latest}"


class OffsetRange(NamedTuple):
    """`[start, end)` of one partition, and the broker (host:port) that serves it.

    `topic_id` is of the topic when the plan was made: a recreated topic has another. Only records with a timestamp in
    `[from_ms, until_ms)` are read; None leaves a side open.

    `leader_epoch` is of the time when the plan was made and all of the range existed: records of a later epoch were
    written after a truncation. `start_epoch` is of the batch before `start`, as the reader had it. -1 if unknown.

    `replicas` are asked who leads if `leader` does not any more.
    """

    topic: str
    partition: int
    start: int
    end: int
    leader: str = ""
    topic_id: bytes = b""
    from_ms: int | None = None
    until_ms: int | None = None
    leader_epoch: int = NO_LEADER_EPOCH
    start_epoch: int = NO_LEADER_EPOCH
    replicas: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, state: PartitionOffsets, start: int, end: int, from_ms: int | None = None, until_ms: int | None = None
    ) -> "OffsetRange":
        """Return a range of the partition that has this state."""
        return cls(
            *state.tp,
            start,
            end,
            state.leader,
            state.topic_id,
            from_ms,
            until_ms,
            state.leader_epoch,
            replicas=state.replicas,
        )

    @property
    def tp(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def span(self) -> int:
        """How many offsets it spans; there may be fewer records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets {self.start} to {self.end}"


class Piece(NamedTuple):
    """Consecutive stored batches up to the offset `end`, where a range may be split."""

    end: int
    size_bytes: int


class SizedRange(NamedTuple):
    """A range and its pieces. The last one ends where the range does."""

    range: OffsetRange
    pieces: tuple[Piece, ...]

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)


def sized_ranges(planned: OffsetRange, splits: Sequence[FoundSplit]) -> list[SizedRange]:
    """Return what is left to read of `planned` without the pieces that have no record within its times.

    Several ranges if pieces in the middle are left out. Offsets after the last split are kept.
    """
    splits = list(splits)
    if (splits[-1].end_offset if splits else planned.start) < planned.end:
        splits.append(FoundSplit(planned.end, 0))
    runs: list[tuple[int, list[Piece]]] = []
    start = planned.start
    for split in splits:
        if not _is_outside(planned, split):
            if not runs or runs[-1][1][-1].end != start:
                runs.append((start, []))
            runs[-1][1].append(Piece(split.end_offset, split.size_bytes))
        start = split.end_offset
    return [SizedRange(planned._replace(start=start, end=run[-1].end), tuple(run)) for start, run in runs]


def _is_outside(planned: OffsetRange, split: FoundSplit) -> bool:
    """Whether no record of the split can be within the times of the range."""
    is_too_old = (
        planned.from_ms is not None and split.max_timestamp_ms is not None and split.max_timestamp_ms < planned.from_ms
    )
    is_too_young = (
        planned.until_ms is not None
        and split.min_timestamp_ms is not None
        and split.min_timestamp_ms >= planned.until_ms
    )
    return is_too_old or is_too_young
