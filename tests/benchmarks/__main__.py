"""`make bench`: prints a table and writes build/bench.json."""

import argparse
import asyncio
import inspect
import os
import platform
import shutil
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from benchmarks import auth, blocking, consume, groups, limits, metrics, pairs, produce, rights, transactions
from benchmarks.loading import Load
from benchmarks.measurement import (
    BROKER_CPU,
    CLIENT_CPU,
    MB,
    VALUE_BYTES,
    Measurement,
    Run,
    print_table,
    write_json,
)
from broker_process import BrokerProcess, port_to_keep
from certificates import Certificates
from processor_time import processor_time
from warmlog import Producer
from warmlog.admin.access.user_changes import creation
from warmlog_broker.tools.users import change_user
from warmlog_transport.options import ConnectionKeywords, ConnectionOptions

T = TypeVar("T")

READ_TOPIC = "bench-read"
LATENCY_PER_S = 1_000
SPARK_PARTITIONS = 8
PIECE_BYTES = 64 * 1024
TLS_BARS = {"tls.send_many": ("produce.send_many", 0.5), "tls.consume.arrow": ("consume.arrow", 0.4)}
"""Benchmarks with TLS, those without, and which share of these is expected."""


@dataclass(frozen=True)
class Scale:
    """How much each run does. `--quick` is a tenth of it: for a first look, too short for figures to trust."""

    rounds: int = 5
    send_records: int = 500_000
    send_many_records: int = 3_000_000
    latency_records: int = 3_000
    read_records: int = 4_000_000
    single_records: int = 1_000_000
    limit_bytes: int = 500 * MB
    group_requests: int = 20_000
    handshakes: int = 4_000
    metrics_records: int = 3_000_000
    transactions: int = 200

    @classmethod
    def quick(cls) -> "Scale":
        return cls(2, 100_000, 500_000, 1_000, 500_000, 100_000, 100 * MB, 5_000, 800, 2_000_000, 50)


@dataclass(frozen=True)
class Benchmark:
    """A name, what it was done with, and a run of it, which is given a topic of its own when it takes one."""

    name: str
    settings: dict[str, object]
    run: Callable[..., Run | Coroutine[Any, Any, Run]]
    takes_topic: bool = False


class BenchedBroker(BrokerProcess):
    """A broker with listeners without TLS and with it, without authentication and with it."""

    def __init__(self, directory: Path) -> None:
        self.certificates = Certificates(directory / "certificates")
        self.tls_address = f"127.0.0.1:{port_to_keep()}"
        self.tls_options: ConnectionKeywords = {"ssl": True, "ssl_cafile": self.certificates.ca}
        self.sasl_address = f"127.0.0.1:{port_to_keep()}"
        self.sasl_tls_address = f"127.0.0.1:{port_to_keep()}"
        change_user(directory / "data", lambda _: creation(auth.USER, auth.PASSWORD))
        listeners = (
            f"plain=plaintext://127.0.0.1:{port_to_keep()},tls=ssl://{self.tls_address},"
            f"sasl=sasl_plaintext://{self.sasl_address},sasl_tls=sasl_ssl://{self.sasl_tls_address}"
        )
        super().__init__(directory / "data", listeners=listeners, tls_cert_file=self.certificates.broker)


class Bench:
    """The benchmarks against one broker."""

    def __init__(self, broker: "BenchedBroker", directory: Path, scale: Scale, loop: str) -> None:
        self._broker = broker
        self._bootstrap = broker.address
        self._broker_pid = broker.pid
        self._directory = directory
        self._scale = scale
        self._loop_name = loop
        self._topics = 0

    def settings(self, **own: object) -> dict[str, object]:
        """What every figure was taken with, and `own` beside it."""
        return {
            **own,
            "value_bytes": VALUE_BYTES,
            "partitions": 1,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
        }

    def benchmarks(self) -> list[Benchmark]:
        """All but Spark's, in the order of a round."""
        scale, bootstrap = self._scale, self._bootstrap
        client: dict[str, object] = {"client_loop": self._loop_name, "broker_loop": "uvloop"}
        producer = client | producer_defaults() | {"fsync": "before each acknowledgement"}
        threaded = producer | {"client_loop": "asyncio", "api": "warmlog.blocking"}
        piece = {"piece_bytes": PIECE_BYTES}
        secure, tls = self._broker.tls_address, self._broker.tls_options
        shared = ConnectionOptions(ssl=ssl.create_default_context(cafile=self._broker.certificates.ca))
        return [
            Benchmark("limit.crc", self.settings(**piece), lambda: limits.crc(scale.limit_bytes, PIECE_BYTES)),
            Benchmark(
                "limit.write_fdatasync",
                self.settings(**piece, fsync=f"every {limits.SYNC_EVERY_BYTES} bytes"),
                lambda: limits.write_fdatasync(scale.limit_bytes, PIECE_BYTES, self._directory),
            ),
            Benchmark(
                "limit.loopback", self.settings(**piece), lambda: limits.loopback(scale.limit_bytes, PIECE_BYTES)
            ),
            Benchmark(
                "limit.tls",
                self.settings(**piece),
                lambda: limits.tls(scale.limit_bytes, PIECE_BYTES, self._broker.certificates),
            ),
            Benchmark(
                "produce.send",
                self.settings(**producer),
                lambda topic: produce.send(bootstrap, topic, scale.send_records),
                takes_topic=True,
            ),
            Benchmark(
                "produce.send_many",
                self.settings(**producer, call_records=produce.CALL_RECORDS),
                lambda topic: produce.send_many(bootstrap, topic, scale.send_many_records),
                takes_topic=True,
            ),
            Benchmark(
                "tls.send_many",
                self.settings(**producer, call_records=produce.CALL_RECORDS, ssl=True),
                lambda topic: produce.send_many(secure, topic, scale.send_many_records, **tls),
                takes_topic=True,
            ),
            Benchmark(
                "produce.latency",
                self.settings(**producer | {"linger_ms": 0, "open_loop_per_s": LATENCY_PER_S}),
                lambda topic: produce.latency(bootstrap, topic, scale.latency_records, per_s=LATENCY_PER_S),
                takes_topic=True,
            ),
            Benchmark(
                "blocking.send",
                self.settings(**threaded),
                lambda topic: blocking.send(bootstrap, topic, scale.send_records),
                takes_topic=True,
            ),
            Benchmark(
                "blocking.result",
                self.settings(**threaded, in_flight=1),
                lambda topic: blocking.result(bootstrap, topic, scale.latency_records),
                takes_topic=True,
            ),
            Benchmark(
                "consume.objects",
                self.settings(**client, api="Consumer.batches, keys and values"),
                lambda: consume.objects(bootstrap, READ_TOPIC, scale.read_records),
            ),
            Benchmark(
                "consume.records",
                self.settings(**client, api="async for record in Consumer"),
                lambda: consume.single_records(bootstrap, READ_TOPIC, scale.single_records),
            ),
            Benchmark(
                "consume.arrow",
                self.settings(**client, api="Consumer.arrow, all columns"),
                lambda: consume.arrow(bootstrap, READ_TOPIC, scale.read_records),
            ),
            *(
                Benchmark(
                    f"group.{name}",
                    self.settings(**client, group="its only member; automatic commits", pairs=consume.PAIRS),
                    lambda read=read, records=records: consume.with_group(
                        bootstrap, READ_TOPIC, records, read, self._own_topic()
                    ),
                )
                for name, read, records in (
                    ("consume.objects", consume.read_batches, scale.read_records),
                    ("consume.records", consume.read_records, scale.single_records),
                )
            ),
            Benchmark(
                "group.join",
                self.settings(members=groups.JOINING, record="a member that has its share"),
                lambda: groups.join(bootstrap, self._own_topic()),
            ),
            Benchmark(
                "tls.consume.arrow",
                self.settings(**client, api="Consumer.arrow, all columns", ssl=True),
                lambda: consume.arrow(secure, READ_TOPIC, scale.read_records, **tls),
            ),
            Benchmark(
                "auth.handshakes",
                self.settings(**client, record="a new connection with SCRAM-SHA-256", at_once=auth.AT_ONCE),
                lambda: auth.handshakes(self._broker.sasl_address, scale.handshakes, ConnectionOptions()),
            ),
            Benchmark(
                "auth.handshakes_tls",
                self.settings(**client, record="a new connection with TLS and SCRAM-SHA-256", at_once=auth.AT_ONCE),
                # Given files, a client reads them for each connection: another 0.4 ms.
                lambda: auth.handshakes(self._broker.sasl_tls_address, scale.handshakes, shared),
            ),
            Benchmark(
                "group.commit",
                self.settings(**client, members=groups.MEMBERS, record="the commit of one partition, ten in a request"),
                lambda: groups.commits(bootstrap, self._own_topic(), scale.group_requests),
            ),
            Benchmark(
                "group.commit_latency",
                self.settings(**client, members=groups.MEMBERS, open_loop_per_s=groups.COMMITS_PER_S),
                lambda: groups.commits(bootstrap, self._own_topic(), scale.group_requests, per_s=groups.COMMITS_PER_S),
            ),
            Benchmark(
                "group.load",
                self.settings(groups=groups.GROUPS, record="a committed offset, ten of each group"),
                Load(
                    self._directory / "groups",
                    groups.fill,
                    groups.listed,
                    expected=groups.GROUPS,
                    records=groups.GROUPS * groups.PARTITIONS_PER_GROUP,
                ).run,
            ),
            Benchmark(
                "transaction.load",
                self.settings(record="an open transaction with a transactional id of its own"),
                Load(
                    self._directory / "transactions",
                    transactions.fill,
                    transactions.listed,
                    expected=transactions.IDS,
                    records=transactions.IDS,
                ).run,
            ),
            *(
                Benchmark(
                    f"transaction.send_many_{records}",
                    self.settings(**producer, records_a_transaction=records, pairs_in_a_run=transactions.PAIRS),
                    lambda topic, records=records, calls=calls: transactions.against_plain(
                        bootstrap, topic, records, calls
                    ),
                    takes_topic=True,
                )
                for records, calls in ((1_000, scale.transactions), (produce.CALL_RECORDS, 5))
            ),
            Benchmark(
                "metrics.cost",
                self.settings(**producer, scrape_s=metrics.SCRAPE_S, pairs_in_a_run=pairs.PAIRS),
                lambda: metrics.cost(self._directory / "metrics", scale.metrics_records),
            ),
            Benchmark(
                "rights.decision",
                self.settings(rules=rights.RULES, topics=rights.TOPICS, record="a decision about one topic"),
                lambda: rights.decisions(scale.single_records),
            ),
            Benchmark(
                "rights.cost",
                self.settings(**producer, pairs_in_a_run=pairs.PAIRS),
                lambda: rights.cost(self._directory / "rights", scale.metrics_records),
            ),
        ]

    def measure_all(self, only: str, console: Console) -> list[Measurement]:
        """Every benchmark whose name contains a part of `only`, round by round; then Spark's."""
        wanted = only.split(",")
        chosen = [each for each in self.benchmarks() if any(part in each.name for part in wanted)]
        measurements = [Measurement(each.name, each.settings) for each in chosen]
        self.fill()
        for index in range(self._scale.rounds):
            for benchmark, measurement in zip(chosen, measurements, strict=True):
                console.print(f"round {index + 1} of {self._scale.rounds}: {benchmark.name}", style="dim")
                measurement.runs.append(self.measure(benchmark))
        if any(part in "spark.count" for part in wanted):
            console.print("Spark", style="dim")
            measurements.append(self.spark())
        return measurements

    def measure(self, benchmark: Benchmark) -> Run:
        """One run, on a topic of its own when it takes one."""
        if benchmark.name.startswith("limit."):
            return self._done(benchmark.run())
        if not benchmark.takes_topic:
            return self._with_cpu_times(benchmark.run)
        topic = self._own_topic()
        self.wait_for(produce.create_topic(self._bootstrap, topic))
        try:
            return self._with_cpu_times(lambda: benchmark.run(topic))
        finally:
            self.wait_for(produce.delete_topic(self._bootstrap, topic))

    def _own_topic(self) -> str:
        self._topics += 1
        return f"bench-{self._topics}"

    def _with_cpu_times(self, work: Callable[[], Run | Coroutine[Any, Any, Run]]) -> Run:
        """A run, with the processor time that a record took of each side: that shows what waiting hides."""
        client_s, broker_s = time.process_time(), processor_time(self._broker_pid).own_s
        run = self._done(work())
        client_us = (time.process_time() - client_s) / run.records * 1e6
        broker_us = (processor_time(self._broker_pid).own_s - broker_s) / run.records * 1e6
        return run._replace(figures={**run.figures, CLIENT_CPU: client_us, BROKER_CPU: broker_us})

    def _done(self, run: Run | Coroutine[Any, Any, Run]) -> Run:
        return run if isinstance(run, Run) else self.wait_for(run)

    def fill(self) -> None:
        """The topic that is read."""
        self.wait_for(produce.create_topic(self._bootstrap, READ_TOPIC))
        self.wait_for(_fill(self._bootstrap, self._scale.read_records))

    def spark(self) -> Measurement:
        """Spark's runs, after one that warms it up."""
        settings = self.settings(master="local[*]", min_partitions=SPARK_PARTITIONS, action="count()")
        measurement = Measurement("spark.count", settings)
        session = consume.spark_session()
        try:
            for index in range(self._scale.rounds + 1):
                run = consume.spark_count(
                    session, self._bootstrap, READ_TOPIC, self._scale.read_records, min_partitions=SPARK_PARTITIONS
                )
                if index:
                    measurement.runs.append(run)
        finally:
            session.stop()
        return measurement

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns, run in an event loop of its own."""
        if self._loop_name == "asyncio":
            return asyncio.run(work)
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)


async def _fill(bootstrap: str, records: int) -> None:
    values = produce.distinct_values()
    async with Producer(bootstrap) as producer:
        for start in range(0, records, len(values)):
            await producer.send_many(READ_TOPIC, values[: records - start])
    assert await produce.end_offset(bootstrap, READ_TOPIC) == records


def producer_defaults() -> dict[str, object]:
    """What a Producer that is told nothing does."""
    parameters = inspect.signature(Producer).parameters
    names = ("acks", "compression", "linger_ms", "batch_bytes", "max_in_flight")
    return {"idempotent": True, **{name: parameters[name].default for name in names}}


def ratios(measurements: Sequence[Measurement]) -> Iterator[str]:
    """What is left of a rate with TLS, for each pair that was measured."""
    rates = {each.name: each.records_per_s for each in measurements}
    for name, (plain, bar) in TLS_BARS.items():
        if name in rates and plain in rates:
            yield f"{name} is {rates[name] / rates[plain]:.2f} of {plain}; at least {bar} expected"


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory on the disk that holds this checkout; the system's temporary one may be memory."""
    build = Path("build").absolute()
    build.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=build))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description="Measure warmlog on this machine.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: for a first look")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop", help="the client's event loop")
    parser.add_argument("--only", default="", help="only those whose names contain this, or one of a,b")
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"), help="where the figures go")
    arguments = parser.parse_args()
    scale = Scale.quick() if arguments.quick else Scale()
    console = Console(stderr=True)

    with scratch_directory() as directory, BenchedBroker(directory) as broker:
        bench = Bench(broker, directory, scale, arguments.loop)
        try:
            measurements = bench.measure_all(arguments.only, console)
            if not measurements:
                parser.error(f"no benchmark has a name that contains {arguments.only}")
        except BaseException:
            console.print(broker.output, markup=False, highlight=False)
            raise
        broker.terminate()

    measurements.sort(key=lambda each: each.name.startswith("limit."))
    write_json(arguments.output, measurements)
    print_table(measurements, Console(width=None if sys.stdout.isatty() else 160))
    for ratio in ratios(measurements):
        console.print(ratio)
    console.print(f"written to {arguments.output}", style="dim")


if __name__ == "__main__":
    main()
