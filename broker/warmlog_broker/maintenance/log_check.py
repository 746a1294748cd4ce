"""The check in the background, after an unclean start, of what recovery has left out to serve sooner.

That is, of each log, what the active segment has below the restart point (`storage/recovery`). It is read once, by a
thread that is throttled and rests half of the time. Damage is reported as recovery reports it: it is logged with its
position, it is counted, and from then on a read there is refused. Before, a reader finds it by the CRC of the batch.
"""

import asyncio
import logging
from concurrent.futures import Executor
from functools import partial

from warmlog_broker.replica.partition import Partition
from warmlog_broker.runtime.threads import start_threads
from warmlog_broker.storage.cleaner.throttle import CleaningAborted, CleaningPace
from warmlog_broker.storage.recovery.recovery import UncheckedRange
from warmlog_broker.topics.topics import Topics

BYTES_PER_SECOND = 64 * 1024 * 1024
"""Some 20 s for a segment of the default size, and a quarter of what a slow disk reads."""

_log = logging.getLogger(__name__)


class LogCheck:
    """The check of one broker's logs."""

    def __init__(self, topics: Topics) -> None:
        self.unchecked_bytes = 0
        """What is still to be read."""
        self._topics = topics
        self._pace = CleaningPace(BYTES_PER_SECOND)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, if recovery has left anything out. Logs that are opened later are not checked."""
        waiting = [
            (partition, partition.log.local.unchecked)
            for partition in self._topics.partitions
            if partition.allows.read and partition.log.local.unchecked is not None
        ]
        if waiting:
            self.unchecked_bytes = sum(unchecked.end_position for _, unchecked in waiting)
            _log.info("checking %d bytes of %d logs in the background", self.unchecked_bytes, len(waiting))
            self._task = asyncio.get_running_loop().create_task(self._run(waiting), name="check of the logs")

    async def finish(self) -> None:
        """Return once all is checked that there is to check."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Cancel the check; what is left is not checked before the next unclean start."""
        self.cancel()
        await self.finish()

    @property
    def damage_count(self) -> int:
        """How many damaged ranges are known, by recovery and by this check, in logs that can be read."""
        return sum(len(partition.log.local.damage) for partition in self._topics.partitions if partition.allows.read)

    async def _run(self, waiting: list[tuple[Partition, UncheckedRange]]) -> None:
        total_bytes = self.unchecked_bytes
        threads = start_threads(1, "check")
        try:
            for partition, unchecked in waiting:
                await self._check(partition, unchecked, threads)
                self.unchecked_bytes -= unchecked.end_position
        except CleaningAborted:
            return
        finally:
            threads.shutdown()
        _log.info("checked %d bytes of %d logs in the background", total_bytes, len(waiting))

    def cancel(self) -> None:
        """End the check at its next batch."""
        self._pace.stop()

    async def _check(self, partition: Partition, unchecked: UncheckedRange, threads: Executor) -> None:
        if not partition.allows.read:
            return
        log = partition.log
        try:
            work = partial(unchecked.check, self._pace.after)
            damage = await asyncio.get_running_loop().run_in_executor(threads, work)
        except FileNotFoundError:
            return  # retention has removed the segment
        except OSError as error:
            _log.error("%s cannot be checked: %s", unchecked.path, error)
            return
        if partition.allows.read and partition.log is log and log.local.note_checked(unchecked, damage):
            log.recovery_report.damage += damage
            for each in damage:
                _log.error("%s: %s", partition.key.directory_name, each)
            if damage and partition.replication is not None:
                partition.replication.damaged(str(damage[0]))
