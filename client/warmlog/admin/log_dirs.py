"""The data directories of brokers: what they contain, and moving partitions between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from warmlog.cluster.cluster import Cluster
from warmlog_protocol.errors import error_from_code
from warmlog_protocol.messages import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDir,
    ReplicaLogDir,
)


@dataclass(frozen=True, slots=True)
class LogDirReplica:
    """A partition in a data directory. `offset_lag` is how many offsets a copy in progress (`is_future`) lags behind;
    -1 while the partition is offline."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A data directory of a broker. `error` is None while it works. Sizes are its file system's; -1 if unknown."""

    broker: int
    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    replicas: list[LogDirReplica]


async def move_partition(cluster: Cluster, topic: str, partition: int, directory: str) -> None:
    """Begin to move the partition to this data directory of its broker. Raises the broker's error."""
    request = AlterReplicaLogDirsRequest([ReplicaLogDir(topic, partition, directory)])
    response = await cluster.call(request, AlterReplicaLogDirsResponse)
    (altered,) = response.partitions
    if altered.error_code:
        raise error_from_code(altered.error_code, altered.error_message)


async def describe_log_dirs(cluster: Cluster, topics: Sequence[str] | None) -> list[LogDirDescription]:
    """The broker's data directories with the partitions of all topics, or of these."""
    request = DescribeLogDirsRequest(None if topics is None else list(topics))
    response = await cluster.call(request, DescribeLogDirsResponse)
    return [_described(response.node_id, directory) for directory in response.directories]


def _described(broker: int, directory: LogDir) -> LogDirDescription:
    replicas = [
        LogDirReplica(each.topic, each.partition, each.size_bytes, each.offset_lag, each.is_future)
        for each in directory.partitions
    ]
    error = None
    if directory.error_code:
        error = directory.error_message or str(error_from_code(directory.error_code, "offline"))
    return LogDirDescription(broker, directory.path, error, directory.total_bytes, directory.usable_bytes, replicas)
