"""Threads for work that would block the event loop. All are started before the broker serves, so that a limit on
threads is noticed at the start, and memory does not grow with the load."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from threading import Barrier
from typing import Self

from msgspec import Struct

from warmlog_broker.config.broker_config import BrokerConfig

Job = Callable[[], None]
_log = logging.getLogger(__name__)


DISK_THREADS = 4
"""Threads for sequential work: metadata, checkpoints, creating and removing directories."""
PREPARING_THREADS = 2
"""Threads that decompress batches: one in the interpreter, and one in a codec, which does not hold the lock."""


class CannotStartThreads(Exception):
    """The system allows this process or user no more threads."""


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
    """Return a pool of `count` running threads. Raises CannotStartThreads if the system does not allow as many."""
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


class ThreadPools(Struct, frozen=True):
    """The threads that the parts of a broker share; flushes and compaction have their own."""

    disk: ThreadPoolExecutor
    trying: ThreadPoolExecutor
    """One thread for each data directory, since a probe of a directory may hang."""
    cold_readers: ThreadPoolExecutor
    preparers: ThreadPoolExecutor

    @classmethod
    def start(cls, config: BrokerConfig) -> Self:
        """Start all threads or none. Raises CannotStartThreads if the system does not allow as many."""
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
    """One thread that runs jobs in order, for syncs of the disk.

    It uses a queue in C: there may be a thousand group commits a second, and an executor costs several times as much.
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
        """Return when all jobs were run and the thread has ended. Idempotent."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                _log.exception("a job of the flush thread failed: a bug")
