"""What has to be done now and then: retention, rolls by the clock, unlinking, forgetting producers, checkpoints.

Each duty is a task of its own. Between partitions the event loop gets its turn; unlinking and checkpoints, which wait
for the disk, are done in a thread.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.deletion import DoomedDirectories
from warmlog_broker.maintenance.index_warmer import WarmIndexes
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.served_directories import DataDirectories
from warmlog_broker.replica.topics import Topics
from warmlog_broker.storage.segment.delayed_deletion import run_deletions
from warmlog_protocol.errors import StorageError

FIRST_RETENTION_MS = 30_000
"""Retention is first looked at after this, however long its interval is (Kafka's initial delay)."""
UNLINK_INTERVAL_MS = 500
LOOK_INTERVAL_MS = 1000
"""How soon a disk that was taken away is noticed when nobody writes to it."""
PARTITIONS_A_TURN = 16

Duty = Callable[[], Coroutine[Any, Any, object]]

_log = logging.getLogger(__name__)


class Housekeeping:
    """The periodic duties of one broker."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        topics: Topics,
        directories: DataDirectories,
        doomed: DoomedDirectories,
        threads: Executor,
        now_ms: Callable[[], int],
    ) -> None:
        """`now_ms` is the time by which data and producers are given up (`trusted_clock`)."""
        self._now_ms = now_ms
        self._config = config
        self._topics = topics
        self._directories = directories
        self._doomed = doomed
        self._threads = threads
        self._warm_indexes = WarmIndexes(config, topics, threads)
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._unlinking: dict[Partition, None] = {}

    def start(self) -> None:
        """Begins all duties."""
        config = self._config
        retention_ms = config.log_retention_check_interval_ms
        self._begin(self.keep_retention, retention_ms, first_ms=min(retention_ms, FIRST_RETENTION_MS))
        self._begin(self.unlink_due, UNLINK_INTERVAL_MS)
        self._begin(self.expire_producers, config.producer_id_expiration_check_interval_ms)
        self._begin(self.write_checkpoints, config.log_flush_offset_checkpoint_interval_ms)
        self._begin(self.look_at_directories, LOOK_INTERVAL_MS)
        if config.index_warm_bytes:
            self._begin(self._warm_indexes.keep, config.index_warm_interval_ms)

    async def stop(self) -> None:
        """Ends all duties; one that is under way is finished first."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks.clear()

    async def keep_retention(self) -> None:
        """Gives up old segments, and rolls those that segment.ms has closed although nobody appends.

        Where the logs start is written down first: a segment that goes before that would seem to be lost after a crash.
        A disk that refuses to write it down keeps no segment from going, since it may be full.
        """
        now_ms = self._now_ms()
        starts: dict[Partition, int] = {}
        for number, partition in enumerate(self._topics.partitions, 1):
            start = self._raise_log_start_of(partition, now_ms)
            if start is not None:
                starts[partition] = start
            if number % PARTITIONS_A_TURN == 0:
                await asyncio.sleep(0)
        self._directories.note(starts)
        await self._directories.write_checkpoints()
        for number, (partition, start) in enumerate(starts.items(), 1):
            self._give_up_segments_of(partition, now_ms, start)
            if number % PARTITIONS_A_TURN == 0:
                await asyncio.sleep(0)

    def segments_changed(self, partition: Partition) -> None:
        """`partition` has other segments than before: new names are to be flushed, old files to be unlinked."""
        self._unlinking[partition] = None
        holder = self._directories.holder_of(partition)
        if holder is not None:
            holder.files_changed(partition)

    async def unlink_due(self) -> None:
        """Unlinks files of removed segments and directories of deleted partitions whose time has come."""
        elapsed_ms = int(self._loop.time() * 1000)
        await self._doomed.remove_due()
        for partition in list(self._unlinking):
            if not partition.allows.trim or not partition.log.local.has_deletions:
                del self._unlinking[partition]
                continue
            try:
                due = partition.log.local.take_due_deletions(elapsed_ms)
                await self._loop.run_in_executor(self._threads, run_deletions, due)
            except OSError as error:
                _log.warning("%s: a removed file could not be unlinked: %s", partition.key.directory_name, error)

    async def expire_producers(self) -> None:
        """Forgets idempotent producers that have not written for long."""
        now_ms = self._now_ms()
        for number, partition in enumerate(self._topics.partitions, 1):
            if partition.allows.read:
                partition.log.producers.expire(now_ms, self._config.producer_id_expiration_ms)
            if number % PARTITIONS_A_TURN == 0:
                await asyncio.sleep(0)

    async def write_checkpoints(self) -> None:
        """Writes down what has moved."""
        await self._directories.write_checkpoints()

    async def look_at_directories(self) -> None:
        """Finds out whether the data directories are still there."""
        await self._directories.look()

    def _raise_log_start_of(self, partition: Partition, now_ms: int) -> int | None:
        """The end of what retention no longer keeps, from which on the log is read now; None if it keeps all."""
        with _told(partition):
            if partition.allows.trim:
                if partition.log.local.roll_if_overdue(now_ms):
                    self.segments_changed(partition)
                return partition.log.retention.raise_log_start(now_ms)
        return None

    def _give_up_segments_of(self, partition: Partition, now_ms: int, below: int) -> None:
        with _told(partition):
            if not partition.allows.trim:
                return
            log = partition.log
            # What compaction takes in would have to be completed first, with syncs here: the next look is soon enough.
            if not log.compaction.is_taking_in and log.retention.delete_old_segments(now_ms, below=below):
                self.segments_changed(partition)

    def _begin(self, duty: Duty, interval_ms: int, *, first_ms: int | None = None) -> None:
        repeated = self._repeat(duty, first_ms or interval_ms, interval_ms)
        self._tasks.append(self._loop.create_task(repeated))

    async def _repeat(self, duty: Duty, first_ms: int, interval_ms: int) -> None:
        """Does `duty` until it is stopped. One that fails is logged and done again the next time."""
        delay_ms = first_ms
        while True:
            await asyncio.sleep(delay_ms / 1000)
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
def _told(partition: Partition) -> Iterator[None]:
    """Logs that a disk refuses; the partition may be offline then."""
    try:
        yield
    except StorageError as error:
        _log.error("%s: retention failed: %s", partition.key.directory_name, error)
