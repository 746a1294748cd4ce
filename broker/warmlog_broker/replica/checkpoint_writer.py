"""Checkpoints the recovery point of each log soon after each flush, so that a restart has little to check.

The files are replaced as a whole (DataDirectory.write_checkpoints), by one writer at a time, in a thread. Their keys
are names: before a topic is created, the entries of a deleted topic of that name are removed (`forget`).
"""

import asyncio
from collections.abc import Collection, Container, Iterable
from concurrent.futures import Executor

from warmlog_broker.replica.partition import Partition
from warmlog_broker.storage.directory.data_dir import DataDirectory, LogOffsets
from warmlog_broker.storage.directory.topic_partition import TopicPartition


class CheckpointWriter:
    """The last stored offsets of all partitions of a directory, and the partitions whose offsets changed since."""

    def __init__(self, directory: DataDirectory, threads: Executor, here: Container[Partition]) -> None:
        """`here` are the partitions of the directory."""
        self._directory = directory
        self._threads = threads
        self._here = here
        self._offsets: dict[Partition, LogOffsets] = {}
        self._moved: dict[Partition, None] = {}
        self._kept = directory.stored_offsets()
        """Stored offsets of logs that are not served from here now."""
        self._has_kept_more = False
        self._written: set[TopicPartition] | None = None
        self._writing = asyncio.Lock()

    def note(self, partitions: Iterable[Partition]) -> None:
        """Note that the offsets of `partitions` may have changed, or that they were added or removed."""
        for partition in partitions:
            self._moved[partition] = None

    def keep(self, key: TopicPartition, offsets: LogOffsets) -> None:
        """Write `offsets` for a partition that is about to be moved here."""
        self._kept[key] = offsets
        self._has_kept_more = True

    async def write(self) -> None:
        """Write changed offsets durably. After an OSError they remain to be written."""
        async with self._writing:
            if self._moved or self._has_kept_more:
                await self._write()

    async def forget(self, keys: Collection[TopicPartition]) -> None:
        """Remove `keys`, whose partitions must not exist, from the files. OSError from the disk."""
        async with self._writing:
            for key in keys:
                self._kept.pop(key, None)
            if any(self._is_written(key) for key in keys):
                await self._write()

    async def _write(self) -> None:
        moved, self._moved = self._moved, {}
        self._has_kept_more = False
        for partition in moved:
            if partition in self._here:
                self._kept.pop(partition.key, None)
                self._offsets[partition] = self._offsets_of(partition)
            else:
                self._offsets.pop(partition, None)
        offsets = dict(self._kept)
        offsets |= {partition.key: known for partition, known in self._offsets.items() if partition in self._here}
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._threads, self._directory.write_checkpoints, offsets)
        except OSError:
            self.note(moved)
            self._has_kept_more = True
            raise
        self._written = set(offsets)
        for partition in moved:
            if partition in self._offsets:
                partition.checkpointed(self._offsets[partition])

    def _is_written(self, key: TopicPartition) -> bool:
        if self._written is not None:
            return key in self._written
        return any(self._directory.stored_state(key).offsets)

    def _offsets_of(self, partition: Partition) -> LogOffsets:
        """Return the offsets to store. A log that could not be opened keeps its stored ones.

        Until a move is committed, the log of its partition is a copy in another directory: of its offsets only the log
        start applies here.
        """
        offsets = partition.offsets or self._directory.stored_state(partition.key).offsets
        if partition.allows.trim or partition.data_directory in (None, self._directory.path):
            return offsets
        known = self._offsets.get(partition) or self._directory.stored_state(partition.key).offsets
        return known._replace(log_start_offset=max(known.log_start_offset, offsets.log_start_offset))
