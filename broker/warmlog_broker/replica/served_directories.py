"""The data directories while the broker runs: who serves from which, and what happens when one fails.

Each has a flusher, checkpoints and partitions of its own, so that a slow or broken disk holds up nobody else's. An
error of the disk first takes offline the one partition that met it. Then the directory is tried: is its lock still
there, may it be written, does a small file reach the disk? If not, the directory has failed: all its partitions go
offline until a restart, nothing of it is written any more, and its next start finds no clean-shutdown marker. The same
is looked at every few seconds, for disks that are unmounted, made read-only, or exchanged, while nobody writes.

When every directory has failed there is nothing left to serve, and the broker stops. When the first one has, which
holds the metadata log, the partitions of the others are served as before, but no topic can be created or deleted and
no producer id be reserved until a restart.

A file system that has become read-only keeps what it holds: its partitions are read as before, up to where they were
flushed, and nothing of them is changed until a restart.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.directory_set import OfflineDirectory
from warmlog_broker.replica.checkpoint_writer import CheckpointWriter
from warmlog_broker.replica.disk_space import DiskRoom
from warmlog_broker.replica.flusher import Flusher
from warmlog_broker.replica.partition import Partition
from warmlog_broker.storage.directory.data_dir import DataDirectory
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.os_errors import is_read_only, is_shortage

_log = logging.getLogger(__name__)


class ServedDirectory:
    """One data directory, its group commit, its checkpoints, and the partitions that lie in it."""

    def __init__(self, data: DataDirectory, config: BrokerConfig, *, threads: Executor, trying: Executor) -> None:
        """`threads` write checkpoints. `trying` finds out whether the disk still works: that may hang, so it has a
        thread of its own."""
        self.data = data
        self.partitions: dict[Partition, None] = {}
        self.failure = ""
        """Why nothing in it is written any more; empty while it works."""
        self.is_read_only = False
        """Whether what it holds can be read all the same."""
        self.checkpoints = CheckpointWriter(data, threads, self.partitions)
        self.room = DiskRoom(data.path, config.disk_reserve_bytes)
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
        """Partitions that are being copied into it."""
        self._checkpoint_trouble = ""
        """Why checkpoints could not be written the last time: said once, though it is tried every second."""
        self._trying = trying
        self._on_failed: Callable[[ServedDirectory], None] = lambda _: None
        self._trial: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"ServedDirectory({self.path})"

    @property
    def path(self) -> Path:
        return self.data.path

    @property
    def is_live(self) -> bool:
        return not self.failure

    def admit(self, partition: Partition) -> None:
        """`partition` is here from now on."""
        partition.disk = self
        self.partitions[partition] = None
        self.checkpoints.note([partition])

    def dismiss(self, partition: Partition) -> None:
        """`partition` was deleted, or has moved away. Harmless if it was not here."""
        if partition in self.partitions:
            del self.partitions[partition]
            self.checkpoints.note([partition])

    def files_changed(self, partition: Partition) -> None:
        """`partition` has other files than before: flushes their names, and writes down where it begins."""
        self.checkpoints.note([partition])
        self.flusher.flush_within(partition, partition.config.flush_ms)

    async def write_checkpoints(self) -> bool:
        """Writes down what has moved; whether that is durable. A disk that refuses is tried, and may have failed."""
        try:
            await self.checkpoints.write()
        except OSError as error:
            if str(error) != self._checkpoint_trouble:
                _log.error("recovery points cannot be written down, a restart will check more: %s", error)
            self._checkpoint_trouble = str(error)
            self.probe_soon()
            return False
        if self._checkpoint_trouble:
            _log.warning("%s: recovery points are written down again", self.path)
        self._checkpoint_trouble = ""
        return True

    def call_when_failed(self, on_failed: Callable[["ServedDirectory"], None]) -> None:
        self._on_failed = on_failed

    def probe_soon(self) -> None:
        """The disk has refused something: finds out whether the whole directory has failed."""
        if self.is_live and self._trial is None:
            self._trial = asyncio.get_running_loop().create_task(self._try(self.data.probe), name=f"try {self.path}")

    async def look(self) -> None:
        """Finds out whether the directory is still the one that was locked, and what room there is. Writes nothing."""
        if self.is_live and self._trial is None:
            await self._try(self.data.check)
        if self.is_live:
            try:
                free_bytes = await asyncio.get_running_loop().run_in_executor(self._trying, self.data.free_bytes)
            except OSError as error:
                _log.error("%s does not say what room there is: %s", self.path, error)
                self.probe_soon()
            else:
                self.room.note(free_bytes)

    async def wait_for_probe(self) -> None:
        """Returns when a trial that is under way is over."""
        if self._trial is not None:
            await asyncio.wait([self._trial])

    async def _try(self, attempt: Callable[[], None]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._trying, attempt)
        except OSError as error:
            if not is_shortage(error):  # want of memory says nothing about the disk
                self.fail(str(error), is_read_only=is_read_only(error))
        finally:
            self._trial = None

    def fail(self, reason: str, *, is_read_only: bool = False) -> None:
        """Nothing in it is written any more, and served only if the disk is merely read-only."""
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
        self._on_failed(self)


class DataDirectories:
    """All data directories of one broker."""

    def __init__(self, served: Sequence[ServedDirectory], offline: Sequence[OfflineDirectory] = ()) -> None:
        self.served = list(served)
        self.offline = list(offline)
        """Those that could not be used at the start."""
        self.all_have_failed = asyncio.Event()
        for directory in served:
            directory.call_when_failed(self._one_has_failed)

    def __iter__(self) -> Iterator[ServedDirectory]:
        return iter(self.served)

    @property
    def live(self) -> list[ServedDirectory]:
        return [directory for directory in self.served if directory.is_live]

    @property
    def are_all_live(self) -> bool:
        return not self.offline and len(self.live) == len(self.served)

    def get(self, path: Path) -> ServedDirectory | None:
        """The directory at `path`, however it is written."""
        try:
            wanted = Path(os.path.realpath(path))
        except ValueError:  # a zero byte
            return None
        return next((directory for directory in self.served if directory.path.resolve() == wanted), None)

    def of(self, data: DataDirectory | None) -> ServedDirectory | None:
        """What serves `data`."""
        return next((directory for directory in self.served if directory.data is data), None)

    def emptiest_first(self, planned: dict[ServedDirectory, int]) -> list[ServedDirectory]:
        """The live directories; first the one with the fewest partitions, `planned` ones included."""
        return sorted(
            self.live,
            key=lambda directory: len(directory.partitions) + directory.incoming + planned.get(directory, 0),
        )

    def holder_of(self, partition: Partition) -> ServedDirectory | None:
        """The directory that holds `partition`."""
        return next((directory for directory in self.served if partition in directory.partitions), None)

    def dismiss(self, partition: Partition) -> None:
        """`partition` was deleted."""
        for directory in self.served:
            directory.dismiss(partition)

    async def flush_all(self) -> None:
        """Returns when everything appended until now was flushed, or its partition is offline."""
        await asyncio.gather(*(directory.flusher.flush_all() for directory in self.served))

    def note(self, partitions: Collection[Partition]) -> None:
        """The offsets of `partitions` are to be written down."""
        for directory in self.served:
            directory.checkpoints.note(partition for partition in partitions if partition in directory.partitions)

    async def write_checkpoints(self) -> None:
        """Writes down what has moved. A disk that refuses is tried, and may have failed then."""
        await asyncio.gather(*(directory.write_checkpoints() for directory in self.live))

    async def write_down(self, partitions: Sequence[Partition]) -> None:
        """On return the offsets of `partitions` are on disk. OSError when one of their disks refuses."""
        self.note(partitions)
        for directory in self.served:
            if any(partition in directory.partitions for partition in partitions):
                try:
                    await directory.checkpoints.write()
                except OSError:
                    directory.probe_soon()
                    raise

    async def forget(self, keys: Sequence[TopicPartition]) -> None:
        """On return no checkpoint says anything of `keys`, of which no partition may exist. OSError from the disk."""
        for directory in self.live:
            await directory.checkpoints.forget(keys)

    async def look(self) -> None:
        """Finds out whether all directories are still there."""
        for directory in self.live:
            await directory.look()

    def close(self) -> None:
        """Ends the flushers' threads, and gives the locks back."""
        for directory in self.served:
            directory.flusher.close()
            directory.data.close()

    def _one_has_failed(self, failed: ServedDirectory) -> None:
        is_any_left = any(directory.is_live or directory.is_read_only for directory in self.served)
        if failed is self.served[0] and is_any_left:
            _log.critical("the metadata log lies in %s: no topic can be changed until a restart", failed.path)
        if not is_any_left:
            self.all_have_failed.set()
