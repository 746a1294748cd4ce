"""Group commit: what was appended to any partition becomes durable, in as few flushes as possible.

One flush is under way at a time; all that is appended meanwhile goes into the next one, which begins as soon as the
first is over. An append that somebody waits for (acks=all) starts a flush at the end of the event loop's turn, so that
everything that came in with it takes part; any other append is flushed within the topic's `flush.ms`. When a flush is
over, high watermarks move, waiters are answered, and readers are woken.

A flush that fails is not tried again, as the kernel would then report success for data that is lost: its partitions go
offline. Where a sync could not even begin, for want of a descriptor, nothing is lost: it is begun anew a little later.

Which partitions are to be flushed when, although nobody waits for it: what `flush.ms` asks for.

Partitions with the same delay fall due in the order in which they came, so each delay has a queue, and only the heads
of the queues are ever compared: with thousands of partitions a flush takes no longer to find out who is due.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.sync_strategy import run_plans
from warmlog_broker.runtime.outbox import Outbox
from warmlog_broker.runtime.threads import FlushThread, start_threads
from warmlog_broker.storage.io.os_errors import SyncNotBegun, is_read_only, is_shortage
from warmlog_broker.storage.log.flush_plan import FlushPlan
from warmlog_protocol.errors import StorageError

POSTPONED_MS = 100
"""When a sync that could not begin is tried again."""
COMPLAINT_INTERVAL_S = 10.0
PARTITIONS_A_TURN = 256
"""About 5 ms, for so many partitions of one flush."""

_log = logging.getLogger(__name__)


class DueFlushes:
    """Partitions, each with the time at which it is due. Times are seconds of one clock that never goes back."""

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
        """When the first one is due; None when there is none."""
        return min((next(iter(queue.values())) for queue in self._queues.values()), default=None)

    def add(self, partition: Partition, delay_ms: int, now_s: float) -> float:
        """`partition`, which must not be among them, is due after `delay_ms`; returns when that is."""
        due_s = now_s + delay_ms / 1000
        self._delays_ms[partition] = delay_ms
        queue = self._queues.get(delay_ms)
        if queue is None:
            queue = self._queues[delay_ms] = OrderedDict()
        queue[partition] = due_s
        return due_s

    def discard(self, partition: Partition) -> None:
        """`partition` is flushed now; harmless when it was not among them."""
        delay_ms = self._delays_ms.pop(partition, None)
        if delay_ms is None:
            return
        queue = self._queues[delay_ms]
        del queue[partition]
        if not queue:
            del self._queues[delay_ms]

    def take(self, now_s: float) -> list[Partition]:
        """Removes those whose time has come, and returns them."""
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
        """Removes all of them, and returns them."""
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
        outbox: Outbox,
        on_flushed: Callable[[Sequence[Partition]], None],
    ) -> None:
        """`on_flushed` is told whose recovery points have moved."""
        self.flush_count = 0
        self._outbox = outbox
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
        """When the timer rings; uvloop's handle does not know it when that is now."""
        self._postponed_s = -COMPLAINT_INTERVAL_S
        """When it was last said that a flush has to wait."""
        self._is_scheduled = self._is_flushing = False
        self._waking = 0
        """How many flushes are over of which not everybody was told yet."""
        self._idle = asyncio.Event()
        self._idle.set()

    def appended(self, partition: Partition, *, is_waited_for: bool) -> None:
        """Something was appended to `partition`: flushes it, at once if somebody waits or flush.messages says so."""
        if is_waited_for or partition.log.is_flush_due:
            self._urgent[partition] = None
            if not self._is_scheduled and not self._is_flushing:
                self._is_scheduled = True
                self._idle.clear()
                self._loop.call_soon(self._start)
        elif partition not in self._due:
            self._set_timer(self._due.add(partition, partition.config.flush_ms, self._loop.time()))

    async def flush_all(self) -> None:
        """Returns when everything appended until now was flushed, or its partition is offline, or is to be flushed
        later for want of descriptors."""
        self._urgent.update(dict.fromkeys(self._due.take_all()))
        if self._urgent and not self._is_scheduled and not self._is_flushing:
            self._start()
        await self._idle.wait()

    def close(self) -> None:
        """Ends the threads. Nothing may be under way."""
        if self._timer is not None:
            self._timer.cancel()
        self._thread.close()
        self._helpers.shutdown()

    def _start(self) -> None:
        """Begins a flush of all partitions that need one now."""
        self._is_scheduled, self._is_flushing = False, True
        self._idle.clear()
        partitions: list[Partition] = []
        plans: list[FlushPlan] = []
        self._in_turns(self._preparing(partitions, plans), partial(self._prepared, partitions, plans))

    def _preparing(self, partitions: list[Partition], plans: list[FlushPlan]) -> Iterator[None]:
        for partition in self._take_due():
            plan = self._prepare(partition)
            if plan is not None:
                partitions.append(partition)
                plans.append(plan)
            yield

    def _prepared(self, partitions: list[Partition], plans: list[FlushPlan]) -> None:
        if plans:
            self._thread.submit(partial(self._run, partitions, plans))
        else:
            self._is_flushing = False
            if self._urgent:  # they came between the turns
                self._start()
            else:
                self._rest()

    def _in_turns(self, steps: Iterator[None], then: Callable[[], None]) -> None:
        """Takes `steps`, one for each partition, and calls `then`; here and now, unless there are many.

        Those are taken over several turns of the event loop, so that others are served in between.
        """
        if len(list(islice(steps, PARTITIONS_A_TURN))) < PARTITIONS_A_TURN:
            then()
        else:
            self._loop.call_soon(self._in_turns, steps, then)
        self._outbox.send()

    def _rest(self) -> None:
        """Lets those go on who wait until nothing is under way, if that is so."""
        if not (self._is_flushing or self._is_scheduled or self._waking):
            self._idle.set()

    def _prepare(self, partition: Partition) -> FlushPlan | None:
        home = partition.home
        if home is not None and home.flusher is not self:
            return None  # it has moved away since: a syncfs of this disk says nothing of where it lies now
        try:
            return partition.prepare_flush()
        except StorageError as error:
            partition.take_offline(str(error))
        except OSError as error:
            if is_shortage(error):
                self._postpone(partition, error)
            else:
                partition.take_offline(f"a flush could not be prepared: {error}")
        except Exception as problem:  # want of memory, say: it concerns this partition alone
            _log.exception("%s: a flush could not be prepared", partition.key.directory_name)
            partition.take_offline(f"a flush could not be prepared: {problem!r}")
        return None

    def _postpone(self, partition: Partition, error: OSError) -> None:
        """Has `partition` flushed a little later: who waits for it waits on."""
        if self._postponed_s + COMPLAINT_INTERVAL_S < self._loop.time():
            self._postponed_s = self._loop.time()
            _log.error("%s is flushed later: %s", partition.key.directory_name, error)
        self._due.discard(partition)
        self._set_timer(self._due.add(partition, POSTPONED_MS, self._loop.time()))

    def _take_due(self) -> dict[Partition, None]:
        """The partitions to flush now: those that somebody waits for, and those whose time has come."""
        partitions, self._urgent = self._urgent, {}
        if self._due:
            for partition in partitions:
                self._due.discard(partition)
            partitions.update(dict.fromkeys(self._due.take(self._loop.time())))
            next_s = self._due.next_s
            if next_s is not None:
                self._set_timer(next_s)
        return partitions

    def _set_timer(self, due_s: float) -> None:
        """Sees to it that the timer rings at `due_s`, or before."""
        if self._timer is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = self._loop.call_at(due_s, self._timer_rang)

    def _timer_rang(self) -> None:
        self._timer = None
        if not self._is_scheduled and not self._is_flushing:
            self._start()

    def _run(self, partitions: list[Partition], plans: list[FlushPlan]) -> None:
        """In the flush thread: syncs, and hands the outcomes back to the event loop."""
        outcomes: Sequence[Exception | None]
        try:
            outcomes = self._run_plans(plans)
        except Exception as error:
            _log.exception("a flush failed in a way of its own: a bug")
            outcomes = [error] * len(plans)
        self._loop.call_soon_threadsafe(self._finish, partitions, plans, outcomes)

    def _finish(
        self, partitions: list[Partition], plans: list[FlushPlan], outcomes: Sequence[Exception | None]
    ) -> None:
        """Notes what is durable, begins the next flush, and only then answers: the disk is not kept waiting."""
        self.flush_count += 1
        self._in_turns(self._noting(partitions, plans, outcomes), partial(self._noted, partitions))

    def _noting(
        self, partitions: list[Partition], plans: list[FlushPlan], outcomes: Sequence[Exception | None]
    ) -> Iterator[None]:
        for partition, plan, error in zip(partitions, plans, outcomes, strict=True):
            try:
                self._take_note(partition, plan, error)
            except Exception as problem:
                _log.exception("%s: the outcome of a flush could not be noted", partition.key.directory_name)
                partition.take_offline(f"the outcome of a flush could not be noted: {problem!r}")
            yield

    def _noted(self, partitions: list[Partition]) -> None:
        self._waking += 1
        self._start()
        self._on_flushed(partitions)
        self._in_turns(self._wake(partitions), self._woken)

    @staticmethod
    def _wake(partitions: list[Partition]) -> Iterator[None]:
        for partition in partitions:
            try:
                partition.wake()
            except Exception:
                _log.exception("%s: those who wait for a flush could not be told", partition.key.directory_name)
            yield

    def _woken(self) -> None:
        self._waking -= 1
        self._rest()

    def _take_note(self, partition: Partition, plan: FlushPlan, error: Exception | None) -> None:
        """What the outcome of `plan` means for its partition."""
        if error is None:
            partition.flushed(plan)
        elif isinstance(error, SyncNotBegun):
            partition.not_flushed(plan)
            self._postpone(partition, error)
        elif not partition.owns(plan):
            return
        elif isinstance(error, OSError) and is_read_only(error):
            partition.freeze(f"a flush failed: {error}")
            if partition.home is not None:
                partition.home.suspect()
        else:
            _log.critical("%s IS OFFLINE: its flush failed: %s", partition.key.directory_name, error)
            partition.take_offline(f"a flush failed: {error}")
