"""Threads for what would hold up the event loop. All of them run before the broker serves.

A request is no time to find out that no further thread is to be had, and a broker whose threads were all there from the
beginning does not grow by one, with its stack and its share of the allocator, on the day of its highest load.

The thread that waits for the disk.

One thread and a queue written in C: a group commit happens a thousand times a second and more, and an executor with
its futures and conditions costs several times as much at each handover.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Barrier
from typing import Self

from warmlog_broker.config.broker_config import BrokerConfig

Job = Callable[[], None]
_log = logging.getLogger(__name__)


DISK_THREADS = 4
"""For what is done one at a time: metadata, checkpoints, making and removing directories."""
PREPARING_THREADS = 2
"""For batches whose records are looked at: one in the interpreter, and one in a codec, which runs beside it."""


class CannotStartThreads(Exception):
    """The system gives no more threads to this process or user."""


@contextmanager
def starting(what: str) -> Iterator[None]:
    """Within, a thread that cannot be started is CannotStartThreads, which names `what` it was for."""
    try:
        yield
    except RuntimeError as error:
        raise CannotStartThreads(
            f"cannot start threads for {what}: {error}; the limit may be one of memory, of the user's processes "
            "(ulimit -u), of the service (TasksMax) or of the container (pids)"
        ) from error


def start_threads(count: int, name: str) -> ThreadPoolExecutor:
    """A pool of `count` threads that run already. CannotStartThreads when the system does not give so many."""
    pool = ThreadPoolExecutor(count, name)
    all_run = Barrier(count + 1)
    try:
        with starting(f"{name} ({count})"):
            for _ in range(count):
                pool.submit(all_run.wait)
        all_run.wait()
    except BaseException:
        all_run.abort()
        pool.shutdown(wait=False)
        raise
    return pool


@dataclass(frozen=True, slots=True)
class ThreadPools:
    """What all parts of a broker share; flushes and compaction have threads of their own."""

    disk: ThreadPoolExecutor
    trying: ThreadPoolExecutor
    """One for each data directory, as a directory that is tried may hang."""
    cold_readers: ThreadPoolExecutor
    preparers: ThreadPoolExecutor

    @classmethod
    def start(cls, config: BrokerConfig) -> Self:
        """All or none. CannotStartThreads when the system does not give so many."""
        with ExitStack() as undo:

            def started(count: int, name: str) -> ThreadPoolExecutor:
                pool = start_threads(count, name)
                undo.callback(pool.shutdown)
                return pool

            pools = cls(
                disk=started(DISK_THREADS, "disk"),
                trying=started(len(config.data_paths), "try-directory"),
                cold_readers=started(config.cold_read_threads, "cold-read"),
                preparers=started(PREPARING_THREADS, "prepare"),
            )
            undo.pop_all()
        return pools

    def shut_down(self) -> None:
        """Returns when all have ended."""
        for pool in (self.disk, self.trying, self.cold_readers, self.preparers):
            pool.shutdown()


class FlushThread:
    """Runs jobs one after another, in the order in which they come."""

    def __init__(self) -> None:
        """CannotStartThreads when the system gives no more."""
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
        with starting("flushes"):
            self._thread.start()

    def submit(self, job: Job) -> None:
        """`job` is called in the thread; it must see to its own errors."""
        self._jobs.put(job)

    def close(self) -> None:
        """Returns when all jobs have been run and the thread has ended. Harmless when called again."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                _log.exception("a job of the flush thread failed: a bug")
