"""Creates the directories of new partitions, of a new topic or of one that gets more.

Each partition goes to the data directory with the fewest, or, after an error of that disk, to the next; what was
created on the failed disk is removed, by the next start if not at once (`data_dirs/deletion`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from uuid import UUID

from warmlog_broker.data_dirs.deletion import is_leftover, rename_to_deleted
from warmlog_broker.metadata.metadata_log import TopicCreated
from warmlog_broker.replica.served_directories import DataDirectories, ServedDirectory
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.data_dir import DataDirectory
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.durable_files import sync_directory
from warmlog_broker.storage.io.os_errors import storage_error
from warmlog_broker.storage.log.log import Log
from warmlog_protocol.errors import ApiError, InvalidTopic, StorageError

_log = logging.getLogger(__name__)


def keys_of(topic: str, partitions: Iterable[int]) -> list[TopicPartition]:
    """Return a topic's partitions with these numbers."""
    return [TopicPartition(topic, partition) for partition in partitions]


class PartitionCreator:
    """Creates partitions in the data directories of one broker. The metadata log is the caller's."""

    def __init__(
        self,
        directories: DataDirectories,
        *,
        open_log: Callable[[DataDirectory, TopicCreated, int, LogConfig], Log],
        threads: Executor,
        on_deleted: Callable[[Sequence[Path], int], None],
    ) -> None:
        """`open_log` creates the log of a partition, in a thread. `on_deleted` removes directories, after a delay."""
        self._directories = directories
        self._open_log = open_log
        self._threads = threads
        self._on_deleted = on_deleted
        self._loop = asyncio.get_running_loop()

    def refuse_remains(self, keys: Iterable[TopicPartition]) -> None:
        """Raise InvalidTopic for directories of these partitions that no topic owns."""
        for key in keys:
            for directory in self._directories.live:
                path = directory.data.partition_path(key)
                if path.exists():
                    raise InvalidTopic(
                        f"{key.directory_name} of topic {key.topic!r} cannot be created: {path} exists; move it away "
                        f"first"
                    )

    async def forget(self, keys: Sequence[TopicPartition]) -> None:
        """Remove the offsets of deleted partitions with the names of `keys` from the checkpoints, durably."""
        try:
            await self._directories.forget(keys)
        except OSError as error:
            raise storage_error(f"nothing can be created, checkpoints cannot be written: {error}", error) from error

    async def create(
        self, entry: TopicCreated, partitions: Sequence[int], config: LogConfig
    ) -> dict[int, tuple[ServedDirectory, Log]]:
        """Create the logs of `partitions`, each in the emptiest directory; durable on return."""
        return await self._loop.run_in_executor(self._threads, self._open_logs, entry, partitions, config)

    async def remove(self, entry: TopicCreated, partitions: Sequence[int]) -> None:
        """Remove what `create` left of `partitions`, none of which was served. OSError from the disk."""
        await self._loop.run_in_executor(self._threads, self._clear, entry, partitions)

    def _open_logs(
        self, entry: TopicCreated, partitions: Sequence[int], config: LogConfig
    ) -> dict[int, tuple[ServedDirectory, Log]]:
        planned: dict[ServedDirectory, int] = {}
        opened = {}
        for index in partitions:
            directory, log = self._open_log_somewhere(entry, index, config, planned)
            planned[directory] = planned.get(directory, 0) + 1
            opened[index] = directory, log
        for directory in planned:
            try:
                sync_directory(directory.path)
            except OSError as error:
                raise storage_error(f"{directory.path} cannot be synced: {error}", error) from error
        return opened

    def _open_log_somewhere(
        self, entry: TopicCreated, index: int, config: LogConfig, planned: dict[ServedDirectory, int]
    ) -> tuple[ServedDirectory, Log]:
        failure: ApiError = StorageError("no data directory is left: all have failed")
        for directory in sorted(
            self._directories.live,
            key=lambda directory: len(directory.partitions) + directory.incoming + planned.get(directory, 0),
        ):
            if directory.room.is_short:
                failure = directory.room.refusal(f"{entry.name}-{index}")
                continue
            try:
                return directory, self._open_log(directory.data, entry, index, config)
            except ApiError as error:
                _log.error("%s-%d could not be created in %s: %s", entry.name, index, directory.path, error)
                failure = error
                try:
                    self._clear_leftover(directory, entry, index)
                except OSError as second:
                    path = directory.data.partition_path(TopicPartition(entry.name, index))
                    _log.error("%s is left over, and cannot be removed before the next start: %s", path, second)
                self._loop.call_soon_threadsafe(directory.probe_soon)
        raise failure

    def _clear(self, entry: TopicCreated, partitions: Sequence[int]) -> None:
        for directory in self._directories.live:
            for index in partitions:
                self._clear_leftover(directory, entry, index)

    def _clear_leftover(self, directory: ServedDirectory, entry: TopicCreated, index: int) -> None:
        """In a thread: remove an incomplete partition directory."""
        key = TopicPartition(entry.name, index)
        path = directory.data.partition_path(key)
        if path.is_dir() and is_leftover(path, UUID(bytes=entry.topic_id)):
            self._loop.call_soon_threadsafe(self._on_deleted, [rename_to_deleted(path, key)], 0)
