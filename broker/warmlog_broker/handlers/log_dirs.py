"""DescribeLogDirs and AlterReplicaLogDirs: what lies in which data directory, and moving it to another."""

import asyncio
import os
from pathlib import Path

from warmlog_broker.data_dirs.directory_set import OfflineDirectory
from warmlog_broker.handlers.context import Services
from warmlog_broker.network.peer import Asker
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.served_directories import ServedDirectory
from warmlog_broker.runtime.internal_error import own_failure
from warmlog_protocol.errors import ApiError, ErrorCode
from warmlog_protocol.messages import (
    AlteredReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDir,
    LogDirPartition,
    ReplicaLogDir,
)
from warmlog_protocol.wire.connection import Request

UNKNOWN = -1
PARTITIONS_A_TURN = 100
"""After so many others have their turn: to see that a path is no data directory takes 60 µs."""


async def alter_replica_log_dirs(
    services: Services,
    asker: Asker,  # noqa: ARG001
    request: Request,
) -> AlterReplicaLogDirsResponse:
    """Each partition by itself; answered once its move would go on after a restart."""
    message = request.message
    assert isinstance(message, AlterReplicaLogDirsRequest)
    results = []
    for number, wanted in enumerate(message.partitions):
        if number % PARTITIONS_A_TURN == PARTITIONS_A_TURN - 1:
            await asyncio.sleep(0)
        results.append(await _alter(services, wanted))
    return AlterReplicaLogDirsResponse(results)


async def _alter(services: Services, wanted: ReplicaLogDir) -> AlteredReplicaLogDir:
    failure: ApiError | None = None
    try:
        await services.moves.request(wanted.topic, wanted.partition, Path(wanted.path))
    except ApiError as error:
        failure = error
    except Exception:
        failure = own_failure(f"AlterReplicaLogDirs of {wanted.topic!r} {wanted.partition}")
    if failure is None:
        return AlteredReplicaLogDir(wanted.topic, wanted.partition, ErrorCode.NONE, "")
    return AlteredReplicaLogDir(wanted.topic, wanted.partition, failure.code, str(failure))


async def describe_log_dirs(services: Services, asker: Asker, request: Request) -> DescribeLogDirsResponse:  # noqa: ARG001
    """One entry for each data directory, those that are offline included."""
    message = request.message
    assert isinstance(message, DescribeLogDirsRequest)
    topics = None if message.topics is None else set(message.topics)
    served = [await _describe(services, directory, topics) for directory in services.directories]
    offline = [_describe_offline(services, directory, topics) for directory in services.directories.offline]
    order = {str(path.absolute()): number for number, path in enumerate(services.config.data_paths)}
    found = sorted([*served, *offline], key=lambda each: order.get(each.path, len(order)))
    return DescribeLogDirsResponse(found, services.config.node_id)


async def _describe(services: Services, directory: ServedDirectory, topics: set[str] | None) -> LogDir:
    partitions = sorted(directory.partitions, key=lambda partition: partition.key)
    listed = [_describe_partition(each) for each in partitions if topics is None or each.key.topic in topics]
    moves = [move for move in services.moves.into(directory) if topics is None or move.partition.key.topic in topics]
    listed += [LogDirPartition(*move.partition.key, move.copy.size_bytes, move.copy.offset_lag, True) for move in moves]
    if not directory.is_live:
        return LogDir(ErrorCode.KAFKA_STORAGE_ERROR, directory.failure, str(directory.path), listed)
    # A disk that hangs holds up this answer and nothing else.
    total, usable = await services.loop.run_in_executor(services.cold_readers, _room, directory.path)
    return LogDir(ErrorCode.NONE, "", str(directory.path), listed, total, usable)


def _describe_partition(partition: Partition) -> LogDirPartition:
    topic, number = partition.key
    if not partition.allows.read:
        return LogDirPartition(topic, number, 0, UNKNOWN)
    return LogDirPartition(topic, number, partition.log.size_bytes, 0)


def _describe_offline(services: Services, directory: OfflineDirectory, topics: set[str] | None) -> LogDir:
    """What should be in a directory that could not be used at the start."""
    keys = [] if directory.directory_id is None else services.topics.placed_in(directory.directory_id.bytes)
    listed = [LogDirPartition(*key, 0, UNKNOWN) for key in keys if topics is None or key.topic in topics]
    return LogDir(ErrorCode.KAFKA_STORAGE_ERROR, directory.reason, str(directory.path), listed)


def _room(path: Path) -> tuple[int, int]:
    """Bytes of the file system, and those that the broker could still use."""
    try:
        found = os.statvfs(path)
    except OSError:
        return UNKNOWN, UNKNOWN
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
