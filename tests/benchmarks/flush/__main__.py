"""`make bench-flush`: prints a table and writes build/bench-flush.json.

**Load.** A broker process on the disk of this checkout, its settings the defaults, and a load generator in this
process. In each round, with 1, 10, 100 and 1,000 partitions that are all written to:

- *open loop*: OPEN_PER_S batches a second, evenly spread over the partitions, whatever the answers do;
- *closed loop*: at least two batches of each partition are on their way all the time, so that all partitions take part
  in every flush; once more with `write.caching`, which does not wait for the disk: the ceiling;
- *one request for all*: one batch for each partition in one request, one after another: the cost of one flush with
  exactly so many dirty files.

**Ways.** The last load again with each way to sync so many files: one by one, in threads, by syncfs.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.flush.load import Done, Generator, request_to_all, requests_of
from benchmarks.flush.watched_broker import Flush, WatchedBroker
from benchmarks.measurement import scratch_directory
from benchmarks.storage.figures import Figure
from benchmarks.turns import write_json
from wire_client import WireClient

ACTIVE = (1, 10, 100, 1000)
WAY_FILES = (2, 3, 4, 10, 24, 100, 1000)
WAYS: dict[str, dict[str, int]] = {
    "one by one": {"flush_threads": 1, "flush_syncfs_files": 0},
    "in threads": {"flush_syncfs_files": 0},
    "syncfs": {"flush_syncfs_files": 1},
}
BATCH_RECORDS = 100
OPEN_PER_S, OPEN_RECORDS = 1000, 10
OPEN_REQUESTS = 2000
"""So many may be late at a time."""
LEAST_UNDER_WAY = 200
IN_FLIGHT = 1024
CREATION_TIMEOUT_S = 120.0
COLUMNS = {
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "records_per_s": "records/s",
    "batches_per_s": "batches/s",
    "flushes_per_s": "flushes/s",
    "files_a_flush": "files a flush",
    "sync_ms": "sync ms",
    "sync_us_a_file": "sync µs a file",
    "loop_cpu_us_a_partition": "loop CPU µs a partition",
    "broker_cpu_us_a_partition": "broker CPU µs a partition",
}
"""Of the flushes: `flush_figures`."""
DURABLE, CACHED = "durable", "cached"


@dataclass(frozen=True)
class Scale:
    """How much each run does. `--quick` is a first look."""

    rounds: int = 3
    load_s: float = 3.0
    way_s: float = 0.7

    @classmethod
    def quick(cls) -> "Scale":
        return cls(1, 1.0, 0.3)


@dataclass
class Bench:
    """One run of all of it: figures by their names, in the order in which they were first taken."""

    directory: Path
    scale: Scale
    figures: dict[str, Figure] = field(default_factory=dict)

    def prepare(self) -> None:
        """Makes the topics, with a record in each partition: all that follows appends to them."""
        with self.broker() as broker:
            with WireClient(broker.address, timeout_s=CREATION_TIMEOUT_S) as client:
                client.create_topic(DURABLE, max(ACTIVE), retention_ms="-1")
                client.create_topic(CACHED, max(ACTIVE), retention_ms="-1", write_caching="true")
            with Generator(broker.address, 1) as generator:
                for topic in (DURABLE, CACHED):
                    generator.lockstep(request_to_all(topic, max(ACTIVE), 1), 0)
            broker.terminate()

    def loads(self, number: int) -> None:
        """One round of the loads."""
        with self.broker() as broker, Generator(broker.address) as generator:
            for partitions in ACTIVE:
                self.load(broker, generator, partitions)
            broker.terminate()

    def load(self, broker: WatchedBroker, generator: Generator, partitions: int) -> None:
        seconds = self.scale.load_s
        count = -(-OPEN_REQUESTS // partitions) * partitions
        requests = requests_of(DURABLE, partitions, count, OPEN_RECORDS)
        mark = settled(broker)
        done = generator.open_loop(requests, seconds, OPEN_PER_S)
        self.note("open loop", partitions, done, broker.flushes_since(mark), OPEN_RECORDS)
        for topic, text in ((DURABLE, "closed loop"), (CACHED, "closed loop, write.caching")):
            requests = requests_of(topic, partitions, max(LEAST_UNDER_WAY, 2 * partitions), BATCH_RECORDS)
            mark = settled(broker)
            done = generator.closed_loop(requests, seconds)
            flushes = broker.flushes_since(mark) if topic == DURABLE else ()
            self.note(text, partitions, done, flushes, BATCH_RECORDS)
        self.lockstep(broker, generator, partitions, "one request for all", seconds / 2)

    def ways(self, number: int) -> None:
        """One round of the ways; in each round another one begins."""
        names = list(WAYS)[number % len(WAYS) :] + list(WAYS)[: number % len(WAYS)]
        for way in names:
            settings = WAYS[way]
            with self.broker(**settings) as broker, Generator(broker.address, 1) as generator:
                for files in WAY_FILES:
                    self.lockstep(broker, generator, files, way, self.scale.way_s)
                broker.terminate()

    def lockstep(self, broker: WatchedBroker, generator: Generator, partitions: int, text: str, seconds: float) -> None:
        request = request_to_all(DURABLE, partitions, 1)
        mark = settled(broker)
        done = generator.lockstep(request, seconds)
        flushes = broker.flushes_since(mark)
        self.note(text, partitions, done._replace(batches=done.batches * partitions), flushes, 1)

    def note(self, load: str, partitions: int, done: Done, flushes: Sequence[Flush], records: int) -> None:
        name = f"{load}, {partitions:,} partitions"
        settings = {"load": load, "partitions": partitions, "records_a_batch": records}
        figure = self.figures.setdefault(name, Figure(name, settings))
        figure.runs.append(load_figures(done, records) | flush_figures(flushes))

    @contextmanager
    def broker(self, **settings: int) -> Iterator[WatchedBroker]:
        """A broker; what it has to say is printed when something fails."""
        settings["max_in_flight_requests"] = IN_FLIGHT
        broker = WatchedBroker(self.directory / "data", **settings)
        try:
            with broker:
                yield broker
        except BaseException:
            print(broker.output, file=sys.stderr)
            raise
        finally:
            broker.close()


def settled(broker: WatchedBroker) -> int:
    """The mark of a broker for whose load nothing is left to sync that another load has written."""
    os.sync()
    return broker.mark()


def load_figures(done: Done, records: int) -> dict[str, float]:
    """What the producers saw."""
    ordered = sorted(done.latencies_s)
    last = len(ordered) - 1
    return {
        "p50_ms": ordered[last // 2] * 1000,
        "p99_ms": ordered[round(last * 0.99)] * 1000,
        "records_per_s": done.batches * records / done.seconds,
        "batches_per_s": done.batches / done.seconds,
    }


def flush_figures(flushes: Sequence[Flush]) -> dict[str, float]:
    """What the flushes of a run cost: the sync by the clock on the wall, the rest in processor time."""
    if not flushes:
        return {}
    seconds = flushes[-1].began_s - flushes[0].began_s
    partitions = sum(flush.plans for flush in flushes)
    return {
        "flushes_per_s": (len(flushes) - 1) / seconds,
        "files_a_flush": sum(flush.files for flush in flushes) / len(flushes),
        "sync_ms": median(flush.sync_s for flush in flushes) * 1000,
        "sync_us_a_file": median(flush.sync_s / flush.files for flush in flushes) * 1e6,
        "loop_cpu_us_a_partition": sum(flush.loop_cpu_s for flush in flushes) / partitions * 1e6,
        "broker_cpu_us_a_partition": (flushes[-1].process_cpu_s - flushes[0].process_cpu_s) / partitions * 1e6,
    }


def print_figures(figures: Sequence[Figure], console: Console) -> None:
    table = Table(title=f"Medians; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    table.add_column("load or way")
    table.add_column("partitions", justify="right")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    for each in figures:
        values = each.medians
        text = str(each.settings["load"])
        partitions = each.settings["partitions"]
        table.add_row(text, f"{partitions:,}", *(_rounded(values[name]) if name in values else "" for name in COLUMNS))
    console.print(table)


def _rounded(value: float) -> str:
    return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-flush", description="Measure group commit on this machine.")
    parser.add_argument("--quick", action="store_true", help="much less work: for a first look")
    parser.add_argument("--only", choices=("loads", "ways"), help="only this half")
    parser.add_argument("--output", type=Path, default=Path("build/bench-flush.json"), help="where the figures go")
    arguments = parser.parse_args()
    scale = Scale.quick() if arguments.quick else Scale()
    console = Console(stderr=True)
    with scratch_directory() as directory:
        bench = Bench(directory, scale)
        console.print("making topics", style="dim")
        bench.prepare()
        for number in range(scale.rounds):
            for name, run in (("loads", bench.loads), ("ways", bench.ways)):
                if arguments.only in (None, name):
                    console.print(f"round {number + 1} of {scale.rounds}: {name}", style="dim")
                    run(number)
    loads = list(dict.fromkeys(figure.settings["load"] for figure in bench.figures.values()))
    figures = sorted(bench.figures.values(), key=lambda figure: loads.index(figure.settings["load"]))
    write_json(arguments.output, [each.to_json() for each in figures])
    print_figures(figures, Console(width=None if sys.stdout.isatty() else 180))
    console.print(f"written to {arguments.output}", style="dim")


if __name__ == "__main__":
    main()
