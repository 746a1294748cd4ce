"""The thread that waits for the disk.

One thread and a queue written in C: a group commit happens a thousand times a second and more, and an executor with
its futures and conditions costs several times as much at each handover.
"""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from warmlog_broker.thread_pools import starting

_log = logging.getLogger(__name__)

Job = Callable[[], None]


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
