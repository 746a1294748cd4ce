"""`python -m benchmarks.cluster`: what three brokers of a cluster cost beside one, on this machine, how long a failover
takes, a refill, and what 1,000 partitions cost. Each is asked by one producer of warmlog, with acks=all and a topic of
three partitions. The part `cores` has two producers in processes of their own, and 1, 2 and 3 brokers that share the
partitions.
"""

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median, quantiles

from benchmarks.produce import send_batches
from broker_process import BrokerProcess
from cluster.chaos.settling import settled, unsettled
from cluster_processes import ClusterProcesses
from processor_time import processor_time
from waiting import until
from warmlog import Admin, Producer

TOPIC, PARTITIONS, MANY = "bench", 3, 1000
SHARED_PARTITIONS, PROGRAMS = 12, 2
BATCHED_RECORDS_A_S = 500_000
"""About as many each program of the part `cores` writes in a second, to the number of seconds that are asked for."""
MIB = 1024 * 1024
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


async def refill(cluster: ClusterProcesses, size_mib: int) -> str:
    """The disk of a broker is lost and filled again, beside copying the same files with fsync."""
    async with Producer(cluster.addresses, batch_bytes=1024 * 1024) as producer:
        for _ in range(size_mib):
            await asyncio.gather(*(producer.send(TOPIC, value, partition=n % 3) for n, value in enumerate(VALUES * 4)))
    node, lost = 3, cluster.brokers[3]
    sources = sorted(cluster.brokers[1].data_dir.glob(f"{TOPIC}-*/*.log"))
    size_bytes = sum(path.stat().st_size for path in sources)
    copy_s = min([await asyncio.to_thread(copy, sources, cluster.directory / "copied") for _ in range(3)])
    await asyncio.to_thread(lost.kill)
    await asyncio.to_thread(shutil.rmtree, lost.data_dir)
    await cluster.replace(node)
    before_s = processor_s(cluster.brokers[each] for each in (1, 2))
    await asyncio.to_thread(lost.start)
    await until(lambda: filled_bytes(lost) > 0)
    began_bytes, began_s = filled_bytes(lost), time.perf_counter()
    await until(lambda: filled_bytes(lost) == size_bytes, timeout_s=600)
    await until(lambda: not unsettled(cluster), timeout_s=600)
    took_s = time.perf_counter() - began_s
    others_s = processor_s(cluster.brokers[each] for each in (1, 2)) - before_s
    rate, copied = (size_bytes - began_bytes) / took_s / MIB, size_bytes / copy_s / MIB
    return (
        f"refill of {size_bytes / MIB:.0f} MiB: {rate:.0f} MiB/s, copying the files with fsync {copied:.0f} MiB/s, "
        f"{rate / copied:.2f} of that; processor time {processor_s([lost]):.1f} s, of the others {others_s:.1f} s"
    )


def filled_bytes(broker: BrokerProcess) -> int:
    return sum(path.stat().st_size for path in broker.data_dir.glob(f"{TOPIC}-*/*.log"))


def copy(sources: Sequence[Path], target: Path) -> float:
    """How long it takes to copy files, with an fsync of each in the end."""
    began_s = time.perf_counter()
    for number, source in enumerate(sources):
        with source.open("rb") as reading, (target.parent / f"{target.name}-{number}").open("wb") as writing:
            while data := reading.read(MIB):
                writing.write(data)
            writing.flush()
            os.fsync(writing.fileno())
    took_s = time.perf_counter() - began_s
    for number in range(len(sources)):
        (target.parent / f"{target.name}-{number}").unlink()
    return took_s


def idle(cluster: ClusterProcesses, seconds: float) -> str:
    """The processor time of each broker while nothing happens."""
    before = {node: processor_s([broker]) for node, broker in cluster.brokers.items()}
    time.sleep(seconds)
    shares = [(processor_s([broker]) - before[node]) / seconds for node, broker in cluster.brokers.items()]
    return f"idle with {MANY} partitions: {', '.join(f'{share:.1%}' for share in shares)} of a core"


def start(cluster: ClusterProcesses) -> str:
    """How long a broker takes to start that was killed."""
    took_s = []
    for broker in cluster.brokers.values():
        broker.kill()
        began_s = time.perf_counter()
        broker.start()
        took_s.append(time.perf_counter() - began_s)
        asyncio.run(settled(cluster))
    return f"start after SIGKILL with {MANY} partitions: {', '.join(f'{each:.1f}' for each in took_s)} s"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each is measured (default: 8)")
    parser.add_argument("--refill-mib", type=int, default=512, help="how much is filled again (default: 512)")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    options = parser.parse_args()
    if unknown := {*options.parts.split(",")} - PARTS.keys():
        parser.error(f"--parts: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(prefix="warmlog-bench-cluster-") as directory:
        for part in options.parts.split(","):
            for line in PARTS[part](Path(directory) / part, options):
                print(line, flush=True)


def rates(directory: Path, options: argparse.Namespace) -> Iterator[str]:
    """The figures of one broker, then those of three."""
    seconds = options.seconds
    with BrokerProcess(directory / "alone") as broker:
        asyncio.run(create(broker.address, 1))
        yield f"one broker:     {asyncio.run(latency(broker.address, seconds))}"
        yield f"one broker:     {asyncio.run(rate(broker.address, seconds, [broker]))}"
    with ClusterProcesses(directory / "c", broker_session_timeout_ms=6000) as cluster:
        asyncio.run(create(cluster.addresses, 3))
        yield f"three brokers:  {asyncio.run(latency(cluster.addresses, seconds))}"
        yield f"three brokers:  {asyncio.run(rate(cluster.addresses, seconds, list(cluster.brokers.values())))}"
        for how in ("clean stop", "SIGKILL"):
            yield f"three brokers:  {asyncio.run(failover(cluster, how))}"


def refills(directory: Path, options: argparse.Namespace) -> Iterator[str]:
    with ClusterProcesses(directory / "c", broker_session_timeout_ms=6000) as cluster:
        asyncio.run(create(cluster.addresses, 3))
        yield asyncio.run(refill(cluster, options.refill_mib))


def many(directory: Path, options: argparse.Namespace) -> Iterator[str]:
    with ClusterProcesses(directory / "c", broker_session_timeout_ms=6000) as cluster:
        asyncio.run(create(cluster.addresses, 3, MANY))
        asyncio.run(settled(cluster))
        time.sleep(5)
        yield idle(cluster, 3 * options.seconds)
        yield start(cluster)


def cores(directory: Path, options: argparse.Namespace) -> Iterator[str]:
    """Batches of records of 100 bytes, each on the disk of one broker or, in the last line, of three."""
    for count, replicas in ((1, 1), (2, 1), (3, 1), (3, 3)):
        with ClusterProcesses(directory / f"c{count}-{replicas}", brokers=count) as cluster:
            topics = [f"{TOPIC}-{number}" for number in range(PROGRAMS)]
            for topic in topics:
                asyncio.run(create(cluster.addresses, replicas, SHARED_PARTITIONS, topic))
            brokers = list(cluster.brokers.values())
            before_s, records = processor_s(brokers), int(options.seconds * BATCHED_RECORDS_A_S)
            with ProcessPoolExecutor(PROGRAMS) as programs:
                ran = [programs.submit(produce, cluster.addresses, topic, records) for topic in topics]
                took = [each.result() for each in ran]
            records *= PROGRAMS
            rate = records / max(seconds for seconds, _ in took)
            of_brokers = (processor_s(brokers) - before_s) / records * 1e6
            of_clients = sum(processor for _, processor in took) / records * 1e6
            yield (
                f"brokers {count}, replicas {replicas}: {rate:,.0f} records/s; processor time a record: "
                f"of the brokers {of_brokers:.2f} µs, of the clients {of_clients:.2f} µs"
            )


def produce(address: str, topic: str, records: int) -> tuple[float, float]:
    """The seconds that it takes, and those of processor time."""
    before_s = time.process_time()
    done = asyncio.run(send_batches(address, topic, records, partitions=SHARED_PARTITIONS))
    return done.seconds, time.process_time() - before_s


PARTS = {"rates": rates, "refill": refills, "many": many, "cores": cores}


async def create(address: str, replicas: int, partitions: int = PARTITIONS, topic: str = TOPIC) -> None:
    async with Admin(address) as admin:
        await admin.create_topic(topic, partitions=partitions, replication_factor=replicas)


if __name__ == "__main__":
    main()
