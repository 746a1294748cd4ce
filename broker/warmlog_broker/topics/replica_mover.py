"""Moves partitions from one data directory to another while they are written and read.

1. A copy in the target directory catches up with the partition (`storage/log/log_copy`), no faster than
   `log.dir.move.bytes.per.second`. Appends continue; the log is not compacted meanwhile.
2. Once little is missing it is copied at once, and appends go to the copy from then on. They are acknowledged only
   after step 5, with acks=1 as well: until then a crash would lose them. The high watermark does not move meanwhile,
   for some milliseconds.
3. The copy is synced, and written to the target's checkpoints.
4. PartitionMoved is written to the metadata log: this commits the move. A start without this entry uses the old
   directory and begins the move again; with it, it uses the copy.
5. The copy gets its final name, the old directory is renamed to `-delete`, both are synced, and appends are
   acknowledged again. After a crash a start finishes this step (`data_dirs/assignment`).

If a disk fails before step 2, only the move ends. After that the partition goes offline, and the next start decides by
the metadata log; but writing checkpoints and the metadata log is retried first if space or descriptors ran out. A
request for the current directory of a partition cancels its move.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TypeVar

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.deletion import rename_to_deleted
from warmlog_broker.metadata.metadata_log import PartitionMoved, PartitionsAssigned
from warmlog_broker.metadata.store import NodeStore
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.partition_state import PartitionState
from warmlog_broker.replica.served_directories import DataDirectories, ServedDirectory
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.storage.directory.data_dir import DataDirectory
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.durable_files import sync_directory
from warmlog_broker.storage.io.os_errors import is_resource_exhaustion, storage_error
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.log.log_copy import CopyStep, LogCopy, make_directory
from warmlog_broker.topics.topics import Topics
from warmlog_protocol.errors import ApiError, DiskFull, LogDirNotFound, OutOfResources, StorageError

T = TypeVar("T")

CHUNK_BYTES = 4 * 1024 * 1024
TAIL_BYTES = 256 * 1024
"""The most that is copied in one turn of the event loop: 0.1 ms."""
SHORTAGE_PATIENCE_S = 10.0
"""How long writing the checkpoints of a move, and then its entry in the metadata log, is retried. No append to the
partition is acknowledged meanwhile."""
SHORTAGE_PAUSE_S = 0.2

_log = logging.getLogger(__name__)


class Move:
    def __init__(self, partition: Partition, target: ServedDirectory, copy: LogCopy) -> None:
        self.partition = partition
        self.target = target
        self.copy = copy
        self.is_called_off = self.has_switched = False
        self.task: asyncio.Task[None]


class Moves:
    def __init__(
        self,
        config: BrokerConfig,
        *,
        topics: Topics,
        directories: DataDirectories,
        node: NodeStore,
        threads: Executor,
        on_deleted: Callable[[Sequence[Path], int], None],
    ) -> None:
        """`threads` copy and sync. `on_deleted` removes directories, after a delay in milliseconds."""
        self._config = config
        self._topics = topics
        self._directories = directories
        self._node = node
        self._threads = threads
        self._on_deleted = on_deleted
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[Partition, Move] = {}
        self._asking = asyncio.Lock()
        self._resuming: asyncio.Task[None] | None = None
        self._is_stopping = False

    def into(self, directory: ServedDirectory) -> list[Move]:
        """Return the moves to `directory`, in the order of their partitions."""
        return sorted(
            (move for move in self._under_way.values() if move.target is directory), key=lambda move: move.partition.key
        )

    async def request(self, topic: str, number: int, path: Path) -> None:
        """Begin to move a partition to the data directory at `path`; on return a restart would continue the move.

        No-op if it is already there or moving there; cancels any other move of it. Raises UnknownTopicOrPartition,
        LogDirNotFound, or StorageError if either directory is offline or too full.
        """
        async with self._asking:
            partition = self._topics.partition(topic, number)
            target = self._directories.get(path)
            if target is None:
                names = ", ".join(str(directory.path) for directory in self._directories)
                raise LogDirNotFound(f"{path} is not a data directory of this broker; its data directories are {names}")
            move = self._under_way.get(partition)
            if move is not None and move.target is target and not move.is_called_off:
                return
            if not target.is_live:
                raise StorageError(f"{target.path} is offline: {target.failure}")
            if move is not None:
                move.is_called_off = True
                await asyncio.wait([move.task])
            if partition not in target.partitions:
                await self._begin(partition, target)

    def resume(self, found: Sequence[tuple[TopicPartition, DataDirectory, Path]]) -> None:
        """Remove the copies left by a stop or a crash, and begin their moves again."""
        self._resuming = self._loop.create_task(self._resume(found), name="resume moves")

    async def stop(self) -> None:
        """End all moves, and return once they have ended. Copies stay: the next start begins their moves again."""
        self._is_stopping = True
        tasks = [move.task for move in self._under_way.values()]
        if self._resuming is not None:
            tasks.append(self._resuming)
        if tasks:
            await asyncio.wait(tasks)

    async def _resume(self, found: Sequence[tuple[TopicPartition, DataDirectory, Path]]) -> None:
        for key, target, path in found:
            try:
                self._on_deleted([await self._in_thread(rename_to_deleted, path, key)], 0)
                if self._is_stopping:
                    continue
                _log.info("%s: the move to %s begins again", key.directory_name, target.path)
                await self.request(key.topic, key.partition, target.path)
            except (ApiError, OSError) as error:
                _log.error("%s: the move to %s cannot continue: %s", key.directory_name, target.path, error)

    async def _begin(self, partition: Partition, target: ServedDirectory) -> None:
        name, log, home = partition.key.directory_name, partition.log, self._directories.holder_of(partition)
        assert home is not None
        partition.begin_move()  # ends compaction of the partition
        try:
            await self._in_thread(target.data.require_room, log.size_bytes)
            log.compaction.stop()
            while (replacement := log.local.replacement) is not None:  # a replacement of segments that has begun
                await self._in_thread(replacement.sync)
                log.local.advance(replacement)
            directory = await self._in_thread(make_directory, log, target.path)
            move = self._under_way[partition] = Move(partition, target, LogCopy.begin(log, directory))
        except OSError as error:
            target.probe_soon()
            home.probe_soon()
            raise storage_error(f"{name} cannot be moved to {target.path}: {error}", error) from error
        finally:
            if partition not in self._under_way:
                partition.end_move()
        target.incoming += 1
        _log.info("%s: the move to %s begins, %d bytes", name, target.path, log.size_bytes)
        move.task = self._loop.create_task(self._run(move), name=f"move {name}")

    async def _run(self, move: Move) -> None:
        partition, name = move.partition, move.partition.key.directory_name
        try:
            if not self._is_over(move):
                await self._in_thread(move.copy.copy_kept_aside)
            while await self._catch_up(move):
                async with self._topics.changing:
                    if await self._switch(move):
                        _log.info("%s: moved to %s", name, move.target.path)
                        return
            if not self._is_stopping:
                _log.info("%s: the move to %s was called off", name, move.target.path)
                await self._drop(move)
        except (OSError, ApiError) as error:
            _log.error("%s: the move to %s has failed: %s", name, move.target.path, error)
            move.target.probe_soon()
            await self._drop(move)
        except Exception:
            _log.exception("%s: the move to %s failed: a bug", name, move.target.path)
            if partition.state is PartitionState.SWITCHING:
                partition.take_offline(f"its move to {move.target.path} has failed")
        finally:
            partition.end_move()
            move.target.incoming -= 1
            del self._under_way[partition]

    async def _catch_up(self, move: Move) -> bool:
        """Copy until little is missing; return False if the move ends."""
        began_s, copied_bytes = self._loop.time(), 0
        while not self._is_over(move):
            if move.copy.missing_bytes <= TAIL_BYTES:
                return True
            steps = move.copy.next_steps(min(CHUNK_BYTES, self._config.log_dir_move_bytes_per_second))
            await self._in_thread(_run_steps, steps)
            copied_bytes += sum(step.size_bytes for step in steps)
            ahead_s = copied_bytes / self._config.log_dir_move_bytes_per_second - (self._loop.time() - began_s)
            while ahead_s > 0 and not self._is_over(move):
                await asyncio.sleep(min(ahead_s, 0.1))
                ahead_s -= 0.1
        return False

    def _is_over(self, move: Move) -> bool:
        is_moving = move.partition.state is PartitionState.MOVING and move.target.is_live
        return not is_moving or move.is_called_off or self._is_stopping

    async def _switch(self, move: Move) -> bool:
        """Make the copy the partition's log; return False if too much is missing again. `Topics.changing` is held."""
        partition, target, copy = move.partition, move.target, move.copy
        if self._is_over(move) or copy.missing_bytes > TAIL_BYTES:
            return False
        source, home = partition.log, self._directories.holder_of(partition)
        assert home is not None
        log = copy.finish(now_ms())
        partition.switch_to(log)
        move.has_switched = True
        end_offset = log.log_end_offset
        try:
            await self._in_thread(copy.sync)
            log.bounds.copied_up_to(end_offset)
            target.checkpoints.keep(partition.key, log.offsets)
            await self._until_there_is_room(target.checkpoints.write)
            topic = self._topics.get(partition.key.topic)
            from_id, to_id = home.data.directory_id.bytes, target.data.directory_id.bytes
            moved = PartitionMoved(topic.topic_id, partition.key.partition, from_id, to_id)
            await self._until_there_is_room(partial(self._node.commit, [moved]))
            log.local.rename_directory(target.data.partition_path(partition.key))
            await self._in_thread(sync_directory, target.path)
        except (OSError, ApiError) as error:
            partition.take_offline(f"its move to {target.path} has failed: {error}")
            raise
        home.dismiss(partition)
        target.admit(partition)
        partition.complete_switch()
        await self._leave(source, home, PartitionsAssigned(topic.topic_id, to_id, [partition.key.partition]))
        return True

    async def _until_there_is_room(self, write: Callable[[], Awaitable[None]]) -> None:
        """Run `write`; retry it for a while if space or descriptors ran out, which leaves everything unchanged."""
        deadline_s = self._loop.time() + SHORTAGE_PATIENCE_S
        while True:
            try:
                await write()
            except (DiskFull, OutOfResources, OSError) as error:
                is_short = not isinstance(error, OSError) or is_resource_exhaustion(error)
                if not is_short or self._is_stopping or self._loop.time() > deadline_s:
                    raise
                _log.warning("%s; it is tried again", error)
            else:
                return
            await asyncio.sleep(SHORTAGE_PAUSE_S)

    async def _leave(self, source: Log, home: ServedDirectory, assigned: PartitionsAssigned) -> None:
        """Remove the old directory. If that fails, the next start does it, by the metadata log."""
        try:
            path = source.local.leave("moved to another data directory", sync=False)
            await self._in_thread(sync_directory, home.path)
        except OSError as error:
            _log.error("%s could not be left: %s", source.local.directory, error)
            home.probe_soon()
            return
        self._node.note(assigned)
        self._on_deleted([path], source.local.config.file_delete_delay_ms)

    async def _drop(self, move: Move) -> None:
        """Remove the copy of a cancelled or failed move. If that fails, the next start finds it."""
        move.is_called_off = True  # a request for the same target waits for the end of this, and begins again
        if move.has_switched:
            return
        path = move.copy.directory
        try:
            self._on_deleted([await self._in_thread(rename_to_deleted, path, move.partition.key)], 0)
        except FileNotFoundError:
            return  # it went with its topic
        except OSError as error:
            _log.error("%s could not be removed: %s", path, error)

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await self._loop.run_in_executor(self._threads, work, *arguments)


def _run_steps(steps: Sequence[CopyStep]) -> None:
    for step in steps:
        step.run()
