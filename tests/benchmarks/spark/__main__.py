"""`make bench-spark`: prints a table and writes build/bench-spark.json."""

import argparse
import asyncio
import os
import platform
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
from rich.console import Console
from rich.table import Table

from benchmarks.__main__ import scratch_directory
from benchmarks.measurement import BROKER_CPU, MB, VALUE_BYTES, Measurement, Run, write_json
from benchmarks.produce import distinct_values
from benchmarks.spark import exporting, reading, streaming, typed, writing
from benchmarks.spark.bars import print_bars, print_shares
from benchmarks.spark.kafka_connector import PEER, KafkaBench
from benchmarks.spark.kafka_server import KafkaServer
from benchmarks.spark.plain_server import PlainServer
from benchmarks.spark.session import MASTER, spark_session
from broker_process import BrokerProcess
from processor_time import processor_time
from warmlog import Admin, Producer

TOPIC = "bench-spark"
PARTITIONS = 2
KEY_BYTES = 12
NOT_FROM_TOPIC = {
    "spark.trigger_ms",
    *("spark.discard", "spark.store", "spark.write", "spark.discard_keyed", "spark.write_keyed"),
}
"""They read no topic that is filled before."""
OF_PLAIN_SERVER = {"spark.ceiling_of_network", "spark.store"}
ONLY_BESIDE_KAFKA = "spark.parquet_seven"
"""As Kafka's connector cannot leave out columns."""


@dataclass(frozen=True)
class Scale:
    """How much each run does. `--quick` is too short for figures to trust: a query costs 0.2 s whatever it reads."""

    rounds: int = 3
    records: int = 10_000_000
    tuple_records_share: int = 10
    written_records: int = 5_000_000
    json_records: int = 2_000_000
    trigger_s: float = 20.0

    @classmethod
    def quick(cls) -> "Scale":
        return cls(1, 2_000_000, 4, 1_000_000, 500_000, 12.0)


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
        self._rows = writing.CachedRows(session, scale.written_records)
        self._same_bytes = reading.SameBytes(session, broker.address, TOPIC, directory)

    def benchmarks(self) -> dict[str, Callable[[], Run]]:
        """By name, in the order of a round."""
        if self._kafka is None:
            return {name: run for name, run in self._own().items() if name != ONLY_BESIDE_KAFKA}
        scale, rows, directory = self._scale, self._rows, self._directory
        peer = KafkaBench(self._session, self._kafka)
        peers = peer.benchmarks(scale.records, rows, scale.trigger_s, directory)
        ours = self._own()
        beside: dict[str, Callable[[], Run]] = {}
        for peer_name, peer_run in peers.items():
            name = peer_name.removeprefix(PEER)
            beside |= {name: ours[name], peer_name: peer_run}  # both see the same minute of the machine
        return beside

    def _own(self) -> dict[str, Callable[[], Run]]:
        scale, same = self._scale, self._same_bytes
        read = (self._session, self._broker.address, TOPIC, scale.records)
        few = scale.records // scale.tuple_records_share
        ends = {TOPIC: {str(partition): few // PARTITIONS for partition in range(PARTITIONS)}}
        json = (self._session, self._broker.address, f"{TOPIC}-json", scale.json_records)
        return {
            "spark.count": partial(reading.count, *read),
            "spark.sum_length": partial(reading.sum_length, *read),
            "spark.seven_columns": partial(reading.seven_columns, *read),
            "spark.parquet": partial(reading.parquet, *read, self._directory / "parquet"),
            "spark.parquet_seven": partial(reading.parquet_seven, *read, self._directory / "parquet"),
            "spark.ceiling": partial(same.count, scale.records),
            "spark.ceiling_of_sources": partial(same.count_of_source, scale.records),
            "spark.ceiling_of_network": partial(same.count_of_source, scale.records, self._plain.port),
            "spark.export": partial(exporting.export, *read, self._directory / "export"),
            "spark.json": partial(typed.in_reader, *json),
            "spark.from_json": partial(typed.from_json, *json),
            "spark.discard": partial(self._rows.discard, with_keys=False),
            "spark.store": partial(self._rows.store, self._plain.port, self._directory / "stored"),
            "spark.write": partial(self._rows.write, self._broker.address, with_keys=False),
            "spark.discard_keyed": partial(self._rows.discard, with_keys=True),
            "spark.write_keyed": partial(self._rows.write, self._broker.address, with_keys=True),
            "spark.trigger_ms": partial(
                streaming.trigger_ms, self._session, self._broker.address, scale.trigger_s, self._directory
            ),
            "spark.tuples": partial(reading.tuples, self._session, self._broker.address, TOPIC, few, ends),
        }

    def fill(self, only: str) -> None:
        """The topics that the benchmarks read whose names contain `only`."""
        scale, address = self._scale, self._broker.address
        chosen = {name.removeprefix(PEER) for name in self._chosen(only)} - NOT_FROM_TOPIC
        if "spark.json" in chosen or "spark.from_json" in chosen:
            asyncio.run(typed.fill(address, f"{TOPIC}-json", scale.json_records))
        if own := chosen - {"spark.json", "spark.from_json"}:
            asyncio.run(_fill(address, TOPIC, scale.records))
        if self._kafka is not None and own:
            KafkaBench(self._session, self._kafka).fill(scale.records, PARTITIONS, KEY_BYTES)

    def _chosen(self, only: str) -> dict[str, Callable[[], Run]]:
        wanted = only.split(",")
        return {name: run for name, run in self.benchmarks().items() if any(part in name for part in wanted)}

    def measure(self, only: str, console: Console) -> list[Measurement]:
        """Every benchmark whose name contains a part of `only`, round by round, after one that warms up."""
        chosen = self._chosen(only)
        settings = {
            "value_bytes": VALUE_BYTES,
            "key_bytes": KEY_BYTES,
            "partitions": PARTITIONS,
            "records": self._scale.records,
            "master": MASTER,
            "pyspark": pyspark.__version__,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
        }
        measurements = {name: Measurement(name, settings) for name in chosen}
        for index in range(self._scale.rounds + 1):
            for name, run in chosen.items():
                console.print(f"round {index} of {self._scale.rounds}: {name}", style="dim")
                done = self._with_broker_cpu(name, run)
                if index:
                    measurements[name].runs.append(done)
        return list(measurements.values())

    def _with_broker_cpu(self, name: str, run: Callable[[], Run]) -> Run:
        pid = self._server_pid(name)
        before_s = processor_time(pid).own_s
        done = run()
        used_us = (processor_time(pid).own_s - before_s) / done.records * 1e6
        return done._replace(figures={**done.figures, BROKER_CPU: used_us})

    def _server_pid(self, name: str) -> int:
        """Of what stands for the broker in that benchmark."""
        if name in OF_PLAIN_SERVER:
            return self._plain.pid
        return self._kafka.pid if self._kafka is not None and name.startswith(PEER) else self._broker.pid


async def _fill(bootstrap: str, topic: str, records: int) -> None:
    values = distinct_values()
    keys = [value[-KEY_BYTES:] for value in values]
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=PARTITIONS)
    async with Producer(bootstrap) as producer:
        for partition in range(PARTITIONS):
            for start in range(0, records // PARTITIONS, len(values)):
                count = min(len(values), records // PARTITIONS - start)
                await producer.send_many(topic, values[:count], keys=keys[:count], partition=partition)


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
        return bench.measure(arguments.only, console)


def _end(number: int, _: object) -> None:
    sys.exit(128 + number)


def main() -> None:
    signal.signal(signal.SIGTERM, _end)  # so that brokers and scratch directories go, as with Ctrl-C
    parser = argparse.ArgumentParser(prog="make bench-spark", description="Measure warmlog and Spark on this machine.")
    parser.add_argument("--quick", action="store_true", help="a fifth of the work: for a first look")
    parser.add_argument("--only", default="", help="only those whose names contain this, or one of a,b")
    parser.add_argument("--output", type=Path, default=Path("build/bench-spark.json"), help="where the figures go")
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
    write_json(arguments.output, measurements)
    print_rates(measurements, Console(width=160))
    print_bars(measurements, Console(width=160))
    print_shares(measurements, Console(width=160))
    console.print(f"written to {arguments.output}", style="dim")


if __name__ == "__main__":
    main()
