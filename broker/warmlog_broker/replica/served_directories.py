"""The data directories while the broker runs: which partitions each serves, and what happens when one fails.

Each has its own flusher, checkpoints and partitions, so that a slow or broken disk does not delay the others. An error
of the disk first takes one partition offline. Then the directory is probed: its lock must exist, it must be writable,
and a small file must reach the disk. Otherwise the directory has failed: all its partitions go offline until a restart,
nothing more is written to it, and the next start finds no clean-shutdown marker. It is also checked every second, to
detect disks that were unmounted, made read-only or replaced while nothing is written.

A file system that has become read-only is read as before, up to the flushed offset of each partition; nothing in it is
changed until a restart.

If every directory has failed, the broker stops. If the first one has, which holds the metadata log, the partitions of
the others are served as before, but until a restart no topic can be created or deleted and no producer id reserved.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.directory_set import OfflineDirectory
from warmlog_broker.replica.disk_space import DiskRoom, reserve_bytes
from warmlog_broker.replica.flusher import CheckpointWriter, Flusher
from warmlog_broker.replica.partition import Partition
from warmlog_broker.storage.directory.data_dir import DataDirectory
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.os_errors import is_read_only, is_resource_exhaustion

_log = logging.getLogger(__name__)


class ServedDirectory:
    """One data directory, its group commit, its checkpoints, and its partitions."""

    def __init__(self, data: DataDirectory, config: BrokerConfig, *, threads: Executor, trying: Executor) -> None:
        """`threads` write checkpoints. `trying` runs probes, each in a thread that may hang."""
        self.data = data
        self.partitions: dict[Partition, None] = {}
        self.failure = ""
        """Why nothing more is written to it; empty while it works."""
        self.is_read_only = False
        """Whether it failed, but can be read."""
        self.checkpoints = CheckpointWriter(data, threads, self.partitions)
        self.room = DiskRoom(data.path, reserve_bytes(config, data.disk_bytes()))
        self.room.note(data.free_bytes())
        self.flusher = Flusher(
            data.path,
            threads=config.flush_threads,
            syncfs_files=config.flush_syncfs_files,
            here=self.partitions,
            on_flushed=self.checkpoints.note,
        )
        self.flush_soon, self.flush_within = self.flusher.flush_soon, self.flusher.flush_within
        self.incoming = 0
        """The number of partitions that are being copied into it."""
        self.on_failed: Callable[[ServedDirectory], None] = lambda _: None
        self._checkpoint_error = ""
        """The last error of writing them, logged once although writing is retried every second."""
        self._trying = trying
        self._probe: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"ServedDirectory({self.path})"

    @property
    def path(self) -> Path:
        return self.data.path

    @property
    def is_live(self) -> bool:
        return not self.failure

    def admit(self, partition: Partition) -> None:
        partition.disk = self
        self.partitions[partition] = None
        self.checkpoints.note([partition])

    def dismiss(self, partition: Partition) -> None:
        """Remove `partition`, which was deleted or moved away. No-op if it was not here."""
        if partition in self.partitions:
            del self.partitions[partition]
            self.checkpoints.note([partition])

    async def write_checkpoints(self) -> bool:
        """Checkpoint changed offsets; return whether they are durable. After an error of the disk it is probed."""
        try:
            await self.checkpoints.write()
        except OSError as error:
            if str(error) != self._checkpoint_error:
                _log.error("recovery points cannot be written, a restart will check more: %s", error)
            self._checkpoint_error = str(error)
            self.probe_soon()
            return False
        if self._checkpoint_error:
            _log.warning("%s: recovery points are written again", self.path)
        self._checkpoint_error = ""
        return True

    def probe_soon(self) -> None:
        """Check, after an error of the disk, whether the whole directory has failed."""
        if self.is_live and self._probe is None:
            self._probe = asyncio.get_running_loop().create_task(self._run(self.data.probe), name=f"probe {self.path}")

    async def check(self) -> None:
        """Check that the directory is still the one that was locked, and measure its free space. Writes nothing."""
        if self.is_live and self._probe is None:
            await self._run(self.data.check)
        if self.is_live:
            try:
                free_bytes = await asyncio.get_running_loop().run_in_executor(self._trying, self.data.free_bytes)
            except OSError as error:
                _log.error("the free space of %s cannot be read: %s", self.path, error)
                self.probe_soon()
            else:
                self.room.note(free_bytes)

    async def wait_for_probe(self) -> None:
        """Return once no probe is running."""
        if self._probe is not None:
            await asyncio.wait([self._probe])

    async def _run(self, check: Callable[[], None]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._trying, check)
        except OSError as error:
            if not is_resource_exhaustion(error):  # being out of memory says nothing about the disk
                self.fail(str(error), is_read_only=is_read_only(error))
        finally:
            self._probe = None

    def fail(self, reason: str, *, is_read_only: bool = False) -> None:
        """Write nothing more to it; keep serving reads only if the disk is read-only."""
        if self.failure:
            return
        self.failure, self.is_read_only = reason, is_read_only
        _log.critical(
            "DATA DIRECTORY %s IS %s, and %d partitions with it: %s",
            self.path,
            "READ-ONLY" if is_read_only else "OFFLINE",
            len(self.partitions),
            reason,
        )
        for partition in list(self.partitions):
            if is_read_only:
                partition.set_read_only(f"its data directory {self.path} is read-only: {reason}")
            else:
                partition.take_offline(f"its data directory {self.path} has failed: {reason}")
        self.on_failed(self)


class DataDirectories:
    def __init__(self, served: Sequence[ServedDirectory], offline: Sequence[OfflineDirectory] = ()) -> None:
        self.served = list(served)
        self.offline = list(offline)
        """The directories that could not be used at the start."""
        self.all_have_failed = asyncio.Event()
        for directory in served:
            directory.on_failed = self._one_has_failed

    def __iter__(self) -> Iterator[ServedDirectory]:
        return iter(self.served)

    @property
    def live(self) -> list[ServedDirectory]:
        return [directory for directory in self.served if directory.is_live]

    @property
    def are_all_live(self) -> bool:
        return not self.offline and len(self.live) == len(self.served)

    def get(self, path: Path) -> ServedDirectory | None:
        """Return the directory at `path`, which may contain links."""
        try:
            wanted = Path(os.path.realpath(path))
        except ValueError:  # a zero byte
            return None
        return next((directory for directory in self.served if directory.path.resolve() == wanted), None)

    def of(self, data: DataDirectory) -> ServedDirectory:
        return next(directory for directory in self.served if directory.data is data)

    def holder_of(self, partition: Partition) -> ServedDirectory | None:
        return next((directory for directory in self.served if partition in directory.partitions), None)

    def dismiss(self, partition: Partition) -> None:
        for directory in self.served:
            directory.dismiss(partition)

    async def flush_all(self) -> None:
        """Return once all that was appended before this call was flushed, or its partition is offline."""
        await asyncio.gather(*(directory.flusher.flush_all() for directory in self.served))

    def note(self, partitions: Collection[Partition]) -> None:
        """Schedule a checkpoint of the offsets of `partitions`."""
        for directory in self.served:
            directory.checkpoints.note(partition for partition in partitions if partition in directory.partitions)

    async def write_checkpoints(self) -> None:
        """Checkpoint changed offsets in each live directory, as `ServedDirectory.write_checkpoints`."""
        await asyncio.gather(*(directory.write_checkpoints() for directory in self.live))

    async def checkpoint(self, partitions: Sequence[Partition]) -> None:
        """Make the offsets of `partitions` durable. OSError from one of their disks."""
        self.note(partitions)
        for directory in self.served:
            if any(partition in directory.partitions for partition in partitions):
                try:
                    await directory.checkpoints.write()
                except OSError:
                    directory.probe_soon()
                    raise

    async def forget(self, keys: Sequence[TopicPartition]) -> None:
        """Remove `keys`, whose partitions must not exist, from all checkpoints. OSError from the disk."""
        for directory in self.live:
            await directory.checkpoints.forget(keys)

    async def check(self) -> None:
        """Check that all directories are still there."""
        for directory in self.live:
            await directory.check()

    def close(self) -> None:
        """End the flushers' threads, and release the locks."""
        for directory in self.served:
            directory.flusher.close()
            directory.data.close()

    def _one_has_failed(self, failed: ServedDirectory) -> None:
        is_any_left = any(directory.is_live or directory.is_read_only for directory in self.served)
        if failed is self.served[0] and is_any_left:
            _log.critical("the metadata log is in %s: no topic can be changed until a restart", failed.path)
        if not is_any_left:
            self.all_have_failed.set()
