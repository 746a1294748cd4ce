"""DescribeLogDirs and AlterReplicaLogDirs: which partitions each data directory holds, and moving them."""

import os
from pathlib import Path

from warmlog_broker.data_dirs.directory_set import OfflineDirectory
from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import failed_partition, handle_all
from warmlog_broker.network.request import RequestContext
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.served_directories import ServedDirectory
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode

UNKNOWN = -1


async def alter_replica_log_dirs(
    services: Services, _context: RequestContext, request: m.AlterReplicaLogDirsRequest
) -> m.AlterReplicaLogDirsResponse:
    """Begin to move each partition. Before the response, its move is stored so that a restart continues it."""

    async def alter(wanted: m.ReplicaLogDir) -> m.PartitionResult:
        await services.moves.request(wanted.topic, wanted.partition, Path(wanted.path))
        return m.PartitionResult(wanted.topic, wanted.partition, ErrorCode.NONE, "")

    failed = failed_partition(m.PartitionResult)
    return m.AlterReplicaLogDirsResponse(await handle_all(services, request.partitions, alter, failed))


async def describe_log_dirs(
    services: Services, _context: RequestContext, request: m.DescribeLogDirsRequest
) -> m.DescribeLogDirsResponse:
    """One entry for each data directory, those that are offline included."""
    topics = None if request.topics is None else set(request.topics)
    served = [await _describe(services, directory, topics) for directory in services.directories]
    offline = [_describe_offline(services, directory, topics) for directory in services.directories.offline]
    order = {str(path.absolute()): number for number, path in enumerate(services.config.data_paths)}
    found = sorted([*served, *offline], key=lambda each: order.get(each.path, len(order)))
    return m.DescribeLogDirsResponse(found, services.cluster.node_id)


async def _describe(services: Services, directory: ServedDirectory, topics: set[str] | None) -> m.LogDir:
    partitions = sorted(directory.partitions, key=lambda partition: partition.key)
    listed = [_describe_partition(each) for each in partitions if topics is None or each.key.topic in topics]
    moves = [move for move in services.moves.into(directory) if topics is None or move.partition.key.topic in topics]
    listed += [m.LogDirReplica(*move.partition.key, move.copy.size_bytes, move.copy.offset_lag, True) for move in moves]
    if not directory.is_live:
        return m.LogDir(ErrorCode.KAFKA_STORAGE_ERROR, directory.failure, str(directory.path), listed)
    # In a thread: a disk that hangs delays this response only.
    total, usable = await services.loop.run_in_executor(services.cold_readers, _room, directory.path)
    return m.LogDir(ErrorCode.NONE, "", str(directory.path), listed, total, usable)


def _describe_partition(partition: Partition) -> m.LogDirReplica:
    topic, number = partition.key
    if not partition.allows.read:
        return m.LogDirReplica(topic, number, 0, UNKNOWN)
    missing = 0 if partition.replication is None else partition.replication.missing_records
    return m.LogDirReplica(topic, number, partition.log.size_bytes, missing)


def _describe_offline(services: Services, directory: OfflineDirectory, topics: set[str] | None) -> m.LogDir:
    """Describe what the metadata log assigns to a directory that could not be used."""
    keys = [] if directory.directory_id is None else services.topics.assigned_to(directory.directory_id.bytes)
    listed = [m.LogDirReplica(*key, 0, UNKNOWN) for key in keys if topics is None or key.topic in topics]
    return m.LogDir(ErrorCode.KAFKA_STORAGE_ERROR, directory.reason, str(directory.path), listed)


def _room(path: Path) -> tuple[int, int]:
    """Return the total and the free bytes of the file system."""
    try:
        found = os.statvfs(path)
    except OSError:
        return UNKNOWN, UNKNOWN
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
