"""The seven steps of the demo, in order. Whatever happens, the broker is ended and its temporary directory removed."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from warmlog.cli.demo.broker import DemoBroker
from warmlog.cli.demo.checking import ExpectedPartition, consume_and_check, expected_partitions
from warmlog.cli.demo.flights import Flights, read_flights
from warmlog.cli.demo.measures import Measure, Stopwatch
from warmlog.cli.demo.requirements import find_requirements
from warmlog.cli.demo.screen import ProgressBar, Screen
from warmlog.cli.demo.seeking import first_from
from warmlog.cli.demo.sending import Outage, Sending
from warmlog.cli.demo.spark_query import ask_spark, check_figures, log_path
from warmlog.cli.terminal.options import run_client, take_sigterm_as_ctrl_c
from warmlog.cli.terminal.output import note, remark

TOPIC = "flights"
PARTITIONS = 4
SETTINGS = {"retention.ms": "-1", "segment.bytes": str(16 * 1024 * 1024)}
"""The flights of 2013 are older than the default retention of seven days; small segments make the topic roll."""

SPARK = "spark"
"""The directory of what Spark writes."""

SEEK_TO = datetime(2013, 7, 1, tzinfo=UTC)
LOG_LINES_SHOWN = 20


def tell(*, limit: int | None, keep: Path | None) -> None:
    """Runs the demo. Raises CommandFailed, or another error, unless every check held."""
    package = find_requirements()
    take_sigterm_as_ctrl_c()
    with _directory(keep) as directory:
        broker = DemoBroker(directory / "data", directory / "broker.log")
        try:
            _Story(directory, broker, Screen()).tell(package, limit)
        except Exception:
            _show_end_of_log("broker", broker.log_path)
            _show_end_of_log("Spark", log_path(directory / SPARK))
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
        self._stopwatch = Stopwatch()

    def tell(self, package: Path, limit: int | None) -> None:
        flights = self._read(package, limit)
        self._start_broker()
        expected = self._produce(flights)
        self._consume(flights, expected)
        self._seek(expected)
        self._query(flights)
        self._screen.step(7, "What was moved, and how fast")
        self._screen.measures(self._stopwatch.measures)
        self._broker.stop()
        self._screen.checked("[bold green]Every check held.[/]")

    def _read(self, package: Path, limit: int | None) -> Flights:
        flights = read_flights(package, limit)
        self._screen.say(
            f"{len(flights):,} flights that left New York in 2013, in order of time: "
            f"{flights.size_bytes / 1_000_000:,.1f} MB of JSON"
        )
        return flights

    def _start_broker(self) -> None:
        self._screen.step(1, "Start a broker: a process of its own, on a directory of its own")
        self._broker.data_dir.mkdir(parents=True)
        self._broker.start()
        self._screen.checked(
            f"process {self._broker.pid} listens on {self._broker.address} after {self._broker.start_seconds:.2f} s"
        )

    def _produce(self, flights: Flights) -> dict[int, ExpectedPartition]:
        """What each partition must hold from now on."""
        self._screen.step(2, f"Produce every flight, keyed by carrier, to a topic with {PARTITIONS} partitions")
        with (
            self._screen.progress("on disk", len(flights)) as bar,
            self._stopwatch.timed("produce, with the kill", len(flights), flights.size_bytes),
        ):
            sending = run_client(lambda: self._send(flights, bar), is_bulk=True)
        expected = expected_partitions(flights, sending.placed)
        self._screen.checked(f"{len(sending.placed):,} flights acknowledged, each at an offset of its own")
        return expected

    async def _send(self, flights: Flights, bar: ProgressBar) -> Sending:
        from warmlog import Admin, Producer

        async with Admin(self._broker.address) as admin:
            await admin.create_topic(TOPIC, partitions=PARTITIONS, configs=SETTINGS)
        producer = await Producer(self._broker.address).start()
        sending = Sending(producer, TOPIC, flights, self._broker, _Watcher(self._screen, bar))
        await sending.run()
        # Not a context manager: after a failure or Ctrl-C nobody wants to wait for what is still on its way.
        await producer.close()
        return sending

    def _consume(self, flights: Flights, expected: dict[int, ExpectedPartition]) -> None:
        self._screen.step(4, "Consume everything, and compare it with what was sent")
        with self._stopwatch.timed("consume and compare", len(flights), flights.size_bytes):
            count = run_client(lambda: consume_and_check(self._broker.address, TOPIC, expected), is_bulk=True)
        self._screen.checked(f"{count:,} flights: none lost, none twice, each byte as it was sent, in order")
        sizes = ", ".join(f"{len(partition):,}" for partition in expected.values())
        self._screen.checked(f"every acknowledged flight is at its offset; the partitions hold {sizes}")

    def _seek(self, expected: dict[int, ExpectedPartition]) -> None:
        self._screen.step(5, f"Seek to {SEEK_TO:%Y-%m-%d %H:%M} UTC: the first flight from there in each partition")
        found = run_client(lambda: first_from(self._broker.address, TOPIC, SEEK_TO, expected))
        self._screen.first_flights(found)
        self._screen.checked("they are the ones that the input has there")

    def _query(self, flights: Flights) -> None:
        self._screen.step(6, "Read the topic in Spark: flights and mean departure delay of each carrier")
        in_file = flights.figures_by_carrier()
        with self._screen.busy("Spark starts, reads, parses and groups …"):
            answer = ask_spark(self._broker.address, TOPIC, self._directory / SPARK)
        self._screen.say(
            f"Spark {answer.version}: started in {answer.start_seconds:.1f} s, answered in {answer.query_seconds:.1f} s"
        )
        self._stopwatch.add(
            Measure("Spark: read, parse and group", len(flights), flights.size_bytes, answer.query_seconds)
        )
        check_figures(answer.figures, in_file)
        self._screen.carriers(answer.figures, in_file)
        self._screen.checked("Spark says what plain Python computes straight from the file")


def _show_end_of_log(name: str, path: Path) -> None:
    """For when something went wrong: what the process said last, if it ran."""
    if path.exists():
        for line in path.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]:
            remark(f"    {name}: {line}")


class _Watcher:
    """Shows steps 2 and 3, which happen at the same time."""

    def __init__(self, screen: Screen, bar: ProgressBar) -> None:
        self._screen = screen
        self._bar = bar

    def acknowledged(self, count: int) -> None:
        self._bar.advance_to(count)

    def killed(self, outage: Outage) -> None:
        self._screen.step(3, "Half way: kill the broker with SIGKILL, start it again and go on")
        self._screen.say(
            f"killed, after {outage.acknowledged:,} acknowledgements, with {outage.in_flight:,} flights on their way"
        )

    def restarted(self, outage: Outage) -> None:
        self._screen.checked(f"the broker listens again, {outage.seconds:.2f} s after the kill; the producer goes on")


@contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    """Where the broker keeps its data: `keep`, or a temporary directory that is removed at the end."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    directory = Path(tempfile.mkdtemp(prefix="warmlog-demo-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
