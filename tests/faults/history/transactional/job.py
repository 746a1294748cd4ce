"""A driver with its tasks, as those of a Spark stream, in a process: `python -m faults.history.transactional.job`.

It runs one version of its job after the other, and each again until it is committed. A file in its log says that a
version is done. Whoever finds that file there has lost against another driver, and begins again behind it.
"""

import argparse
import faulthandler
import logging
import signal
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pyarrow as pa

from faults.history.member import GIVE_UP_MS
from faults.history.transactional.jobs import Row, next_version, rows_of
from warmlog.arrow_write.job import Job, abort_job_members, commit_job
from warmlog.errors import WarmlogError
from warmlog.spark.options.write_options import WriteOptions
from warmlog.spark.write.task import TaskWritten, write_batches
from warmlog_protocol.messages import JobMember
from warmlog_transport.cluster import Cluster
from warmlog_transport.loop_thread import LoopThread

TASKS = 3
PAUSE_S = 0.05
"""Between two versions."""
TIMEOUT_MS = 10_000
MAX_ATTEMPTS = 12
"""At the same time, those counted that nobody waits for."""


class _LostError(Exception):
    """A task that fails in the middle."""


class Driver:
    """Runs the versions of one job."""

    def __init__(self, options: argparse.Namespace, attempts: ThreadPoolExecutor) -> None:
        self._name = options.transactional_id
        self._log = Path(options.log)
        brokers = options.address.split(",")
        self._options = WriteOptions(brokers, options.topic, batch_bytes=1024, delivery_timeout_ms=GIVE_UP_MS)
        self._luck = Random(options.seed)
        self._attempts = attempts

    def run_version(self) -> None:
        """Run all tasks of the next version and commit it."""
        job = Job(self._name, next_version(self._log), TIMEOUT_MS)
        written: list[TaskWritten] = []
        make = partial(Cluster, self._options.bootstrap, self._options.connection)
        with LoopThread("driver") as thread, thread.entered(make) as cluster:
            try:
                tasks = [self._begin(job, task) for task in range(TASKS)]
                written += [self._finish(job, task, running) for task, running in enumerate(tasks)]
                winners = _members(written)
                records = sum(each.records for each in written)
                thread.call(partial(commit_job, cluster, job, winners, records=records, patience_ms=GIVE_UP_MS))
            except WarmlogError:
                with suppress(WarmlogError):
                    thread.call(partial(abort_job_members, cluster, job, _members(written), patience_ms=1_000))
                raise
        (self._log / str(job.version)).touch(exist_ok=False)

    def _begin(self, job: Job, task: int) -> "set[Future[TaskWritten]]":
        """Start one attempt of a task, or two that run beside each other."""
        return {self._attempt(job, task) for _ in range(2 if self._luck.random() < 0.2 else 1)}

    def _finish(self, job: Job, task: int, running: "set[Future[TaskWritten]]") -> TaskWritten:
        """Return what the first successful attempt has written; a task whose attempts have failed is tried again."""
        while True:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for attempt in done:
                with suppress(_LostError):
                    return attempt.result()
            running = running or {self._attempt(job, task)}

    def _attempt(self, job: Job, task: int) -> "Future[TaskWritten]":
        rows = rows_of(job.transactional_id, job.version)[task::TASKS]
        source = _batches(rows, Random(self._luck.random()))
        return self._attempts.submit(write_batches, source, {"partition": 0, "value": 1}, self._options, job)


def _batches(rows: list[Row], luck: Random) -> Iterator[pa.RecordBatch]:
    """Yield the rows, slowly at times. _LostError in the middle, at times."""
    fails_at = luck.randrange(len(rows) + 1) if luck.random() < 0.15 else -1
    for number, (partition, value) in enumerate(rows):
        if number == fails_at:
            raise _LostError
        if luck.random() < 0.1:
            time.sleep(luck.uniform(0, 0.1))
        yield pa.record_batch([pa.array([partition], pa.int32()), pa.array([value])], names=["partition", "value"])
    if fails_at == len(rows):
        raise _LostError


def _members(written: list[TaskWritten]) -> list[JobMember]:
    return [JobMember(each.producer_id, each.producer_epoch) for each in written if each.producer_id >= 0]


def main() -> None:
    """Run versions until the file `stopping` is there."""
    parser = argparse.ArgumentParser()
    for name in ("address", "topic", "transactional_id", "log", "stopping", "seed"):
        parser.add_argument(name)
    options = parser.parse_args()
    logging.getLogger("warmlog").setLevel(logging.CRITICAL)
    faulthandler.register(signal.SIGUSR1)  # to look at one that hangs
    with ThreadPoolExecutor(MAX_ATTEMPTS) as attempts:
        driver = Driver(options, attempts)
        while not Path(options.stopping).exists():
            try:
                driver.run_version()
                time.sleep(PAUSE_S)
            except (WarmlogError, FileExistsError):
                time.sleep(0.1)


if __name__ == "__main__":
    main()
