"""DescribeLogDirs: which data directories there are, and what lies in them."""

import os
from pathlib import Path

from warmlog_broker.data_directories import ServedDirectory
from warmlog_broker.opening import OfflineDirectory
from warmlog_broker.partition import Partition
from warmlog_broker.services import Asker, Services
from warmlog_protocol.connection import Request
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.messages import DescribeLogDirsRequest, DescribeLogDirsResponse, LogDir, LogDirPartition

UNKNOWN = -1


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
    if not directory.is_live:
        return LogDir(ErrorCode.KAFKA_STORAGE_ERROR, directory.failure, str(directory.path), listed)
    # A disk that hangs holds up this answer and nothing else.
    total, usable = await services.loop.run_in_executor(services.cold_readers, _room, directory.path)
    return LogDir(ErrorCode.NONE, "", str(directory.path), listed, total, usable)


def _describe_partition(partition: Partition) -> LogDirPartition:
    topic, number = partition.key
    if partition.is_offline:
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
