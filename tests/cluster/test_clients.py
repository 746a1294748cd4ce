"""Clients of three brokers while one dies, stops or hangs: nothing is lost, doubled or skipped, and no call raises."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from urllib.request import urlopen

import pytest

import warmlog
from broker_process import BrokerProcess, port_to_keep
from cluster_processes import ClusterProcesses
from etcd_process import needs_etcd
from warmlog.ranges.arrow_reader import arrow_reader
from warmlog_protocol import messages as m

pytestmark = needs_etcd
PARTITIONS = 3
PATIENCE_S = 180


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Each broker is a rack of its own, and has metrics."""
    cluster = ClusterProcesses(tmp_path_factory.mktemp("clients"))
    for node, broker in cluster.brokers.items():
        broker.settings |= {"rack": f"r{node}", "admin.listen": f"127.0.0.1:{port_to_keep()}"}
    with cluster:
        yield cluster


@asynccontextmanager
async def away(broker: BrokerProcess, how: str) -> AsyncIterator[None]:
    """Within the block the broker is dead, stopped or hangs."""
    if how == "killed":
        broker.kill()
    elif how == "stopped":
        assert await asyncio.to_thread(broker.terminate) == 0
    else:
        os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if how == "hangs":
            os.kill(broker.pid, signal.SIGCONT)
        else:
            await asyncio.to_thread(broker.start)


def fetched_bytes(broker: BrokerProcess, topic: str) -> int:
    """How much of a topic a broker has sent to readers."""
    with urlopen(f"http://{broker.settings['admin.listen']}/metrics", timeout=60) as answer:
        found = re.search(rf'^warmlog_topic_fetched_bytes_total{{topic="{topic}"}} (\S+)', answer.read().decode(), re.M)
    return 0 if found is None else int(float(found[1]))


async def test_a_reader_reads_from_the_replica_of_its_rack_and_from_the_leader_while_that_is_away(
    cluster: ClusterProcesses,
) -> None:
    """What comes first is from the leader, which names the other replica then."""
    async with warmlog.Admin(cluster.addresses) as admin, warmlog.Producer(cluster.addresses) as producer:
        await admin.create_topic("near", partitions=1)
        leader = (await admin.describe_topic("near")).partitions[0].leader
        near = next(node for node in cluster.brokers if node != leader)
        broker = cluster.brokers[near]
        sent = 0

        async def send(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                await producer.send("near", os.urandom(1000))
            sent += count

        await send(1)
        async with warmlog.Consumer(
            cluster.addresses, topics=["near"], start="earliest", rack=f"r{near}", max_wait_ms=100
        ) as consumer:
            records = consumer.records()

            async def read() -> int:
                async with asyncio.timeout(PATIENCE_S):
                    while (await anext(records)).offset + 1 < sent:
                        pass
                return fetched_bytes(broker, "near")

            while await read() < 10_000:
                await send(1)
            rows = await asyncio.to_thread(
                lambda: arrow_reader(cluster.addresses, ["near"], rack=f"r{near}").read_all()
            )
            assert len(rows) == sent
            async with away(broker, "killed"):
                await send(5)
                assert len([await anext(records) for _ in range(5)]) == 5


class Flow:
    """A producer and a member of a group, which commits by hand: what each has done."""

    def __init__(self, cluster: ClusterProcesses, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.sent = 0
        self.is_over = False
        self.total = 1 << 62
        self.read: list[list[int]] = [[] for _ in range(PARTITIONS)]

    @property
    def read_count(self) -> int:
        return sum(map(len, self.read))

    async def produce(self) -> None:
        async with warmlog.Producer(self.cluster.addresses, linger_ms=0) as producer:
            while self.sent < self.total:
                if self.is_over:
                    self.total = self.sent + 1  # before the last one is sent
                await producer.send(self.topic, b"%d" % self.sent, partition=self.sent % PARTITIONS)
                self.sent += 1
                await asyncio.sleep(0.01)

    async def consume(self) -> None:
        async with warmlog.Consumer(
            self.cluster.addresses, topics=[self.topic], group=self.topic, commit="manual"
        ) as consumer:
            async for record in consumer.records():
                self.read[record.partition].append(int(record.value or b"-1"))
                if self.read_count % 20 == 0:
                    await consumer.commit()
                if self.read_count >= self.total:
                    await consumer.commit()
                    return

    async def at_least(self, more: int) -> None:
        """Wait until so many more records were sent, and read."""
        sent, read = self.sent + more, self.read_count + more
        async with asyncio.timeout(PATIENCE_S):
            while self.sent < sent or self.read_count < read:  # noqa: ASYNC110 - processes
                await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "how", ["killed", pytest.param("stopped", marks=pytest.mark.slow), pytest.param("hangs", marks=pytest.mark.slow)]
)
async def test_records_positions_and_commits_survive_a_broker_that_is_away(cluster: ClusterProcesses, how: str) -> None:
    """The coordinator of the group is away, which leads a partition, too."""
    async with warmlog.Admin(cluster.addresses) as admin:
        await admin.create_topic(how, partitions=PARTITIONS)
    flow = Flow(cluster, how)
    working = [asyncio.create_task(flow.produce()), asyncio.create_task(flow.consume())]
    try:
        await flow.at_least(60)
        async with away(await cluster.coordinator_of(how), how):
            await flow.at_least(60)
        await flow.at_least(60)
        flow.is_over = True
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*working)
    finally:
        for task in working:
            task.cancel()
        await asyncio.wait(working)
    assert flow.read == [list(range(number, flow.sent, PARTITIONS)) for number in range(PARTITIONS)]
    async with warmlog.Admin(cluster.addresses) as admin:
        committed = await admin.committed_offsets(how)
        assert sum(each.offset for each in committed.values()) == flow.sent
        assert how in [each.name for each in await admin.list_groups()]
    rows = await asyncio.to_thread(lambda: arrow_reader(cluster.addresses, [how]).read_all())
    assert sorted(int(value) for value in rows.column("value").to_pylist()) == list(range(flow.sent))


async def copy(cluster: ClusterProcesses, source: str, target: str, count: int) -> None:
    """Copy so many records, each batch in a transaction with its offsets, until they are all committed."""
    async with (
        warmlog.Consumer(cluster.addresses, topics=[source], group=source, commit="manual") as consumer,
        warmlog.Producer(cluster.addresses, transactional_id=source) as producer,
    ):
        copied = 0
        async for batch in consumer.batches():
            async with producer.transaction() as transaction:
                for record in batch:
                    await producer.send(target, record.value, partition=record.partition)
                await transaction.commit_offsets(consumer)
            copied += len(batch)
            if copied >= count:
                return


@pytest.mark.slow
async def test_a_copy_is_exact_while_its_coordinators_die(cluster: ClusterProcesses) -> None:
    async with warmlog.Admin(cluster.addresses) as admin:
        for topic in ("copied", "copies"):
            await admin.create_topic(topic, partitions=PARTITIONS)
    copying = asyncio.create_task(copy(cluster, "copied", "copies", 300))
    async with warmlog.Producer(cluster.addresses, linger_ms=0) as producer:

        async def send(first: int) -> None:
            for number in range(first, first + 100):
                await producer.send("copied", b"%d" % number, partition=number % PARTITIONS)
                await asyncio.sleep(0.01)

        await send(0)
        async with away(await cluster.coordinator_of("copied", m.CoordinatorKind.TRANSACTION), "killed"):
            await send(100)
        async with away(await cluster.coordinator_of("copied"), "killed"):
            await send(200)
        async with asyncio.timeout(PATIENCE_S):
            await copying
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    async with warmlog.Consumer(cluster.addresses, topics=["copies"], start="earliest") as consumer:
        async for record in consumer.records(until="latest"):
            found[record.partition].append(int(record.value or b"-1"))
    assert found == [list(range(number, 300, PARTITIONS)) for number in range(PARTITIONS)]
