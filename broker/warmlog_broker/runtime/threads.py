"""Threads for work that would block the event loop. All are started before the broker serves, so that a limit on
threads is noticed at the start, and memory does not grow with the load."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Barrier
from typing import Self

from msgspec import Struct

from warmlog_broker.config.broker_config import BrokerConfig

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
        for pool in (self.disk, self.trying, self.cold_readers, self.preparers):
            pool.shutdown()
