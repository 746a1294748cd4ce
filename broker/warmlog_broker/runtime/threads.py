"""Threads for work that would block the event loop. All are started before the broker serves: a lack of threads shows
at the start, and memory does not grow with the load."""

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
"""For batches whose records are read: one in the interpreter, and one in a codec, which runs beside it."""


class CannotStartThreads(Exception):
    """The system gives no more threads to this process or user."""


@contextmanager
def starting(what: str) -> Iterator[None]:
    """Turn a failure to start a thread into CannotStartThreads, which names `what` it was for."""
    try:
        yield
    except RuntimeError as error:
        raise CannotStartThreads(
            f"cannot start threads for {what}: {error}; the limit may be one of memory, of the user's processes "
            "(ulimit -u), of the service (TasksMax) or of the container (pids)"
        ) from error


def start_threads(count: int, name: str) -> ThreadPoolExecutor:
    """A pool of `count` running threads. Raises CannotStartThreads if the system does not allow so many."""
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
    """One for each data directory, as a probe of a directory may hang."""
    cold_readers: ThreadPoolExecutor
    preparers: ThreadPoolExecutor

    @classmethod
    def start(cls, config: BrokerConfig) -> Self:
        """All or none. Raises CannotStartThreads if the system does not allow so many."""
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
        """Return when all have ended."""
        for pool in (self.disk, self.trying, self.cold_readers, self.preparers):
            pool.shutdown()


class FlushThread:
    """One thread that runs jobs in order, for waits on the disk.

    A queue in C: a group commit happens a thousand times a second, and an executor costs several times as much.
    """

    def __init__(self) -> None:
        """Raises CannotStartThreads if the system allows no more."""
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
        with starting("flushes"):
            self._thread.start()

    def submit(self, job: Job) -> None:
        """Call `job` in the thread; it handles its own errors."""
        self._jobs.put(job)

    def close(self) -> None:
        """Return when all jobs were run and the thread has ended. May be called again."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                _log.exception("a job of the flush thread failed: a bug")
