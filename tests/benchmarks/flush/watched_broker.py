"""A real broker process that also notes each of its flushes: `python -m benchmarks.flush.watched_broker …`.

It is `python -m warmlog_broker` with two clocks around the flusher. A note is six numbers (`Flush`), appended to the
file that WATCH_NOTES names; that file is memory, so that it is no work for the disk that is measured.
"""

import os
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from broker_process import BrokerProcess
from warmlog_broker.__main__ import main
from warmlog_broker.replica import flusher
from warmlog_broker.storage.log import flush_plan as disk_flush
from warmlog_broker.storage.log.flush_plan import FlushPlan

NOTES = "WATCH_NOTES"
_NOTE = struct.Struct("6d")


class Flush(NamedTuple):
    """One group commit. Times in seconds; `began_s` by the clock that all processes share (CLOCK_MONOTONIC)."""

    began_s: float
    sync_s: float
    """Until everything was on disk, on the wall."""
    loop_cpu_s: float
    """Processor time of the event loop for beginning it and for taking note of it, waking and answering included."""
    process_cpu_s: float
    """Processor time of the whole broker until then."""
    plans: float
    files: float


class Watch:
    """The clocks around a flusher; there is one data directory, so one flush at a time."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._synced = (0.0, 0.0, 0, 0)
        self._loop_cpu_s = 0.0
        self._is_inside = False

    def install(self) -> None:
        """Puts the clocks in; before a broker is made."""
        run_plans = disk_flush.run_plans

        def watched_run(plans: Sequence[FlushPlan], **options: Any) -> list[disk_flush.Outcome]:
            began_s = time.perf_counter()
            outcomes = run_plans(plans, **options)
            sync_s = time.perf_counter() - began_s
            self._synced = (began_s, sync_s, len(plans), sum(plan.file_count for plan in plans))
            return outcomes

        flusher.run_plans = watched_run  # type: ignore[attr-defined]
        start, note = flusher.Flusher._start, flusher.Flusher._note

        def watched_start(own: flusher.Flusher) -> None:
            if self._is_inside:
                start(own)
                return
            before_s = time.thread_time()
            start(own)
            self._loop_cpu_s += time.thread_time() - before_s

        def watched_note(own: flusher.Flusher, done: list[Any], partitions: list[Any], took_s: float) -> None:
            synced = self._synced
            self._is_inside = True
            before_s = time.thread_time()
            note(own, done, partitions, took_s)
            self._loop_cpu_s += time.thread_time() - before_s
            self._is_inside = False
            if len(done) <= flusher.PARTITIONS_A_TURN:
                began_s, sync_s, plans, files = synced
                os.write(self._file, _NOTE.pack(began_s, sync_s, self._loop_cpu_s, time.process_time(), plans, files))
                self._loop_cpu_s = 0.0

        flusher.Flusher._start = watched_start  # type: ignore[method-assign, assignment]
        flusher.Flusher._note = watched_note  # type: ignore[method-assign, assignment]


class WatchedBroker(BrokerProcess):
    """Such a process; `flushes_since` says what it did."""

    def __init__(self, data_dir: Path, **settings: int) -> None:
        super().__init__(data_dir, environment={}, constants=None, **settings)
        self._notes = os.memfd_create("flushes")
        self.environment[NOTES] = f"/proc/{os.getpid()}/fd/{self._notes}"

    @property
    def arguments(self) -> list[str]:
        command = super().arguments
        return [*command[:2], "benchmarks.flush.watched_broker", *command[3:]]

    def mark(self) -> int:
        """A point in time, for `flushes_since`."""
        return os.fstat(self._notes).st_size

    def flushes_since(self, mark: int) -> list[Flush]:
        """The flushes that were over by now."""
        data = os.pread(self._notes, self.mark() - mark, mark)
        return [Flush(*fields) for fields in _NOTE.iter_unpack(data)]

    def close(self) -> None:
        os.close(self._notes)


if __name__ == "__main__":
    Watch(os.environ[NOTES]).install()
    sys.exit(main())
