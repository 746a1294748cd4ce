"""`make bench-spark`: prints a table and writes build/bench-spark.json."""

import argparse
import os
import platform
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyspark
from rich.console import Console
from rich.table import Table

from benchmarks.measurement import BROKER_CPU, MB, VALUE_BYTES, Measurement, Run, scratch_directory
from benchmarks.spark import reading
from benchmarks.spark.bars import print_bars, print_shares
from benchmarks.spark.kafka_connector import PEER, KafkaBench
from benchmarks.spark.kafka_server import KafkaServer
from benchmarks.spark.own import KEY_BYTES, NOT_FROM_TOPIC, PARTITIONS, OwnBenchmarks, Scale
from benchmarks.spark.plain_server import PlainServer
from benchmarks.spark.session import MASTER, spark_session
from benchmarks.turns import Row, add_options, serve, write_json
from broker_process import BrokerProcess
from processor_time import processor_time

TOPIC = "bench-spark"
OF_PLAIN_SERVER = {"spark.ceiling_of_network", "spark.store", "spark.store_keyed"}
ONLY_BESIDE_KAFKA = "spark.parquet_seven"
"""As Kafka's connector cannot leave out columns."""


class SparkBench:
    """The benchmarks of Spark against one broker; those that have a peer and the peers, where there is a `kafka`."""

    def __init__(
        self,
        session: Any,
        broker: BrokerProcess,
        plain: PlainServer,
        directory: Path,
        scale: Scale,
        kafka: KafkaServer | None = None,
    ) -> None:
        self._session = session
        self._broker = broker
        self._plain = plain
        self._kafka = kafka
        self._directory = directory
        self._scale = scale
        address = broker.address
        self._own = OwnBenchmarks(session, address, plain, topic=TOPIC, directory=directory / "measured", scale=scale)
        self._warm_up = OwnBenchmarks(
            session, address, plain, topic=f"{TOPIC}-few", directory=directory / "few", scale=Scale.few()
        )

    @cached_property
    def benchmarks(self) -> dict[str, Callable[[], Run]]:
        """By name, in the order of a round."""
        ours = self._own.runs()
        if self._kafka is None:
            return {name: run for name, run in ours.items() if name != ONLY_BESIDE_KAFKA}
        scale, directory = self._scale, self._directory
        peer = KafkaBench(self._session, self._kafka)
        peers = peer.benchmarks(scale.records, self._own.rows, scale.trigger_s, directory)
        beside: dict[str, Callable[[], Run]] = {}
        for peer_name, peer_run in peers.items():
            name = peer_name.removeprefix(PEER)
            beside |= {name: ours[name], peer_name: peer_run}  # both see the same minute of the machine
        return beside

    def fill(self, only: str) -> None:
        """The topics that the benchmarks read whose names contain `only`."""
        names = {name.removeprefix(PEER) for name in self._chosen(only)}
        self._own.fill(names)
        self._warm_up.fill(names)
        if self._kafka is not None and names - NOT_FROM_TOPIC:
            KafkaBench(self._session, self._kafka).fill(self._scale.records, PARTITIONS, KEY_BYTES)

    def _chosen(self, only: str) -> dict[str, Callable[[], Run]]:
        wanted = only.split(",")
        return {name: run for name, run in self.benchmarks.items() if any(part in name for part in wanted)}

    def measure(self, only: str, console: Console) -> list[Measurement]:
        """Every benchmark whose name contains a part of `only`, round by round, after one that warms up.

        Spark ends the Python processes of its planners when they have had nothing to do for a minute. A round takes
        longer: so that no run pays for starting them again, each of ours has one with few records before it. Kafka's
        connector plans in the JVM, where nothing ends.
        """
        measurements = {name: Measurement(name, self._settings) for name in self._chosen(only)}
        for index in range(self._scale.rounds + 1):
            for name, measurement in measurements.items():
                console.print(f"round {index} of {self._scale.rounds}: {name}", style="dim")
                run = self._run(name)
                if index:
                    measurement.runs.append(run)
        return list(measurements.values())

    def serve(self, only: str) -> None:
        """Take turns with another build: see benchmarks.turns."""

        def rows(name: str) -> list[Row]:
            return [Measurement(name, self._settings, [self._run(name)]).to_json()]

        serve({name: partial(rows, name) for name in self._chosen(only)}, {})

    @property
    def _settings(self) -> dict[str, object]:
        return {
            "value_bytes": VALUE_BYTES,
            "key_bytes": KEY_BYTES,
            "partitions": PARTITIONS,
            "records": self._scale.records,
            "master": MASTER,
            "pyspark": pyspark.__version__,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
        }

    def _run(self, name: str) -> Run:
        """A run after one with few records, with the broker's processor time."""
        warm_ups = self._warm_up.runs()
        if name in warm_ups and name != "spark.trigger_ms":  # it measures no start
            warm_ups[name]()
        pid = self._server_pid(name)
        before_s = processor_time(pid).own_s
        done = self.benchmarks[name]()
        used_us = (processor_time(pid).own_s - before_s) / done.records * 1e6
        return done._replace(figures={**done.figures, BROKER_CPU: used_us})

    def _server_pid(self, name: str) -> int:
        """Of what stands for the broker in that benchmark."""
        if name in OF_PLAIN_SERVER:
            return self._plain.pid
        return self._kafka.pid if self._kafka is not None and name.startswith(PEER) else self._broker.pid


def print_rates(measurements: list[Measurement], console: Console) -> None:
    """Medians, spread and processor time, and each rate as a share of the ceiling and of tuples."""
    rates = {each.name: each.records_per_s for each in measurements}
    table = Table(title=f"Values of {VALUE_BYTES} bytes, {MASTER}; medians of {len(measurements[0].runs)} runs")
    headings = (
        "",
        "records/s",
        "MB/s",
        "slowest",
        "fastest",
        "python µs",
        "jvm µs",
        "broker µs",
        "of ceiling",
        "of tuples",
    )
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    for each in measurements:
        cpu = [f"{each.figures[name]:.3f}" for name in (reading.PYTHON_CPU, reading.JVM_CPU, BROKER_CPU)]
        shares = [
            f"{each.records_per_s / rates[other]:.2f}" if other in rates else ""
            for other in ("spark.ceiling", "spark.tuples")
        ]
        mb_per_s = f"{each.records_per_s * VALUE_BYTES / MB:,.0f}"
        slowest, *_, fastest = [f"{rate:,.0f}" for rate in (each.rates[0], each.rates[-1])]
        table.add_row(each.name, f"{each.records_per_s:,.0f}", mb_per_s, slowest, fastest, *cpu, *shares)
    console.print(table)
    for each in measurements:
        others = [f"{name} {value:g}" for name, value in each.figures.items() if name.endswith("_ms")]
        if others:
            console.print(f"{each.name}: {', '.join(others)}")


def measure(arguments: argparse.Namespace, console: Console) -> list[Measurement]:
    """What was asked for; whatever is started for it is stopped again."""
    scale = Scale.quick() if arguments.quick else Scale()
    if arguments.rounds is not None:
        scale = replace(scale, rounds=arguments.rounds)
    jars, connector_jars = arguments.kafka or (None, None)
    with ExitStack() as stack:
        directory = stack.enter_context(scratch_directory())
        broker = stack.enter_context(BrokerProcess(directory / "data"))
        plain = stack.enter_context(PlainServer())
        kafka = stack.enter_context(KafkaServer(jars, directory / "kafka")) if jars else None
        session = spark_session(directory, connector_jars)
        stack.callback(session.stop)
        bench = SparkBench(session, broker, plain, directory, scale, kafka)
        bench.fill(arguments.only)
        if arguments.turns:
            bench.serve(arguments.only)
            return []
        return bench.measure(arguments.only, console)


def _rounds(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("at least one is measured")
    return int(text)


def _end(number: int, _: object) -> None:
    sys.exit(128 + number)


def main() -> None:
    signal.signal(signal.SIGTERM, _end)  # so that brokers and scratch directories go, as with Ctrl-C
    parser = argparse.ArgumentParser(prog="make bench-spark", description="Measure warmlog and Spark on this machine.")
    parser.add_argument("--quick", action="store_true", help="a fifth of the work: for a first look")
    parser.add_argument("--rounds", type=_rounds, help="how many are measured: the JVM is warm after about eight")
    add_options(parser, Path("build/bench-spark.json"))
    parser.add_argument(
        "--kafka",
        nargs=2,
        type=Path,
        metavar=("JARS", "CONNECTOR_JARS"),
        help="beside Kafka and its connector, whose jars tools/kafka-jars fetches: see make bench-spark-kafka",
    )
    arguments = parser.parse_args()
    console = Console(stderr=True)
    measurements = measure(arguments, console)
    if arguments.turns:
        return
    write_json(arguments.output, [each.to_json() for each in measurements])
    print_rates(measurements, Console(width=160))
    print_bars(measurements, Console(width=160))
    print_shares(measurements, Console(width=160))
    console.print(f"written to {arguments.output}", style="dim")


if __name__ == "__main__":
    main()
