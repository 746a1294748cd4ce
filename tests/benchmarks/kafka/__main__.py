"""`make bench-kafka`: Kafka's own perf tools against the listener of its clients, against Kafka, and the ceiling.

In turns, in one run: warmlog, with every response after an fsync; Kafka with `log.flush.interval.messages=1`, which
does the same; and a program that answers Produce unseen, which shows what this client can do on this machine. One
producer, acks=all. Ratios hold from machine to machine, figures do not.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from benchmarks.kafka import servers
from benchmarks.kafka.servers import Served
from faults.process_use import use_of
from kafka_jars import JARS, run_java
from kafka_member import KafkaMember
from processor_time import processor_time
from warmlog.blocking import Admin, Producer

TOOLS = "org.apache.kafka.tools"
RECORDS = {100: 2_000_000, 1000: 400_000}
"""How many of each size."""
QUICK_SHARE = 0.1
PARTITIONS = 100
MEMBERS = 200
STEADY_RATE = 1000
STEADY_S = 15
BATCH_BYTES = 65_536
RESULTS = Path(__file__).parents[3] / "build" / "bench-kafka.json"
SERVERS: dict[str, Callable[[Path], AbstractContextManager[Served]]] = {
    "warmlog": servers.warmlog,
    "kafka": servers.kafka,
    "unseen": servers.unseen,
}
BARS: list[tuple[str, str, str, float]] = [
    ("produce.100", "kafka", "at least", 2.1),
    ("produce.1000", "kafka", "at least", 1.8),
    ("produce.100", "unseen", "at least", 0.7),
    ("produce.1000", "unseen", "at least", 0.7),
    ("produce.100.cpu_us", "kafka", "at most", 1.0),
    ("produce.100.cpu_us", "unseen", "at most", 3.5),
    ("consume.rows", "kafka", "at least", 1.0),
    ("consume.columns", "kafka", "at least", 0.5),
    ("steady.p99_ms", "kafka", "at most", 1.0),
    ("join.stable_s", "", "at most", 3.0),
    ("memory_mb", "", "at most", 90.0),
]
"""Row of warmlog, the server that it is compared with, and what it has to be."""
_PRODUCED = re.compile(r"records sent, ([0-9.]+) records/sec.*?([0-9]+) ms 50th.*?([0-9]+) ms 99th")
Figures = dict[str, float]


def perf(tool: str, *arguments: object) -> str:
    """The last line of one of the perf tools, in a JVM as their scripts start it."""
    command = ["java", "-Xmx512m", "-cp", f"{JARS}/*", f"{TOOLS}.{tool}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def produce(served: Served, topic: str, size: int, count: int, rate: int = -1) -> tuple[float, float, float]:
    """Records per second, and the 99th percentile of latency in ms; then the server's processor time, us a record."""
    before_s = processor_time(served.pid).own_s
    said = perf(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", count, "--record-size", size, "--throughput", rate, "--producer-props"),
        *(f"bootstrap.servers={served.address}", "acks=all", f"batch.size={BATCH_BYTES}"),
    )
    found = _PRODUCED.search(said)
    assert found is not None, said
    return float(found[1]), float(found[3]), (processor_time(served.pid).own_s - before_s) / count * 1e6


def consume(served: Served, topic: str, count: int) -> float:
    """Records per second from the page cache, without the time to join."""
    said = perf(
        "ConsumerPerformance",
        *("--bootstrap-server", served.address, "--topic", topic, "--messages", count, "--hide-header"),
        *("--timeout", 60_000),
    )
    return float(said.split(", ")[-1])


def create(served: Served, topic: str, partitions: int) -> None:
    if served.own_address:
        with Admin(served.own_address) as admin:
            admin.create_topic(topic, partitions=partitions)
    else:
        place = ("--bootstrap-server", served.address, "--topic", topic, "--partitions", partitions)
        run_java(f"{TOOLS}.TopicCommand", "--create", *place).check_returncode()


def write_columns(address: str, topic: str, size: int, count: int) -> None:
    """What warmlog's own producer writes, for Kafka's consumer to read."""
    with Producer(address) as producer:
        producer.send_many(topic, [os.urandom(size // 2).hex().encode()] * count)
        producer.flush()


def join(address: str) -> float:
    """Seconds from the last JoinGroup of MEMBERS raw connections that join at once until each has its assignment."""
    with ExitStack() as held:
        members = [held.enter_context(KafkaMember(address, "joined-at-once")) for _ in range(MEMBERS)]
        for each in members:
            each.member_id = each.receive("JoinGroup", each.begin_join()).member_id
        joining = [(each, each.begin_join()) for each in members]
        began_s = time.perf_counter()
        for each, number in joining:
            each.end_join(number)
        syncing = [(each, each.begin_sync()) for each in members]
        found = [each.receive("SyncGroup", number).assignment for each, number in syncing]
        took_s = time.perf_counter() - began_s
    assert found == [each.member_id.encode() for each in members]
    return took_s


def measure(name: str, share: float) -> Figures:
    """Every row that this server has, against one that was just started."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="bench-kafka-") as directory, SERVERS[name](Path(directory)) as served:
        is_broker = name != "unseen"
        if is_broker:
            for topic, partitions in {"one": 1, "large": 1, "many": PARTITIONS}.items():
                create(served, topic, partitions)
        count = int(RECORDS[100] * share)
        produce(served, "warm-up" if not is_broker else "large", 1000, 10_000)
        figures["produce.100"], _, figures["produce.100.cpu_us"] = produce(served, "one", 100, count)
        figures["produce.1000"], _, _ = produce(served, "large", 1000, int(RECORDS[1000] * share))
        if is_broker:
            figures["consume.rows"] = consume(served, "one", count)
            figures["produce.100_partitions"], _, _ = produce(served, "many", 100, count)
            steady = int(STEADY_RATE * STEADY_S * max(share, 0.3))
            _, figures["steady.p99_ms"], _ = produce(served, "one", 100, steady, STEADY_RATE)
            figures["memory_mb"] = use_of(served.pid).memory_bytes / 1e6
        if served.own_address:
            figures["join.stable_s"] = join(served.address)
            create(served, "columns", 1)
            write_columns(served.own_address, "columns", 100, count)
            figures["consume.columns"] = consume(served, "columns", count)
    return figures


def main() -> None:
    """Print medians and what the bars ask for, and write the medians to build/bench-kafka.json."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="of the records")
    parser.add_argument("--quick", action="store_true", help="one round of a tenth")
    options = parser.parse_args()
    rounds, share = (1, QUICK_SHARE) if options.quick else (options.rounds, options.share)
    runs: dict[str, list[Figures]] = defaultdict(list)
    for _ in range(rounds):
        for name in SERVERS:
            runs[name].append(measure(name, share))
    medians = {
        name: {row: statistics.median(each[row] for each in found) for row in found[0]} for name, found in runs.items()
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"rounds": runs, "medians": medians}, indent=1))
    print("| row | " + " | ".join(SERVERS) + " |\n|---|" + "---|" * len(SERVERS))
    for row in medians["warmlog"]:
        told = (f"{medians[name][row]:,.2f}" if row in medians[name] else "" for name in SERVERS)
        print(f"| {row} | " + " | ".join(told) + " |")
    print("\n| row | of | figure | bar |\n|---|---|---|---|")
    for row, other, words, bar in BARS:
        base_row = "consume.rows" if row == "consume.columns" else row
        value = medians["warmlog"][row] / (medians[other][base_row] if other else 1)
        print(f"| {row} | {other} | {value:.2f} | {words} {bar} |")
    spread = medians["warmlog"]["produce.100_partitions"] / medians["warmlog"]["produce.100"]
    print(f"| produce.100_partitions | one partition | {spread:.2f} | at least 0.6 |")


if __name__ == "__main__":
    main()
