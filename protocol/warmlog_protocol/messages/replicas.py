"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders: what operators want of replicas.

A broker that is alone has all of them, and leads every partition.
"""

from msgspec import field

from warmlog_protocol.messages.base import Int32, Message, PartitionResult
from warmlog_protocol.messages.inspection import InspectedPartition


class ReplicasToAlter(Message, frozen=True):
    """The brokers that a partition is on from now on, the preferred leader first. None: those of before the move that
    is under way, which is taken back."""

    topic: str
    partition: Int32
    replicas: list[Int32] | None


class AlterPartitionReassignmentsRequest(Message, frozen=True):
    """Move partitions to other brokers. With `keeps_count` each has as many replicas as before. The response comes
    after `timeout_ms` at the latest."""

    partitions: list[ReplicasToAlter]
    keeps_count: bool = False
    timeout_ms: Int32 = 30_000


class AlterPartitionReassignmentsResponse(Message, frozen=True):
    """One result for each partition, in the order of the request. Without an error its move is ordered,
    and goes on after a restart."""

    partitions: list[PartitionResult]


class ListPartitionReassignmentsRequest(Message, frozen=True):
    """Ask which of these partitions, or of all (None), are moved."""

    partitions: list[InspectedPartition] | None = None


class Reassignment(Message, frozen=True):
    """A partition that is moved. `replicas` has all its brokers, also those that get a replica, or that lose theirs."""

    topic: str
    partition: int
    replicas: list[int]
    adding: list[int] = field(default_factory=list)
    removing: list[int] = field(default_factory=list)


class ListPartitionReassignmentsResponse(Message, frozen=True):
    """The partitions that are moved, others not."""

    partitions: list[Reassignment]


class ElectLeadersRequest(Message, frozen=True):
    """Let the first replica of each of these partitions lead, or of all (None) of which it does not.

    With `is_unclean`, if a partition has no leader, let a replica lead that may not have all records: what it does not
    have is lost. The response comes when it is done, after half of `timeout_ms` and little more at the latest.
    """

    partitions: list[InspectedPartition] | None = None
    is_unclean: bool = False
    timeout_ms: Int32 = 30_000


class ElectLeadersResponse(Message, frozen=True):
    """One result for each partition, in the order of the request, or for each that needed an election, of all.

    What is not done in time is REQUEST_TIMED_OUT, and not wanted any more.
    """

    partitions: list[PartitionResult]
