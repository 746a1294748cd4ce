"""A broker that was alone becomes a cluster of three while clients go on."""

import asyncio
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from cluster_processes import ClusterProcesses, ask, run
from etcd_process import EtcdProcess, needs_etcd
from waiting import wait_until
from warmlog import Admin, Consumer, Producer
from warmlog_transport.cluster import ALONE_S

pytestmark = needs_etcd

DIRECTORY = Path(__file__).parents[1] / "data" / "golden" / "single-987e0da.tar.gz"
PARTITIONS, COUNT = 3, 300
"""See `data/golden/make_single.py`."""


class Load:
    """A producer and a member of the group, which know one broker when they start."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.written = COUNT + 1
        self.read: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def write(self) -> None:
        async with Producer(self.address) as producer:
            while True:
                await producer.send("plain", b"%d" % self.written, partition=self.written % PARTITIONS)
                self.written += 1
                await asyncio.sleep(0.005)

    async def consume(self) -> None:
        async with Consumer(self.address, topics=["plain"], group="readers", isolation="read_committed") as consumer:
            async for record in consumer.records():
                self.read.append(int(record.value or b""))

    async def reaches(self, more: int) -> None:
        """Return when so many more records are acknowledged, and read."""
        end = self.written + more
        waiting = asyncio.create_task(asyncio.to_thread(wait_until, lambda: end in self.read, 60))
        await asyncio.wait([waiting, *self.tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in self.tasks:
            assert not task.done(), task
        await waiting


def become_a_cluster(alone: BrokerProcess, etcd: EtcdProcess) -> ClusterProcesses:
    """Return the cluster of which `alone` is the first of three brokers, all started."""
    directory = alone.data_dir.parent
    cluster = ClusterProcesses(directory, etcd=etcd)
    assert alone.terminate() == 0
    cluster.cluster_id = ""
    cluster.cluster_id = ask(cluster, "init", "--data-dir", alone.data_dir)["cluster_id"]
    cluster.brokers = {node: cluster.broker(node, directory) for node in cluster.brokers}
    cluster.brokers[1].port = alone.port
    for broker in cluster.brokers.values():
        broker.start()
    return cluster


@pytest.mark.slow
def test_a_directory_of_before_there_were_clusters_becomes_three_brokers_under_load(tmp_path: Path) -> None:
    with tarfile.open(DIRECTORY) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # not yet in the first releases of Python 3.11
        tar.extractall(tmp_path / "c" / "broker-1")

    async def main(alone: BrokerProcess, etcd: EtcdProcess) -> None:
        await end_transaction(alone.address)
        load = Load(alone.address)
        load.tasks = [asyncio.create_task(work) for work in (load.write(), load.consume())]
        await load.reaches(50)
        cluster = await asyncio.to_thread(become_a_cluster, alone, etcd)
        try:
            await load.reaches(50)
            for topic in ("plain", "table"):
                await asyncio.to_thread(run, cluster, "reassign", topic, "--replicas", "1,2,3")
            await asyncio.to_thread(wait_until, lambda: all_have_all(cluster), 120)
            await asyncio.sleep(2 * ALONE_S)  # clients that know broker 1 only have heard of the others
            await load.reaches(50)
            cluster.brokers[1].kill()
            await load.reaches(50)
            for task in load.tasks:
                task.cancel()
            await asyncio.wait(load.tasks)
            others = ",".join(cluster.brokers[node].address for node in (2, 3))
            await check(others, load)
        finally:
            for broker in cluster.brokers.values():
                broker.kill()

    with EtcdProcess(tmp_path / "etcd") as etcd, BrokerProcess(tmp_path / "c" / "broker-1") as alone:
        asyncio.run(main(alone, etcd))


def all_have_all(cluster: ClusterProcesses) -> bool:
    """Whether each broker has all partitions, in sync: also of internal topics, which get replicas by themselves."""
    return {row["in_sync"] for row in ask(cluster, "brokers")} == {ask(cluster, "status", code=None)["partitions"]}


async def end_transaction(address: str) -> None:
    """Begin a transaction, which aborts what its id has left open, and commit it."""
    async with Producer(address, transactional_id="t") as producer, producer.transaction():
        await producer.send("table", b"last", key=b"0")


async def check(address: str, load: Load) -> None:
    """Check that all of the directory and of the load is there, once and in order."""
    await end_transaction(address)
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    async with Consumer(address, topics=["plain"], isolation="read_committed") as consumer:
        async for record in consumer.records(until="latest"):
            found[record.partition].append(int(record.value or b""))
    end = load.written
    for number, values in found.items():
        expected = [*range(number, COUNT, PARTITIONS)] + [COUNT] * (number == 0)
        expected += [each for each in range(COUNT + 1, end) if each % PARTITIONS == number]
        with suppress(ValueError):
            values.remove(end)  # the last one was sent, and not acknowledged yet
        assert values == expected
    assert len({*load.read}) == len(load.read), "none is read twice"
    assert {*range(COUNT // 2, COUNT)} <= {*load.read}, "the group went on where it was"
    assert min(load.read) == COUNT // 2
    async with Consumer(address, topics=["table"]) as consumer:
        table = {record.key: record.value async for record in consumer.records(until="latest")}
    assert table == {b"%d" % key: b"last" if key == 0 else b"%d" % (COUNT - 10 + key) for key in range(10)}
    async with Admin(address) as admin:
        assert [user.name for user in await admin.list_users()] == ["alice"]
        assert len(await admin.describe_acls()) == len(await admin.describe_quotas()) == 1
