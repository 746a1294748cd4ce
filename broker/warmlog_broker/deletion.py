"""Directories of deleted topics.

First they are renamed to Kafka's `-delete` form, so that they are found no more; then, later, removed.
"""

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import Executor
from pathlib import Path
from uuid import UUID

from warmlog_broker.log.checkpoints import read_partition_metadata, stored_topic_id, sync_directory
from warmlog_broker.log.directory import remove_deleted_partition
from warmlog_broker.log.loading import METADATA_NAME
from warmlog_broker.log.topic_partition import TopicPartition, deleted_directory_name, parse_directory_name
from warmlog_broker.metadata_log import TopicDeleted

_log = logging.getLogger(__name__)


def rename_deleted(data_dir: Path, deleted: TopicDeleted) -> list[Path]:
    """Renames what is left of a deleted topic's directories, durably, and returns their new paths.

    A directory of the same name that belongs to another topic id stays. OSError when the disk refuses; StorageError
    when a directory does not say whose it is.
    """
    renamed = []
    for index in range(deleted.partitions):
        key = TopicPartition(deleted.name, index)
        path = data_dir / key.directory_name
        if path.is_dir() and _belongs_to(path, UUID(bytes=deleted.topic_id)):
            target = data_dir / deleted_directory_name(key)
            path.rename(target)
            renamed.append(target)
    for path in data_dir.glob("*-future"):
        if _is_copy_of(path, UUID(bytes=deleted.topic_id)):
            name = parse_directory_name(path.name)
            assert name is not None
            target = data_dir / deleted_directory_name(name.topic_partition)
            path.rename(target)
            renamed.append(target)
    if renamed:
        sync_directory(data_dir)
    return renamed


class DoomedDirectories:
    """Directories of deleted partitions that are to be removed when their time comes."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._waiting: list[tuple[float, Path]] = []

    def add(self, paths: Iterable[Path], delay_ms: int) -> None:
        """`paths` are removed by the first `remove_due` after `delay_ms`."""
        due_s = asyncio.get_running_loop().time() + delay_ms / 1000
        self._waiting += [(due_s, path) for path in paths]

    async def remove_due(self) -> None:
        """Removes, in a thread, what is due."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        due = [path for due_s, path in self._waiting if due_s <= now_s]
        self._waiting = [waiting for waiting in self._waiting if waiting[0] > now_s]
        for path in due:
            await loop.run_in_executor(self._threads, _remove, path)


def _remove(path: Path) -> None:
    """Removes a directory and all that is in it. What cannot be removed is left for the next start."""
    try:
        remove_deleted_partition(path)
    except OSError as error:
        _log.warning("%s could not be removed: %s", path, error)


def _belongs_to(path: Path, topic_id: UUID) -> bool:
    """Whether the directory holds that topic id. One without any, and without a record, is what a crash left of it."""
    try:
        return read_partition_metadata(path / METADATA_NAME) == topic_id
    except FileNotFoundError:
        return all(file.stat().st_size == 0 for file in path.glob("*.log"))


def _is_copy_of(path: Path, topic_id: UUID) -> bool:
    """Whether the directory is a copy of a partition of that topic, on its way into the data directory."""
    return parse_directory_name(path.name) is not None and stored_topic_id(path / METADATA_NAME) == topic_id
