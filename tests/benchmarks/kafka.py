"""`make bench-kafka`: Kafka's own perf producer against the listener of its clients, against Kafka, and the ceiling.

In turns, in one run: warmlog, with every response after an fsync; Kafka with `log.flush.interval.messages=1`, which
does the same; and a program that answers Produce unseen, which shows what this client can do on this machine. One
producer, one partition, acks=all. Ratios hold from machine to machine, figures do not.
"""

import argparse
import asyncio
import json
import re
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.spark.kafka_server import KafkaServer
from broker_process import BrokerProcess, port_to_keep
from kafka_jars import JARS, run_java
from processor_time import processor_time
from warmlog_protocol.kafka.connection import KafkaConnection, KafkaRequest
from warmlog_protocol.kafka.schema import API

TOPIC = "bench"
RECORDS = {100: 2_000_000, 1000: 400_000}
"""How many of each size."""
QUICK_SHARE = 0.1
BATCH_BYTES = 65_536
FLUSHED = "log.flush.interval.messages=1\n"
RESULTS = Path(__file__).parents[2] / "build" / "bench-kafka.json"
_RATE = re.compile(r"records sent, ([0-9.]+) records/sec.*?([0-9]+) ms 50th.*?([0-9]+) ms 99th")


class Served(NamedTuple):
    """A server: where clients connect, and its process, 0 if it is a thread of this one."""

    address: str
    pid: int


class Figure(NamedTuple):
    """One run."""

    records_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """Processor time of the server for each record, in microseconds."""


@contextmanager
def warmlog(directory: Path) -> Iterator[Served]:
    address = f"127.0.0.1:{port_to_keep()}"
    with BrokerProcess(directory / "data", kafka_listen=address, auto_create_topics_enable="true") as broker:
        yield Served(address, broker.pid)


@contextmanager
def kafka(directory: Path) -> Iterator[Served]:
    with KafkaServer(JARS, directory / "kafka", FLUSHED) as server:
        created = run_java(
            "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", server.address, "--create", "--topic", TOPIC
        )
        assert created.returncode == 0, created.stderr
        yield Served(server.address, server.pid)


class _Unseen(asyncio.Protocol):
    """Answers what a producer asks, and looks at no batch."""

    def __init__(self) -> None:
        served = {API[name].key: API[name] for name in ("ApiVersions", "Metadata", "InitProducerId", "Produce")}
        self._connection = KafkaConnection(
            served, max_frame_bytes=1 << 26, buffer_bytes=1 << 20, max_request_bytes=1 << 20, max_items=1000
        )
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            room = self._connection.get_buffer()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            view = view[count:]
            for request in self._connection.received(count):
                message = self._answer(request)
                pieces = self._connection.respond(request.api, request.version, request.correlation_id, message)
                self._transport.write(b"".join(pieces))

    def _answer(self, request: KafkaRequest) -> Any:
        response: Any = request.api.response
        name = request.api.name
        if name == "ApiVersions":
            offered = [response.ApiVersion(api.key, api.versions.first, api.versions.last) for api in API.values()]
            return response(0, [each for each in offered if each.api_key in (0, 3, 18, 22)])
        if name == "InitProducerId":
            return response(0, 0, 1, 0)
        if name == "Metadata":
            host, port = self._transport.get_extra_info("sockname")
            part = response.MetadataResponsePartition(0, 0, 1, 0, [1], [1])
            topic = response.MetadataResponseTopic(0, TOPIC, b"t" * 16, False, [part])
            return response(0, [response.MetadataResponseBroker(1, host, port)], "unseen", 1, [topic])
        return response(
            [
                response.TopicProduceResponse(
                    topic.name,
                    topic.topic_id,
                    [response.PartitionProduceResponse(part.index) for part in topic.partition_data],
                )
                for topic in request.message.topic_data
            ]
        )


@contextmanager
def unseen(_directory: Path) -> Iterator[Served]:
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(loop.create_server(_Unseen, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield Served(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", 0)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.close()


SERVERS: dict[str, Callable[[Path], AbstractContextManager[Served]]] = {
    "warmlog": warmlog,
    "kafka": kafka,
    "unseen": unseen,
}


def measure(name: str, size: int, count: int) -> Figure:
    """Run the perf producer once against a new server."""
    with tempfile.TemporaryDirectory(prefix="bench-kafka-") as directory, SERVERS[name](Path(directory)) as served:
        before_s = processor_time(served.pid).own_s if served.pid else 0.0
        done = run_java(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", TOPIC, "--num-records", count, "--record-size", size, "--throughput", -1, "--producer-props"),
            *(f"bootstrap.servers={served.address}", "acks=all", f"batch.size={BATCH_BYTES}"),
        )
        found = _RATE.search(done.stdout.splitlines()[-1]) if done.stdout else None
        assert found is not None, done.stdout + done.stderr
        cpu_s = processor_time(served.pid).own_s - before_s if served.pid else 0.0
    return Figure(float(found[1]), float(found[2]), float(found[3]), cpu_s / count * 1e6)


def main() -> None:
    """Print medians and ratios, and write them to build/bench-kafka.json."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of a tenth")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    results: dict[str, dict[str, dict[str, float]]] = {}
    for size, records in RECORDS.items():
        count = int(records * QUICK_SHARE) if options.quick else records
        runs: dict[str, list[Figure]] = {name: [] for name in SERVERS}
        for _ in range(rounds):
            for name in SERVERS:
                runs[name].append(measure(name, size, count))
        medians = {name: Figure(*map(statistics.median, zip(*found, strict=True))) for name, found in runs.items()}
        results[str(size)] = {name: figure._asdict() for name, figure in medians.items()}
        own, ceiling = medians["warmlog"].records_per_s, medians["unseen"].records_per_s
        for name, figure in medians.items():
            print(
                f"{size:>5} B {name:>8}: {figure.records_per_s:>10,.0f} records/s, p50 {figure.p50_ms:.0f} ms, "
                f"p99 {figure.p99_ms:.0f} ms, server {figure.cpu_us:.2f} us a record"
            )
        print(f"{size:>5} B: {own / medians['kafka'].records_per_s:.2f} x Kafka, {own / ceiling:.2f} of the ceiling")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
