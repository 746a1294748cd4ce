"""AlterReplicaLogDirs and DescribeLogDirs: which data directory holds which partitions."""

from warmlog_protocol.messages.base import Int32, ItemResult, Message, PartitionResult


class ReplicaLogDir(Message, frozen=True):
    """A partition, and the path of the data directory to move it to."""

    topic: str
    partition: Int32
    path: str


class AlterReplicaLogDirsRequest(Message, frozen=True):
    """Partitions to move, while they are in use. The path of a partition's current directory cancels its move."""

    partitions: list[ReplicaLogDir]


class AlterReplicaLogDirsResponse(Message, frozen=True):
    """One result for each partition, in the order of the request.

    Without an error the move has begun, and continues after a restart.
    """

    partitions: list[PartitionResult]


class DescribeLogDirsRequest(Message, frozen=True):
    """Ask for the directories of the named topics' partitions; None asks for all topics."""

    topics: list[str] | None = None


class LogDirReplica(Message, frozen=True):
    """A partition in a data directory, or a copy that is being moved into it (`is_future`).

    `size_bytes` is the size of its .log files. `offset_lag` is by how many offsets a copy lags behind its original,
    or a follower behind its leader; -1 while the partition is offline.
    """

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool = False


class LogDir(ItemResult, frozen=True):
    """A data directory. Sizes are those of its file system, -1 if it does not respond; `usable_bytes` are free."""

    path: str
    partitions: list[LogDirReplica]
    total_bytes: int = -1
    usable_bytes: int = -1


class DescribeLogDirsResponse(Message, frozen=True):
    """Every data directory of the broker, in the order of its configuration."""

    directories: list[LogDir]
    node_id: int
