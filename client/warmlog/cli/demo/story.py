"""The eight steps of the demo, in order. In any case the broker is stopped and its temporary directory removed."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from warmlog.cli.demo.broker import DemoBroker
from warmlog.cli.demo.checking import ExpectedPartition, consume_and_check, expected_partitions, first_from
from warmlog.cli.demo.flights import Flights, read_flights
from warmlog.cli.demo.requirements import find_requirements
from warmlog.cli.demo.screen import Measure, ProgressBar, Screen
from warmlog.cli.demo.sending import Sending
from warmlog.cli.demo.spark_pipeline import LATE_MINUTES, SINK, copy_late_flights
from warmlog.cli.demo.spark_process import log_path
from warmlog.cli.demo.spark_query import check_figures, query_spark
from warmlog.cli.terminal.options import run_client, take_sigterm_as_ctrl_c
from warmlog.cli.terminal.output import note, remark
from warmlog.cli.terminal.status import megabytes

TOPIC = "flights"
PARTITIONS = 4
SETTINGS = {"retention.ms": "-1", "segment.bytes": str(16 * 1024 * 1024)}
"""The flights of 2013 are older than the default retention of seven days; small segments make the topic roll."""

SPARK = "spark"
"""The directory of Spark's files."""
PIPELINE = "pipeline"
"""That of the stream's."""

SEEK_TO = datetime(2013, 7, 1, tzinfo=UTC)
LOG_LINES_SHOWN = 20


def tell(*, limit: int | None, keep: Path | None) -> None:
    """Run the demo. Raises CommandFailed, or another error, unless every check succeeds."""
    package = find_requirements()
    take_sigterm_as_ctrl_c()
    with _directory(keep) as directory:
        broker = DemoBroker(directory / "data", directory / "broker.log")
        try:
            _Story(directory, broker, Screen()).tell(package, limit)
        except Exception:
            _show_end_of_log("broker", broker.log_path)
            for name in (SPARK, PIPELINE):
                _show_end_of_log("Spark", log_path(directory / name))
            raise
        finally:
            broker.kill()
    if keep is not None:
        note(f"the broker's data and log are kept in {keep}")


class _Story:
    def __init__(self, directory: Path, broker: DemoBroker, screen: Screen) -> None:
        self._directory = directory
        self._broker = broker
        self._screen = screen
        self._measures: list[Measure] = []

    def tell(self, package: Path, limit: int | None) -> None:
        flights = read_flights(package, limit)
        self._screen.say(
            f"{len(flights):,} flights that left New York in 2013, in order of time: "
            f"{megabytes(flights.size_bytes)} MB of JSON"
        )
        self._start_broker()
        expected = self._produce(flights)
        self._consume(flights, expected)
        self._seek(expected)
        self._query(flights)
        self._copy(flights)
        self._screen.step(8, "What was moved, and how fast")
        self._screen.measures(self._measures)
        self._broker.stop()
        self._screen.checked("[bold green]Every check succeeded.[/]")

    def _start_broker(self) -> None:
        self._screen.step(1, "Start a broker: a process of its own, with a directory of its own")
        self._broker.data_dir.mkdir(parents=True)
        self._broker.start()
        self._screen.checked(
            f"process {self._broker.pid} listens on {self._broker.address} after {self._broker.start_seconds:.2f} s"
        )

    def _produce(self, flights: Flights) -> dict[int, ExpectedPartition]:
        """Produce every flight; return what each partition must hold then."""
        self._screen.step(2, f"Produce every flight, keyed by carrier, to a topic with {PARTITIONS} partitions")
        with self._screen.progress("on disk", len(flights)) as bar, self._timed("produce, with the kill", flights):
            sending = run_client(lambda: self._send(flights, bar), is_bulk=True)
        expected = expected_partitions(flights, sending.placed)
        self._screen.checked(f"{len(sending.placed):,} flights acknowledged, each at an offset of its own")
        return expected

    async def _send(self, flights: Flights, bar: ProgressBar) -> Sending:
        from warmlog import Admin, Producer

        async with Admin(self._broker.address) as admin:
            await admin.create_topic(TOPIC, partitions=PARTITIONS, configs=SETTINGS)
        producer = await Producer(self._broker.address).start()
        sending = Sending(producer, TOPIC, flights, self._broker, self._screen, bar)
        await sending.run()
        # Not a context manager: after a failure or Ctrl-C the user does not want to wait for records in flight.
        await producer.close()
        return sending

    def _consume(self, flights: Flights, expected: dict[int, ExpectedPartition]) -> None:
        self._screen.step(4, "Consume everything, and compare it with what was sent")
        with self._timed("consume and compare", flights):
            count = run_client(lambda: consume_and_check(self._broker.address, TOPIC, expected), is_bulk=True)
        self._screen.checked(f"{count:,} flights: none lost, none twice, each byte as it was sent, in order")
        sizes = ", ".join(f"{len(partition):,}" for partition in expected.values())
        self._screen.checked(f"every acknowledged flight is at its offset; the partitions hold {sizes}")

    def _seek(self, expected: dict[int, ExpectedPartition]) -> None:
        self._screen.step(5, f"Seek to {SEEK_TO:%Y-%m-%d %H:%M} UTC: the first flight at or after it in each partition")
        found = run_client(lambda: first_from(self._broker.address, TOPIC, SEEK_TO, expected))
        self._screen.first_flights(found)
        self._screen.checked("they are the same as in the input")

    def _query(self, flights: Flights) -> None:
        self._screen.step(6, "Read the topic in Spark: flights and mean departure delay of each carrier")
        in_file = flights.figures_by_carrier()
        with self._screen.busy("Spark starts, reads, parses and groups …"):
            result = query_spark(self._broker.address, TOPIC, self._directory / SPARK)
        self._screen.say(
            f"Spark {result.version}: started in {result.start_seconds:.1f} s, "
            f"finished the query in {result.query_seconds:.1f} s"
        )
        self._measures.append(
            Measure("Spark: read, parse and group", len(flights), flights.size_bytes, result.query_seconds)
        )
        check_figures(result.figures, in_file)
        self._screen.carriers(result.figures, in_file)
        self._screen.checked("Spark's figures equal those that plain Python computes from the file")

    def _copy(self, flights: Flights) -> None:
        self._screen.step(
            7, f"Copy flights that left {LATE_MINUTES} minutes late by a stream in Spark; kill its driver"
        )
        with self._screen.busy("Spark copies, is killed, and goes on …"):
            copied = copy_late_flights(self._broker.address, TOPIC, flights, self._directory / PIPELINE)
        self._screen.say(f"killed after {copied.at_kill:,} flights were committed to {SINK}; another driver went on")
        self._screen.checked(f"{copied.records:,} late flights, each exactly once")

    @contextmanager
    def _timed(self, step: str, flights: Flights) -> Iterator[None]:
        started_at = time.perf_counter()
        yield
        self._measures.append(Measure(step, len(flights), flights.size_bytes, time.perf_counter() - started_at))


def _show_end_of_log(name: str, path: Path) -> None:
    if path.exists():
        for line in path.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]:
            remark(f"    {name}: {line}")


@contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    """Yield `keep`, created if needed, or a temporary directory that is removed at the end."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    directory = Path(tempfile.mkdtemp(prefix="warmlog-demo-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
