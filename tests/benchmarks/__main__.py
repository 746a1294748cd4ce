"""`make bench`: prints a table and writes build/bench.json."""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from benchmarks import consume, produce
from benchmarks.measurement import (
    BROKER_CPU,
    CLIENT_CPU,
    Measurement,
    Run,
    print_table,
    scratch_directory,
)
from benchmarks.rows import READ_TOPIC, Bench, Benchmark, Scale
from benchmarks.turns import Row, add_options, reason_of, serve, write_json
from broker_process import BrokerProcess
from processor_time import processor_time

T = TypeVar("T")

AREAS = ("limits", "produce", "blocking", "consume", "groups", "auth", "transactions", "metrics", "rights", "cli")
"""Modules with rows, in the order of a round. Each is imported on its own: an older build lacks what some need."""
SPARK, SPARK_PARTITIONS = "spark.count", 8
EXPECTED = {
    "tls.send_many": ("produce.send_many", 0.5),
    "tls.consume.arrow": ("consume.arrow", 0.4),
    "produce.send.100_partitions": ("produce.send", 0.7),
    "cli.produce.csv": ("cli.produce.lines", 0.5),
}
"""Rows, those that they are compared with, and which share of these is expected."""


class Runs:
    """Measures the rows of a bench."""

    def __init__(self, bench: Bench, loop: str, console: Console) -> None:
        self._bench = bench
        self._loop = loop
        self._console = console
        self._filled: set[BrokerProcess] = set()

    def measure_all(self, only: str) -> list[Measurement]:
        """Measure every row whose name contains a part of `only`, round by round; then Spark."""
        chosen = [row for area in AREAS for row in self._rows(area, only)]
        measurements = [Measurement(each.name, each.settings) for each in chosen]
        rounds = self._bench.scale.rounds
        for index in range(rounds):
            for row, measurement in zip(chosen, measurements, strict=True):
                self._console.print(f"round {index + 1} of {rounds}: {row.name}", style="dim")
                measurement.runs.append(self._measure(row))
        if any(part in SPARK for part in only.split(",")):
            self._console.print("Spark", style="dim")
            measurements.append(self._spark())
        return measurements

    def serve(self, only: str) -> None:
        """Take turns with another build: see benchmarks.turns."""

        def rows(row: Benchmark) -> list[Row]:
            return [Measurement(row.name, row.settings, [self._measure(row)]).to_json()]

        units: dict[str, Callable[[], list[Row]]] = {}
        missing: dict[str, str] = {}
        for area in AREAS:
            try:
                units |= {row.name: partial(rows, row) for row in self._rows(area, only)}
            except Exception as error:
                missing[area] = reason_of(error)
        if any(part in SPARK for part in only.split(",")):
            units[SPARK] = lambda: [self._spark().to_json()]
        serve(units, missing)

    def _rows(self, area: str, only: str) -> list[Benchmark]:
        rows: Iterator[Benchmark] = import_module(f"benchmarks.{area}").benchmarks(self._bench)
        return [row for row in rows if any(part in row.name for part in only.split(","))]

    def _measure(self, row: Benchmark) -> Run:
        """One run, on a topic of its own when it takes one, with the processor time of both sides."""
        if row.name.startswith("limit."):
            return self._done(row.run())
        broker = self._bench.secured if row.is_secured else self._bench.broker
        if row.reads:
            self._fill(broker)
        if not row.partitions:
            return self._with_cpu_times(broker, row.run)
        topic = self._bench.own_topic()
        self._wait_for(produce.create_topic(broker.address, topic, row.partitions))
        try:
            return self._with_cpu_times(broker, lambda: row.run(topic))
        finally:
            self._wait_for(produce.delete_topic(broker.address, topic))

    def _fill(self, broker: BrokerProcess) -> None:
        if broker not in self._filled:
            self._filled.add(broker)
            self._wait_for(consume.fill(broker.address, READ_TOPIC, self._bench.scale.read_records))

    def _with_cpu_times(self, broker: BrokerProcess, work: Callable[[], Run | Coroutine[Any, Any, Run]]) -> Run:
        """A run, with the processor time that a record took of each side: that shows what waiting hides."""
        client_s, broker_s = time.process_time(), processor_time(broker.pid).own_s
        run = self._done(work())
        client_us = (time.process_time() - client_s) / run.records * 1e6
        broker_us = (processor_time(broker.pid).own_s - broker_s) / run.records * 1e6
        return run._replace(figures={**run.figures, CLIENT_CPU: client_us, BROKER_CPU: broker_us})

    def _done(self, run: Run | Coroutine[Any, Any, Run]) -> Run:
        return run if isinstance(run, Run) else self._wait_for(run)

    def _spark(self) -> Measurement:
        """Spark's runs, after one that warms it up."""
        bench, bootstrap = self._bench, self._bench.bootstrap
        settings = bench.settings(master="local[*]", min_partitions=SPARK_PARTITIONS, action="count()")
        measurement = Measurement(SPARK, settings)
        self._fill(bench.broker)
        session = consume.spark_session()
        try:
            for index in range(bench.scale.rounds + 1):
                run = consume.spark_count(
                    session, bootstrap, READ_TOPIC, bench.scale.read_records, min_partitions=SPARK_PARTITIONS
                )
                if index:
                    measurement.runs.append(run)
        finally:
            session.stop()
        return measurement

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns, run in an event loop of its own."""
        if self._loop == "asyncio":
            return asyncio.run(work)
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)


def ratios(measurements: Sequence[Measurement]) -> Iterator[str]:
    """What is left of a rate, for each pair of EXPECTED that was measured."""
    rates = {each.name: each.records_per_s for each in measurements}
    for name, (other, bar) in EXPECTED.items():
        if name in rates and other in rates:
            yield f"{name} is {rates[name] / rates[other]:.2f} of {other}; at least {bar} expected"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description="Measure warmlog on this machine.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: for a first look")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop", help="the client's event loop")
    add_options(parser, Path("build/bench.json"))
    arguments = parser.parse_args()
    scale = Scale.quick() if arguments.quick else Scale()
    console = Console(stderr=True)

    with ExitStack() as exits:
        bench = Bench(exits.enter_context(scratch_directory()), scale, arguments.loop, exits)
        runs = Runs(bench, arguments.loop, console)
        if arguments.turns:
            runs.serve(arguments.only)
            return
        try:
            measurements = runs.measure_all(arguments.only)
        except BaseException:
            console.print(bench.output, markup=False, highlight=False)
            raise
        if not measurements:
            parser.error(f"no benchmark has a name that contains {arguments.only}")

    measurements.sort(key=lambda each: each.name.startswith("limit."))
    write_json(arguments.output, [each.to_json() for each in measurements])
    print_table(measurements, Console(width=None if sys.stdout.isatty() else 160))
    for ratio in ratios(measurements):
        console.print(ratio)
    console.print(f"written to {arguments.output}", style="dim")


if __name__ == "__main__":
    main()
