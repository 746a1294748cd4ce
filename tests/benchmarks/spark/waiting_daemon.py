"""PySpark's daemon of workers, but one that waits for workers when they end.

PySpark's own ignores SIGCHLD, and then the kernel forgets what a worker has used as soon as it ends. When the daemon
waits for it, that is added to the daemon's own time of ended children, where `process_tree` finds it. Spark runs those
of its planners under its own daemon whatever module it is told to use.
"""

import atexit
import os
import signal
from contextlib import suppress
from types import FrameType

from pyspark import daemon


def _wait_for_ended(number: int, frame: FrameType | None) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _wait_for_all() -> None:
    """The daemon has told its workers to end, and ends itself."""
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def main() -> None:
    """Runs the daemon until Spark closes its stdin."""
    signal.signal(signal.SIGCHLD, _wait_for_ended)
    daemon.SIGCHLD = signal.SIGURG  # what it ignores from now on: nobody sends that
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGCHLD, signal.SIG_DFL))
    atexit.register(_wait_for_all)
    daemon.manager()


if __name__ == "__main__":
    main()
