"""`python -m benchmarks.kafka.cluster`: three brokers of warmlog beside three of Kafka, on this machine, in one run.

Replication factor 3, two in sync are enough, acks=all. Kafka's perf tool against both, and warmlog's own client against
warmlog; Kafka once with `log.flush.interval.messages=1`, which answers after an fsync as warmlog does, and once as is.
"""

import argparse
import asyncio
import re
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.cluster import TOPIC, create, rate
from benchmarks.kafka.__main__ import TOOLS, perf
from benchmarks.kafka.servers import FLUSHED
from benchmarks.spark.kafka_server import KafkaServer
from broker_process import port_to_keep
from cluster_processes import ClusterProcesses
from kafka_jars import JARS, run_java
from processor_time import processor_time

RECORD_BYTES = 1024
STEADY_RATE, STEADY_S = 1000, 10
FAILOVER_S = 25
_PRODUCED = re.compile(r"records sent, ([0-9.]+) records/sec.*?([0-9.]+) ms max.*?([0-9]+) ms 99th")
REPLICATED = """\
offsets.topic.replication.factor=3
default.replication.factor=3
min.insync.replicas=2
"""


class Cluster(NamedTuple):
    """Three brokers: where Kafka's clients connect, their processes, and what kills one of them."""

    addresses: str
    pids: list[int]
    kill_one: Callable[[], None]
    own: ClusterProcesses | None = None


@contextmanager
def warmlog(directory: Path) -> Iterator[Cluster]:
    cluster, addresses = ClusterProcesses(directory / "c", broker_session_timeout_ms=6000), []
    for node in cluster.brokers:
        port, kafka_port = port_to_keep(), port_to_keep()
        listeners = f"own=plaintext://127.0.0.1:{port},kafka=kafka+plaintext://127.0.0.1:{kafka_port}"
        broker = cluster.brokers[node] = cluster.broker(node, cluster.directory, listeners=listeners)
        broker.port = port
        addresses.append(f"127.0.0.1:{kafka_port}")
    with cluster:
        asyncio.run(create(cluster.addresses, 3))
        pids = [broker.pid for broker in cluster.brokers.values()]
        yield Cluster(",".join(addresses), pids, cluster.brokers[3].kill, cluster)


@contextmanager
def kafka(directory: Path, properties: str = "") -> Iterator[Cluster]:
    nodes = [KafkaServer(JARS, directory / f"kafka-{node}", REPLICATED + properties) for node in (1, 2, 3)]
    for number, node in enumerate(nodes, 1):
        node.node, node.voters, node.cluster_id = number, nodes, nodes[0].cluster_id
    with ExitStack() as stack:
        for node in nodes:
            node.launch()
            stack.callback(node.stop)
        for node in nodes:
            node.wait_until_it_listens()
        addresses = ",".join(node.address for node in nodes)
        place = ("--bootstrap-server", addresses, "--topic", TOPIC, "--partitions", 3, "--replication-factor", 3)
        run_java(f"{TOOLS}.TopicCommand", "--create", *place).check_returncode()
        yield Cluster(addresses, [node.pid for node in nodes], nodes[2].kill)


@contextmanager
def kafka_with_fsync(directory: Path) -> Iterator[Cluster]:
    with kafka(directory, FLUSHED) as cluster:
        yield cluster


SYSTEMS = {"warmlog": warmlog, "kafka with fsync": kafka_with_fsync, "kafka": kafka}


def produce(cluster: Cluster, count: int, rate: int = -1) -> tuple[float, float, float]:
    """Records per second, the longest latency and its 99th percentile in ms, by Kafka's perf tool."""
    said = perf(
        "ProducerPerformance",
        *("--topic", TOPIC, "--num-records", count, "--record-size", RECORD_BYTES, "--throughput", rate),
        *("--producer-props", f"bootstrap.servers={cluster.addresses}", "acks=all", "batch.size=65536"),
    )
    found = _PRODUCED.search(said)
    assert found is not None, said
    return float(found[1]), float(found[2]), float(found[3])


def measure(cluster: Cluster, count: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    produce(cluster, 20_000)
    before_s = sum(processor_time(pid).own_s for pid in cluster.pids)
    figures["records/s"], _, _ = produce(cluster, count)
    figures["processor time, us a record"] = (
        (sum(processor_time(pid).own_s for pid in cluster.pids) - before_s) / count * 1e6
    )
    _, _, figures[f"p99 at {STEADY_RATE}/s, ms"] = produce(cluster, STEADY_RATE * STEADY_S, STEADY_RATE)
    if cluster.own is not None:
        print("warmlog's own client:", asyncio.run(rate(cluster.own.addresses, 8, [*cluster.own.brokers.values()])))
    killing = threading.Timer(5, cluster.kill_one)
    killing.start()
    _, longest_ms, _ = produce(cluster, STEADY_RATE * FAILOVER_S, STEADY_RATE)
    killing.join()
    figures["the longest wait after SIGKILL of a broker, s"] = longest_ms / 1000
    return figures


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka.cluster", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=300_000)
    options = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in SYSTEMS}
    for _ in range(options.rounds):
        for name, system in SYSTEMS.items():
            with tempfile.TemporaryDirectory(prefix="bench-kafka-") as directory, system(Path(directory)) as cluster:
                runs[name].append(measure(cluster, options.records))
                print(name, runs[name][-1], flush=True)
    print("| row | " + " | ".join(SYSTEMS) + " |\n|---|" + "---|" * len(SYSTEMS))
    for row in runs["warmlog"][0]:
        told = (f"{statistics.median(each[row] for each in found):,.2f}" for found in runs.values())
        print(f"| {row} | " + " | ".join(told) + " |")


if __name__ == "__main__":
    main()
