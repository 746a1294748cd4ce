"""Group commit: make appends to all partitions durable in as few flushes as possible.

One flush runs at a time; records appended meanwhile are part of the next one, which begins as soon as the first ends.
An append that waits for it (acks=all) starts a flush at the end of the event loop's turn, together with all appends of
that turn; any other append is flushed within the topic's `flush.ms`. After a flush high watermarks move, appends
complete, and readers are woken.

A flush that fails is not retried, since the kernel could then report success for lost data: its partitions go offline.
A sync that never began (out of descriptors or memory) has lost nothing, and is retried a little later.

Soon after each flush the recovery points are checkpointed, so that a restart has little to check (`CheckpointWriter`).
The files are replaced as a whole, by one writer at a time, in a thread. Their keys are names: before a topic is
created, the entries of a deleted topic of that name are removed (`forget`).
"""

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from warmlog_broker.replica.partition import Partition
from warmlog_broker.runtime.counters import COUNTS, SECONDS, Histogram
from warmlog_broker.runtime.threads import start_threads, starting
from warmlog_broker.storage.directory.data_dir import DataDirectory, LogOffsets
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.os_errors import is_resource_exhaustion
from warmlog_broker.storage.log.flush_plan import FlushPlan, run_plans

POSTPONED_MS = 100
"""The delay before a sync that never began is retried."""
COMPLAINT_INTERVAL_S = 10.0
PARTITIONS_A_TURN = 256
"""Partitions of one flush that are processed in one turn of the event loop: about 5 ms."""

_log = logging.getLogger(__name__)


class FlushThread:
    """One thread that runs jobs in order, for syncs of the disk.

    It uses a queue in C: there may be a thousand group commits a second, and an executor costs several times as much.
    """

    def __init__(self) -> None:
        """Raises CannotStartThreads if the system allows no more."""
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
        with starting("flushes"):
            self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        """Call `job` in the thread; it handles its own errors."""
        self._jobs.put(job)

    def close(self) -> None:
        """Return when all jobs were run and the thread has ended. Idempotent."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                _log.exception("a job of the flush thread failed: a bug")


class DueFlushes:
    """Partitions to be flushed within `flush.ms`, each with the time at which it is due.

    Times are seconds of one monotonic clock. Each delay has a queue, in which partitions become due in order; only the
    heads of the queues are compared, so thousands of partitions do not slow a flush down.
    """

    def __init__(self) -> None:
        self._queues: dict[int, OrderedDict[Partition, float]] = {}
        """By the delay in ms; a queue is removed once it is empty."""
        self._delays_ms: dict[Partition, int] = {}

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._delays_ms

    def __bool__(self) -> bool:
        return bool(self._delays_ms)

    @property
    def next_s(self) -> float | None:
        """When the first partition is due; None if there is none."""
        return min((next(iter(queue.values())) for queue in self._queues.values()), default=None)

    def add(self, partition: Partition, delay_ms: int, now_s: float) -> float:
        """Add `partition`, which must not be there yet, due after `delay_ms`; return when that is."""
        due_s = now_s + delay_ms / 1000
        self._delays_ms[partition] = delay_ms
        queue = self._queues.get(delay_ms)
        if queue is None:
            queue = self._queues[delay_ms] = OrderedDict()
        queue[partition] = due_s
        return due_s

    def discard(self, partition: Partition) -> None:
        delay_ms = self._delays_ms.pop(partition, None)
        if delay_ms is None:
            return
        queue = self._queues[delay_ms]
        del queue[partition]
        if not queue:
            del self._queues[delay_ms]

    def take(self, now_s: float) -> list[Partition]:
        """Remove and return the partitions that are due."""
        taken = []
        for delay_ms, queue in list(self._queues.items()):
            while queue and next(iter(queue.values())) <= now_s:
                partition, _ = queue.popitem(last=False)
                del self._delays_ms[partition]
                taken.append(partition)
            if not queue:
                del self._queues[delay_ms]
        return taken

    def take_all(self) -> list[Partition]:
        taken = list(self._delays_ms)
        self._delays_ms.clear()
        self._queues.clear()
        return taken


class Flusher:
    """The group commit of one data directory."""

    def __init__(
        self,
        data_dir: Path,
        *,
        threads: int,
        syncfs_files: int,
        here: Container[Partition],
        on_flushed: Callable[[Sequence[Partition]], None],
    ) -> None:
        """`here` are the partitions of the directory. `on_flushed` gets those whose recovery points have moved."""
        self.flush_seconds = Histogram(SECONDS)
        self.flush_partitions = Histogram(COUNTS)
        """How many partitions one flush makes durable."""
        self._here = here
        self._on_flushed = on_flushed
        self._loop = asyncio.get_running_loop()
        self._helpers = start_threads(max(1, threads - 1), "flush-more")
        try:
            self._thread = FlushThread()
        except BaseException:
            self._helpers.shutdown()
            raise
        self._run_plans = partial(
            run_plans, data_dir=data_dir, syncfs_files=syncfs_files, threads=self._helpers, thread_count=threads
        )
        self._urgent: dict[Partition, None] = {}
        self._due = DueFlushes()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        """When the timer is due, which uvloop's handle does not tell if that is now."""
        self._postponed_s = -COMPLAINT_INTERVAL_S
        """When a postponed flush was last logged."""
        self._is_busy = False
        """Whether a flush is about to begin, or its outcome is not noted yet."""
        self._waking = 0
        """The number of flushes that are noted, but whose appends have not all completed."""
        self._idle = asyncio.Event()
        """Set while no flush is running, and all appends of flushes have completed."""
        self._idle.set()

    def flush_soon(self, partition: Partition) -> None:
        """Flush `partition` at the end of the event loop's turn, or after the current flush."""
        self._urgent[partition] = None
        if not self._is_busy:
            self._is_busy = True
            self._idle.clear()
            self._loop.call_soon(self._start)

    def flush_within(self, partition: Partition, delay_ms: int) -> None:
        """Flush `partition` after `delay_ms` at the latest."""
        if partition not in self._due:
            self._set_timer(self._due.add(partition, delay_ms, self._loop.time()))

    async def flush_all(self) -> None:
        """Return once all that was appended before this call was flushed or postponed, or its partition is offline."""
        self._urgent.update(dict.fromkeys(self._due.take_all()))
        if not self._is_busy:
            self._start()
        await self._idle.wait()

    def close(self) -> None:
        """End the threads. No flush may be under way."""
        if self._timer is not None:
            self._timer.cancel()
        self._thread.close()
        self._helpers.shutdown()

    def _start(self) -> None:
        """Begin a flush of all partitions that are urgent or due. No other may be running."""
        self._is_busy = True
        self._idle.clear()
        partitions, self._urgent = self._urgent, {}
        if self._due:
            for partition in partitions:
                self._due.discard(partition)
            partitions.update(dict.fromkeys(self._due.take(self._loop.time())))
            next_s = self._due.next_s
            if next_s is not None:
                self._set_timer(next_s)
        self._prepare(list(partitions), [], [])

    # Many partitions are prepared, noted and woken over several turns of the event loop, with others served in between.

    def _prepare(self, due: list[Partition], partitions: list[Partition], plans: list[FlushPlan]) -> None:
        """Plan the syncs of the partitions that are `due`, and have them run."""
        for partition in due[:PARTITIONS_A_TURN]:
            if partition not in self._here:
                continue  # it has moved away since: a syncfs of this disk does not cover it
            try:
                plan = partition.prepare_flush()
            except Exception as error:  # it concerns this partition alone
                if isinstance(error, OSError) and is_resource_exhaustion(error):
                    self._postpone(partition, error)
                else:
                    _log.exception("%s: a flush could not be prepared", partition.key.directory_name)
                    partition.take_offline(f"a flush could not be prepared: {error!r}")
                continue
            if plan is not None:
                partitions.append(partition)
                plans.append(plan)
        if len(due) > PARTITIONS_A_TURN:
            self._loop.call_soon(self._prepare, due[PARTITIONS_A_TURN:], partitions, plans)
        elif plans:
            self._thread.submit(partial(self._run, partitions, plans))
        elif self._urgent:  # added meanwhile
            self._loop.call_soon(self._start)
        else:
            self._is_busy = False
            if not self._waking:
                self._idle.set()

    def _postpone(self, partition: Partition, error: Exception | None) -> None:
        """Flush `partition` a little later; its appends keep waiting."""
        if self._postponed_s + COMPLAINT_INTERVAL_S < self._loop.time():
            self._postponed_s = self._loop.time()
            _log.error("%s is flushed later: %s", partition.key.directory_name, error)
        self._due.discard(partition)
        self._set_timer(self._due.add(partition, POSTPONED_MS, self._loop.time()))

    def _set_timer(self, due_s: float) -> None:
        """Make the timer due at `due_s` or earlier."""
        if self._timer is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = self._loop.call_at(due_s, self._timer_rang)

    def _timer_rang(self) -> None:
        self._timer = None
        if not self._is_busy:
            self._start()

    def _run(self, partitions: list[Partition], plans: list[FlushPlan]) -> None:
        """In the flush thread: sync, and pass the outcomes to the event loop."""
        outcomes: Sequence[Exception | None]
        began_s = time.perf_counter()
        try:
            outcomes = self._run_plans(plans)
        except Exception as error:
            _log.exception("a flush failed: a bug")
            outcomes = [error] * len(plans)
        done = list(zip(partitions, plans, outcomes, strict=True))
        self._loop.call_soon_threadsafe(self._note, done, partitions, time.perf_counter() - began_s)

    def _note(
        self, done: list[tuple[Partition, FlushPlan, Exception | None]], partitions: list[Partition], took_s: float
    ) -> None:
        """Note what is durable, begin the next flush, and only then complete appends: the disk stays busy.

        `done` are the partitions of the flush that are not noted yet; the syncs took `took_s`.
        """
        for partition, plan, error in done[:PARTITIONS_A_TURN]:
            try:
                if partition.flushed(plan, error):
                    self._postpone(partition, error)
            except Exception as problem:  # it concerns this partition alone
                _log.exception("%s: the outcome of a flush could not be noted", partition.key.directory_name)
                partition.take_offline(f"the outcome of a flush could not be noted: {problem!r}")
        if len(done) > PARTITIONS_A_TURN:
            self._loop.call_soon(self._note, done[PARTITIONS_A_TURN:], partitions, took_s)
            return
        self.flush_seconds.observe(took_s)
        self.flush_partitions.observe(len(partitions))
        self._waking += 1
        self._start()
        self._on_flushed(partitions)
        self._wake(partitions)

    def _wake(self, partitions: list[Partition]) -> None:
        """Complete appends, and wake readers."""
        for partition in partitions[:PARTITIONS_A_TURN]:
            try:
                partition.wake()
            except Exception:
                _log.exception("%s: appends could not be completed after a flush", partition.key.directory_name)
        if len(partitions) > PARTITIONS_A_TURN:
            self._loop.call_soon(self._wake, partitions[PARTITIONS_A_TURN:])
        else:
            self._waking -= 1
            if not (self._is_busy or self._waking):
                self._idle.set()


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
