"""Periodic duties: retention, rolls by `segment.ms`, unlinking, expiry of producers, checkpoints, warm indexes.

Each duty is a task. It yields to the event loop every few partitions; work that waits for the disk is done in a thread.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from typing import Any

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.deletion import DirectoryRemover
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.partition_state import Role
from warmlog_broker.replica.served_directories import DataDirectories
from warmlog_broker.runtime.tasks import in_turns
from warmlog_broker.storage.index.warm_keeper import WarmPass, WarmTarget, keep_warm, warm_targets
from warmlog_broker.storage.segment.segment_files import run_deletions
from warmlog_broker.storage.segment.segment_indexes import IndexState
from warmlog_broker.topics.topics import Topics
from warmlog_protocol.errors import StorageError

FIRST_RETENTION_MS = 30_000
"""The latest delay of the first run of retention (Kafka's initial delay)."""
UNLINK_INTERVAL_MS = 500
RESTART_POINT_INTERVAL_MS = 2000
"""A log that was not written to for so long gets a restart point, if much was written since the last one."""
RESTART_POINTS_AT_ONCE = 32
"""Each takes some 0.2 ms of the event loop's thread, and all may be in one flush."""
PRODUCER_EXPIRATION_INTERVAL_MS = 10 * 60 * 1000
"""How often idle producers are looked for, which a partition forgets after a day by default."""
WARM_INTERVAL_MS = 5000
"""How often the ends of active indexes are read: pages that are used this often stay in memory unless it is short."""
CHECK_INTERVAL_MS = 1000
"""How soon a removed disk is noticed if nothing is written."""
PARTITIONS_A_TURN = 16

Duty = Callable[[], Coroutine[Any, Any, object]]

_log = logging.getLogger(__name__)


class WarmIndexes:
    """Keeps the end of every active index in memory: see `storage/index/warm_keeper`."""

    def __init__(self, config: BrokerConfig, topics: Topics, threads: Executor) -> None:
        self._warm_bytes = config.index_warm_bytes
        self._max_bytes = config.index_warm_max_bytes
        self._topics = topics
        self._threads = threads
        self._has_told = False

    async def keep(self) -> WarmPass:
        """Read the warm sections of the active indexes of all partitions that can be read."""
        targets: list[WarmTarget] = []
        async for partition in in_turns(self._topics.partitions, PARTITIONS_A_TURN):
            indexes = partition.log.local.active.indexes if partition.allows.read else None
            if indexes is not None and indexes.state is not IndexState.NEW:
                targets.extend(warm_targets((indexes.offset, indexes.time), self._warm_bytes))
        targets.sort(key=lambda target: target.index is None)
        loop = asyncio.get_running_loop()
        done = await loop.run_in_executor(self._threads, keep_warm, targets, self._max_bytes)
        if done.left_out and not self._has_told:
            _log.warning(
                "%d active index files are not kept in memory: index.warm.max.bytes = %d is enough for %d",
                done.left_out,
                self._max_bytes,
                done.kept,
            )
        self._has_told = done.left_out > 0
        return done


class Housekeeping:
    """The periodic duties of one broker."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        topics: Topics,
        directories: DataDirectories,
        remover: DirectoryRemover,
        threads: Executor,
        now_ms: Callable[[], int],
    ) -> None:
        """`now_ms` is the time by which data and producers expire (`runtime/clock`)."""
        self.deleted_segments = 0
        """By retention, since the start."""
        self.deleted_bytes = 0
        """The size of their logs."""
        self._now_ms = now_ms
        self._config = config
        self._topics = topics
        self._directories = directories
        self._remover = remover
        self._threads = threads
        self._warm_indexes = WarmIndexes(config, topics, threads)
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_retention_due = asyncio.Event()

    def start(self) -> None:
        config = self._config
        retention_ms = config.log_retention_check_interval_ms
        first_ms = min(retention_ms, FIRST_RETENTION_MS)
        self._begin(self.keep_retention, retention_ms, first_ms=first_ms, is_due=self._is_retention_due)
        self._begin(self.unlink_due, UNLINK_INTERVAL_MS)
        self._begin(self.expire_producers, PRODUCER_EXPIRATION_INTERVAL_MS)
        self._begin(self._directories.write_checkpoints, config.log_flush_offset_checkpoint_interval_ms)
        self._begin(self._directories.check, CHECK_INTERVAL_MS)
        self._begin(self.take_restart_points, RESTART_POINT_INTERVAL_MS)
        if config.index_warm_bytes:
            self._begin(self._warm_indexes.keep, WARM_INTERVAL_MS)

    async def stop(self) -> None:
        """End all duties; a running one is finished first."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks.clear()

    async def keep_retention(self) -> None:
        """Delete old segments, and roll idle ones because of segment.ms.

        The new log starts are checkpointed first: otherwise a deleted segment would seem lost after a crash. Segments
        are deleted even if that fails, since the disk may be full.
        """
        now_ms = self._now_ms()
        starts: dict[Partition, int] = {}
        async for partition in in_turns(self._topics.partitions, PARTITIONS_A_TURN):
            with _logged(partition):
                if partition.allows.trim:
                    if partition.log.local.roll_if_overdue(now_ms):
                        self.segments_changed(partition)
                    is_leader = partition.role is Role.LEADING  # the others remove what it has removed
                    retention = partition.log.retention
                    start = retention.raise_log_start(now_ms) if is_leader else partition.log.log_start_offset
                    if start is not None:
                        starts[partition] = start
        self._directories.note(starts)
        await self._directories.write_checkpoints()
        async for partition in in_turns(starts, PARTITIONS_A_TURN):
            with _logged(partition):
                # A replacement by compaction would have to be completed first, with syncs here: left to the next run.
                if partition.allows.trim and not partition.log.compaction.is_taking_in:
                    log = partition.log
                    before_bytes = log.size_bytes
                    deleted = log.retention.delete_old_segments(now_ms, below=starts[partition])
                    self.deleted_segments += deleted
                    self.deleted_bytes += before_bytes - log.size_bytes
                    if deleted:
                        self.segments_changed(partition)

    def keep_retention_soon(self) -> None:
        """Have `keep_retention` run now, because settings of topics have changed."""
        self._is_retention_due.set()

    def segments_changed(self, partition: Partition) -> None:
        """Have new file names of `partition` flushed, and its offsets checkpointed, after its segments changed."""
        holder = self._directories.holder_of(partition)
        if holder is not None:
            holder.checkpoints.note([partition])
            holder.flusher.flush_within(partition, partition.config.flush_ms)

    async def unlink_due(self) -> None:
        """Unlink files of removed segments and directories of deleted partitions after their delay."""
        elapsed_ms = int(self._loop.time() * 1000)
        await self._remover.remove_due()
        for log in list(self._topics.unlinking):
            if log.failure or not log.has_deletions:
                self._topics.unlinking.discard(log)
                continue
            try:
                due = log.take_due_deletions(elapsed_ms)
                await self._loop.run_in_executor(self._threads, run_deletions, due)
            except OSError as error:
                _log.warning("%s: a removed file could not be unlinked: %s", log.key.directory_name, error)

    async def expire_producers(self) -> None:
        """Forget idempotent producers that have not written for long."""
        now_ms = self._now_ms()
        async for partition in in_turns(self._topics.partitions, PARTITIONS_A_TURN):
            if partition.allows.read:
                partition.log.producers.expire(now_ms, self._config.producer_id_expiration_ms)

    async def take_restart_points(self) -> None:
        """Have logs that are no longer written to take a restart point, so that a start after a crash reads little."""
        taken = 0
        async for partition in in_turns(self._topics.partitions, PARTITIONS_A_TURN):
            taken += partition.take_restart_point()
            if taken == RESTART_POINTS_AT_ONCE:
                return

    def _begin(
        self, duty: Duty, interval_ms: int, *, first_ms: int | None = None, is_due: asyncio.Event | None = None
    ) -> None:
        repeated = self._repeat(duty, first_ms or interval_ms, interval_ms, is_due or asyncio.Event())
        self._tasks.append(self._loop.create_task(repeated))

    async def _repeat(self, duty: Duty, first_ms: int, interval_ms: int, is_due: asyncio.Event) -> None:
        """Run `duty` periodically, and early when `is_due`, until `stop`. It continues after a run that fails."""
        delay_ms = first_ms
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(is_due.wait(), delay_ms / 1000)
            is_due.clear()
            delay_ms = interval_ms
            work = self._loop.create_task(duty())
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait([work])
                raise
            except Exception:
                _log.exception("housekeeping failed: a bug")


@contextmanager
def _logged(partition: Partition) -> Iterator[None]:
    """Log what fails for `partition`, and let the others continue. After an error of its disk, that is probed."""
    try:
        yield
    except (OSError, StorageError) as error:
        _log.error("%s: retention failed: %s", partition.key.directory_name, error)
        if partition.disk is not None:
            partition.disk.probe_soon()
    except Exception:
        _log.exception("%s: retention failed: a bug", partition.key.directory_name)
