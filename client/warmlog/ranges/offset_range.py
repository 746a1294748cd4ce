"""What is read: stretches of partitions, and what the broker says of the partitions that they lie in."""

from typing import NamedTuple

from warmlog_protocol.messages import NO_LEADER_EPOCH

TopicPartition = tuple[str, int]

LARGEST_PARTITION = 2**31 - 1
LARGEST_OFFSET = 2**63 - 1
"""What the protocol has room for."""


class PartitionState(NamedTuple):
    """What the broker says of one partition: who leads it, and what a reader can have of it."""

    topic: str
    partition: int
    topic_id: bytes
    leader: str
    earliest: int
    latest: int
    high_watermark: int | None = None
    """Where it is asked for: with committed records only, `latest` is where the first open transaction begins."""
    leader_epoch: int = NO_LEADER_EPOCH
    """The one in force when `latest` was asked for."""

    @property
    def place(self) -> TopicPartition:
        return self.topic, self.partition

    def __str__(self) -> str:
        return f"broker {self.leader} has {self.earliest} to {self.latest}"


class OffsetRange(NamedTuple):
    """`[start, end)` of one partition, and the broker (host:port) that serves it.

    `topic_id` is that of the topic when the plan was made: a topic that was deleted and made anew has another. Of the
    records in it, only those count whose timestamp lies in `[from_ms, until_ms)`; None leaves a side open.

    `leader_epoch` is the one that was in force when the plan was made, and all of the range there: what is of a later
    one was written after the log had been cut. `start_epoch` is that of the batch before `start`, as the reader had it.
    -1 where they are not known.
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

    @property
    def place(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def span(self) -> int:
        """How many offsets it spans; there may be fewer records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets {self.start} to {self.end}"
