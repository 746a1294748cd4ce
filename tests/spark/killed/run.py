"""One run: streams side by side, kills by chance, and then the comparison of each topic with its input."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from broker_process import BrokerProcess
from process_tree import processes_of
from spark.drivers import committed as committed_batches
from spark.killed.driver import ROWS_A_BATCH
from spark.reading import Reachable, committed
from spark.topics import Topics

PATIENCE_S = 600.0
"""For a driver that starts, and for one that does what is left."""


@dataclass(slots=True)
class Outcome:
    """What a run did and found."""

    seed: int
    streams: int
    kills: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    rows: int = 0
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kills.items()))
        return (
            f"seed {self.seed}: {self.streams} streams, killed: {kills}; {self.batches} micro-batches, {self.rows} "
            f"rows; {len(self.findings)} findings"
        )


class Streams:
    """The driver of some streams, with its executors and their workers, all in a session of their own."""

    def __init__(self, broker: Reachable, directory: Path, topics: list[str]) -> None:
        self._broker = broker
        self._arguments = [broker.address, str(directory), ",".join(topics)]
        self._directory = directory
        self._topics = topics
        self._driver: subprocess.Popen[bytes] | None = None
        self._orphans: list[int] = []
        """What the driver has started that was killed alone."""
        self.log = directory / "drivers.log"

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a driver; `arguments` as in `driver.main`."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        tests = str(Path(__file__).parents[2])
        with self.log.open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "spark.killed.driver", *self._arguments, *arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self._directory,
                env={**os.environ, "PATH": path, "PYTHONPATH": tests, "PYSPARK_PYTHON": Path(sys.executable).name},
            )
        return self._driver

    def stop(self) -> None:
        """Kill all that is left."""
        assert self._driver is not None
        left = [pid for pid in self._orphans if "spark" in _command(pid)]
        for pid in (*self._processes(), *left):
            _kill(pid)
        self._driver.wait()

    def batches(self) -> dict[str, int]:
        """Return the number of micro-batches by topic that are in the checkpoints."""
        found = {topic: committed_batches(self._directory / topic / "commits") for topic in self._topics}
        return {topic: numbers[-1] + 1 if numbers else 0 for topic, numbers in found.items()}

    def wait_for_batches(self, before: dict[str, int]) -> None:
        """Return once each stream has committed more than `before`."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not all(count > before[topic] for topic, count in self.batches().items()):
            assert self._driver is not None
            assert self._driver.poll() is None, f"the driver has ended: see {self.log}"
            assert time.monotonic() < deadline_s, f"streams do not go on: {self.batches()}, {before}"
            time.sleep(0.05)

    def finish(self) -> list[str]:
        """Let the streams do what is left, and return where a topic is not equal to its input."""
        self.stop()
        if code := self.start("--ends").wait(PATIENCE_S):
            return [f"the last driver has ended with {code}: see {self.log}"]
        return [*filter(None, itertools.starmap(self._difference, self.batches().items()))]

    def _difference(self, topic: str, batches: int) -> str:
        found = committed(self._broker, topic)
        expected = Counter(b"%d" % value for value in range(batches * ROWS_A_BATCH))
        if found == expected:
            return ""
        missing, more = expected - found, found - expected
        return (
            f"{topic}, {batches} micro-batches: {missing.total()} rows missing, such as {min(missing, default=None)}, "
            f"{more.total()} too many, such as {min(more, default=None)}"
        )

    # --- what is killed ---------------------------------------------------------------------------------------------

    def kill_broker(self, luck: Random) -> None:
        """Kill the broker, and start it again after a while."""
        assert isinstance(self._broker, BrokerProcess)
        self._broker.kill()
        time.sleep(luck.uniform(0, 2))
        self._broker.start()

    def kill_executor(self, luck: Random) -> None:
        """Kill an executor; Spark starts another."""
        self._kill_one("CoarseGrainedExecutorBackend", luck)

    def kill_worker(self, luck: Random) -> None:
        """Kill a process of Python in which a task runs, or which forks these."""
        self._kill_one("pyspark.daemon", luck)

    def kill_everything(self, luck: Random) -> None:
        """Kill the driver with its executors and workers, as the loss of a machine would."""
        self.stop()
        time.sleep(luck.uniform(0, 1))
        self.start()

    def kill_driver(self, luck: Random) -> None:
        """Kill the driver only: executors and workers go on until they notice, beside the next driver."""
        assert self._driver is not None
        self._orphans = self._processes()
        for pid in (self._driver.pid, *self._processes("SparkSubmit")):
            _kill(pid)
        self._driver.wait()
        self.start()

    def _kill_one(self, program: str, luck: Random) -> None:
        found = self._processes(program)
        if found:
            _kill(luck.choice(sorted(found)))

    def _processes(self, program: str = "") -> list[int]:
        """Return the driver and what it has started, as far as this is in its command."""
        assert self._driver is not None
        if self._driver.poll() is not None:
            return []
        return [pid for pid in processes_of(self._driver.pid) if program in _command(pid)]


KILLS: dict[str, Callable[[Streams, Random], None]] = {
    "broker": Streams.kill_broker,
    "executor": Streams.kill_executor,
    "worker": Streams.kill_worker,
    "driver": Streams.kill_driver,
    "driver with all": Streams.kill_everything,
}


def run(workspace: Path, *, seed: int, streams: int, kills: int) -> Outcome:
    """Kill so many times, each kind before one is repeated, and compare each topic with its input as a multiset."""
    luck = Random(seed)
    outcome = Outcome(seed, streams)
    names = [f"stream-{seed}-{number}" for number in range(streams)]
    with BrokerProcess(workspace / "data") as broker:
        with Topics(broker.host, broker.port) as topics:
            for name in names:
                topics.create(name, partitions=2)
        (workspace / "streams").mkdir()
        running = Streams(broker, workspace / "streams", names)
        running.start()
        try:
            before = dict.fromkeys(names, 0)
            kinds: list[str] = []
            for _ in range(kills):
                kinds = kinds or luck.sample(sorted(KILLS), len(KILLS))
                running.wait_for_batches(before)
                time.sleep(luck.uniform(0, 3))
                before = running.batches()
                kind = kinds.pop()
                KILLS[kind](running, luck)
                outcome.kills[kind] += 1
            running.wait_for_batches(before)
            outcome.findings += running.finish()
        finally:
            running.stop()
        outcome.batches = sum(running.batches().values())
        outcome.rows = outcome.batches * ROWS_A_BATCH
    return outcome


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it has ended
        return ""


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
