"""`python -m benchmarks.cluster`: what three brokers of a cluster cost beside one, on this machine, and how long a
failover takes. Each is asked by one producer of warmlog, with acks=all and a topic of three partitions.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median, quantiles

from broker_process import BrokerProcess
from cluster_processes import ClusterProcesses
from processor_time import processor_time
from warmlog import Admin, Producer

TOPIC, PARTITIONS = "bench", 3
VALUES = [os.urandom(1024) for _ in range(256)]


def processor_s(brokers: Iterable[BrokerProcess]) -> float:
    return sum(processor_time(broker.pid).own_s for broker in brokers)


async def latency(address: str, seconds: float) -> str:
    """One record of 1 KiB at a time."""
    took_ms: list[float] = []
    async with Producer(address, linger_ms=0) as producer:
        await producer.send(TOPIC, VALUES[0], partition=0)
        until_s = time.perf_counter() + seconds
        while (began_s := time.perf_counter()) < until_s:
            await producer.send(TOPIC, VALUES[len(took_ms) % 256], partition=0)
            took_ms.append((time.perf_counter() - began_s) * 1000)
    return f"1 KiB, one in flight: p50 {median(took_ms):.2f} ms, p99 {quantiles(took_ms, n=100)[98]:.2f} ms"


async def rate(address: str, seconds: float, brokers: list[BrokerProcess]) -> str:
    """As many records of 1 KiB as one producer can send."""
    async with Producer(address, linger_ms=5, batch_bytes=256 * 1024) as producer:
        await producer.send(TOPIC, VALUES[0], partition=0)
        before_s, began_s, count = processor_s(brokers), time.perf_counter(), 0
        sent = []
        while time.perf_counter() < began_s + seconds:
            sent += [producer.send(TOPIC, VALUES[n % 256], partition=n % PARTITIONS) for n in range(500)]
            count += 500
            await asyncio.sleep(0)
            if len(sent) > 20_000:
                await asyncio.gather(*sent[:10_000])
                del sent[:10_000]
        await asyncio.gather(*sent)
        took_s = time.perf_counter() - began_s
    micros = (processor_s(brokers) - before_s) / count * 1e6
    a_second = count / took_s
    return f"1 KiB, many: {a_second:,.0f} records/s, {a_second / 1024:.0f} MiB/s, {micros:.1f} µs of brokers each"


async def failover(cluster: ClusterProcesses, how: str) -> str:
    """The longest time between two acknowledgements while the leader goes."""
    leader = cluster.brokers[await asyncio.to_thread(cluster.leader_of, TOPIC)]
    gaps: list[float] = []
    async with Producer(cluster.addresses, linger_ms=0) as producer:
        await producer.send(TOPIC, VALUES[0], partition=0)
        going = asyncio.create_task(asyncio.to_thread(leader.kill if how == "SIGKILL" else leader.terminate))
        last_s = time.perf_counter()
        until_s = last_s + 12
        while time.perf_counter() < until_s:
            await producer.send(TOPIC, VALUES[0], partition=0)
            now_s = time.perf_counter()
            gaps.append(now_s - last_s)
            last_s = now_s
        await going
    await asyncio.to_thread(leader.start)
    return f"{how} of the leader: {max(gaps):.2f} s without an acknowledgement"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each is measured (default: 8)")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="warmlog-bench-cluster-") as directory:
        measure(Path(directory), seconds)


def measure(directory: Path, seconds: float) -> None:
    """Print the figures of one broker, then those of three."""
    with BrokerProcess(directory / "alone") as broker:
        asyncio.run(create(broker.address, 1))
        print("one broker:    ", asyncio.run(latency(broker.address, seconds)))
        print("one broker:    ", asyncio.run(rate(broker.address, seconds, [broker])))
    with ClusterProcesses(directory / "c", broker_session_timeout_ms=6000) as cluster:
        brokers = list(cluster.brokers.values())
        asyncio.run(create(cluster.addresses, 3))
        print("three brokers: ", asyncio.run(latency(cluster.addresses, seconds)))
        print("three brokers: ", asyncio.run(rate(cluster.addresses, seconds, brokers)))
        for how in ("clean stop", "SIGKILL"):
            print("three brokers: ", asyncio.run(failover(cluster, how)), flush=True)


async def create(address: str, replicas: int) -> None:
    async with Admin(address) as admin:
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=replicas)


if __name__ == "__main__":
    main()
