"""AlterReplicaLogDirs and DescribeLogDirs: in which data directory partitions lie."""

from warmlog_protocol.messages.base import Int32, Message


class ReplicaLogDir(Message, frozen=True):
    """A partition, and the path of the data directory in which it is to lie."""

    topic: str
    partition: Int32
    path: str


class AlterReplicaLogDirsRequest(Message, frozen=True):
    """Partitions to move, while they are used. The path of its present directory cancels the move of a partition."""

    partitions: list[ReplicaLogDir]


class AlteredReplicaLogDir(Message, frozen=True):
    """What became of one of them: the move has begun, and goes on after a restart."""

    topic: str
    partition: int
    error_code: int
    error_message: str


class AlterReplicaLogDirsResponse(Message, frozen=True):
    """One result for each partition, in the order of the request."""

    partitions: list[AlteredReplicaLogDir]


class DescribeLogDirsRequest(Message, frozen=True):
    """Ask where the partitions of the named topics lie; None asks for all."""

    topics: list[str] | None = None


class LogDirPartition(Message, frozen=True):
    """A partition in a data directory, or a copy on its way into it (`is_future`).

    `size_bytes` is that of its .log files. `offset_lag` is how far a copy is behind its original, 0 for an original,
    and -1 for one that is offline.
    """

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool = False


class LogDir(Message, frozen=True):
    """A data directory. Sizes are those of its file system, -1 if it does not respond; usable is what is free."""

    error_code: int
    error_message: str
    path: str
    partitions: list[LogDirPartition]
    total_bytes: int = -1
    usable_bytes: int = -1


class DescribeLogDirsResponse(Message, frozen=True):
    """Every data directory of the broker, in the order of its configuration."""

    directories: list[LogDir]
    node_id: int
