"""Brokers of one cluster, as processes: what one decides, all carry out; and which brokers may not be one of it."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerFailed, BrokerProcess
from cluster_processes import ClusterProcesses
from etcd_process import EtcdProcess, needs_etcd
from waiting import wait_until
from warmlog import Admin, Consumer, Producer, blocking
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode, InvalidReplicationFactor, StorageError, UnknownProducerId
from wire_client import WireClient, batch_of

pytestmark = needs_etcd


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def topics_at(broker: BrokerProcess) -> dict[str, int]:
    with WireClient(broker.address) as client:
        found = client.call(m.MetadataRequest(None))
        assert isinstance(found, m.MetadataResponse)
        assert [each.node_id for each in found.brokers] == [1, 2, 3]
        return {topic.name: len(topic.partitions) for topic in found.topics}


def directories_of(broker: BrokerProcess, topic: str) -> list[str]:
    return sorted(path.name for path in broker.data_dir.glob(f"{topic}-?"))


def test_topics_are_those_of_all_brokers(cluster: ClusterProcesses) -> None:
    first, second, third = cluster.brokers.values()
    with blocking.Admin(first.address) as admin:
        admin.create_topic("orders", partitions=2)
    for broker in cluster.brokers.values():
        wait_until(lambda broker=broker: directories_of(broker, "orders") == ["orders-0", "orders-1"])
        wait_until(lambda broker=broker: topics_at(broker) == {"orders": 2})
    with blocking.Admin(second.address) as admin:
        admin.alter_topic("orders", set={"retention.ms": "12345"})
        admin.add_partitions("orders", 3)
    wait_until(lambda: directories_of(third, "orders") == ["orders-0", "orders-1", "orders-2"])
    third.kill()
    with blocking.Admin(second.address) as admin:
        admin.delete_topic("orders")
        admin.create_topic("orders", partitions=1)
    wait_until(lambda: directories_of(first, "orders") == ["orders-0"])
    third.start()
    wait_until(lambda: topics_at(first) == {"orders": 1})
    assert topics_at(third) == {"orders": 1}
    assert directories_of(third, "orders") == ["orders-0"], "those of the deleted topic are removed"


def test_a_producer_id_is_known_to_all_brokers_once_it_is_given_out_and_no_other_is(cluster: ClusterProcesses) -> None:
    """Each broker gives out those of a block of its own, which the others may hear of later."""
    with blocking.Admin(cluster.addresses) as admin:
        admin.create_topic("ids", partitions=1)
    wait_until(lambda: cluster.leader_of("ids") != -1)
    with WireClient(cluster.brokers[cluster.leader_of("ids")].address) as leader:
        for number, broker in enumerate(cluster.brokers.values()):
            with WireClient(broker.address) as client:
                producer = client.producer_id()
            assert leader.produce("ids", batch_of([b"1"], producer=producer, base_sequence=0)).base_offset == number
        with pytest.raises(UnknownProducerId, match=f"producer id {1 << 40} was never assigned"):
            leader.produce("ids", batch_of([b"1"], producer=(1 << 40, 0), base_sequence=0))
        other = leader.call(m.InitProducerIdRequest(producer_id=producer[0], producer_epoch=0))
        assert isinstance(other, m.InitProducerIdResponse)
        assert other.producer_id != producer[0], "as with Kafka: no broker has all partitions that it has written to"


def test_records_of_a_leader_that_dies_are_at_the_next(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path / "c") as cluster:

        def produce(value: bytes) -> int:
            with blocking.Producer(cluster.addresses) as producer:
                return producer.send("orders", value).result().offset

        with blocking.Admin(cluster.addresses) as admin:
            admin.create_topic("orders", partitions=1, replication_factor=3)
        assert [produce(b"%d" % number) for number in range(3)] == [0, 1, 2]
        first = cluster.leader_of("orders")
        cluster.brokers[first].kill()
        wait_until(lambda: cluster.leader_of("orders") not in (-1, first))
        assert produce(b"3") == 3
        cluster.brokers[first].start()
        second = cluster.leader_of("orders")
        assert cluster.brokers[second].terminate() == 0
        assert cluster.leader_of("orders") not in (-1, second), "a clean stop hands over first"
        assert produce(b"4") == 4


@pytest.mark.slow
def test_while_etcd_is_away_what_runs_goes_on(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path / "c") as cluster:

        async def go_on() -> None:
            async with Admin(cluster.addresses) as admin, Producer(cluster.addresses) as producer:
                await admin.create_topic("orders", partitions=3)
                await producer.send("orders", b"before", partition=0)
                cluster.etcd.kill_all()
                for number in range(200):  # for longer than a session
                    await producer.send("orders", b"%d" % number, partition=number % 3)
                    await asyncio.sleep(0.015)
                cluster.etcd.start(cluster.etcd.members[0])
                await admin.create_topic("later", partitions=1)
                assert (await producer.send("later", b"1")).offset == 0

        before = {node: broker.output.count("registers again") for node, broker in cluster.brokers.items()}
        asyncio.run(go_on())
        found = {node: broker.output.count("registers again") for node, broker in cluster.brokers.items()}
        assert found == before, "none was fenced"


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_leaders_are_elected_while_a_member_of_etcd_is_away(tmp_path: Path, is_killed: bool) -> None:
    with EtcdProcess(tmp_path / "etcd", members=3) as etcd, ClusterProcesses(tmp_path / "c", etcd=etcd) as cluster:
        with blocking.Admin(cluster.addresses) as admin:
            admin.create_topic("orders", partitions=30)
        etcd.members[0].kill() if is_killed else etcd.stop(etcd.members[0])
        cluster.brokers[1].kill()

        async def produce() -> None:
            async with Producer(cluster.addresses) as producer:
                for partition in range(30):
                    assert (await producer.send("orders", b"1", partition=partition)).offset == 0

        asyncio.run(asyncio.wait_for(produce(), 60))
        cluster.brokers[1].start()


@pytest.mark.slow
def test_an_etcd_that_has_lost_its_data_is_not_believed_and_what_runs_goes_on(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path / "c") as cluster:

        async def produce(count: int) -> None:
            async with Producer(cluster.addresses) as producer:
                for number in range(count):
                    await producer.send("orders", b"%d" % number)
                    await asyncio.sleep(0.01)

        def create(name: str) -> None:
            with blocking.Admin(cluster.addresses) as admin:
                admin.create_topic(name, partitions=1)

        create("orders")
        asyncio.run(produce(1))
        cluster.etcd.lose_all()
        for broker in cluster.brokers.values():
            wait_until(lambda broker=broker: "ETCD HAS GONE BACK" in broker.output)
        asyncio.run(produce(300))  # for longer than a session
        with pytest.raises(StorageError, match="gone back"):
            create("another")
        found = cluster.etcd.post("/v3/kv/range", {"key": "AA==", "range_end": "AA==", "count_only": True})
        assert int(found.get("count", 0)) == 0, "nothing was written to it"


@pytest.mark.slow
def test_brokers_that_need_an_internal_topic_at_once_create_one(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path / "c") as cluster:

        async def commit(broker: BrokerProcess) -> None:
            async with Consumer(broker.address, topics=["orders"], group=f"g-{broker.port}") as consumer:
                found = [record.value async for record in consumer.records(until="latest")]
                assert found == [b"1"]

        async def run() -> None:
            async with Admin(cluster.addresses) as admin, Producer(cluster.addresses) as producer:
                await admin.create_topic("orders", partitions=1)
                await producer.send("orders", b"1")
            await asyncio.gather(*(commit(broker) for broker in cluster.brokers.values()))

        asyncio.run(asyncio.wait_for(run(), 60))
        for broker in cluster.brokers.values():
            wait_until(lambda broker=broker: len(list(broker.data_dir.glob("__groups-*"))) == 16)


def test_one_broker_of_three_creates_nothing_that_a_lost_disk_would_take(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path / "c") as cluster:
        first, second, third = cluster.brokers.values()
        second.terminate()
        third.terminate()

        def coordinator() -> m.FoundCoordinator:
            with WireClient(first.address) as client:
                found = client.call(m.FindCoordinatorRequest(m.CoordinatorKind.GROUP, ["g"]))
                assert isinstance(found, m.FindCoordinatorResponse)
                return found.coordinators[0]

        assert coordinator().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert list(first.data_dir.glob("__groups-*")) == []
        with blocking.Admin(first.address) as admin, pytest.raises(InvalidReplicationFactor, match="1 of 3 brokers"):
            admin.create_topic("orders", partitions=1)
        second.start()
        wait_until(lambda: coordinator().error_code == ErrorCode.NONE)
        for broker in (first, second):
            wait_until(lambda broker=broker: len(list(broker.data_dir.glob("__groups-*"))) == 16)


@pytest.mark.slow
def test_internal_topics_get_replicas_as_brokers_join(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path / "c", brokers=1) as cluster:

        async def commit() -> None:
            async with Admin(cluster.addresses) as admin, Producer(cluster.addresses) as producer:
                await admin.create_topic("orders", partitions=1)
                await producer.send("orders", b"1")
            async with Consumer(cluster.addresses, topics=["orders"], group="g") as consumer:
                assert [record.value async for record in consumer.records(until="latest")] == [b"1"]

        asyncio.run(commit())
        with cluster.broker(2, tmp_path / "c") as second, cluster.broker(3, tmp_path / "c") as third:
            for broker in (second, third):
                wait_until(lambda broker=broker: len(list(broker.data_dir.glob("__groups-*"))) == 16)
                assert list(broker.data_dir.glob("orders-*")) == [], "others stay as they were created"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cluster_id": "another"}, "etcd has no cluster 'another'.*warmlog cluster init"),
        ({"node_id": 1, "broker_session_timeout_ms": 1000}, r"node.id 1 is in use by the broker at 127.0.0.1:\d+"),
        ({"cluster_secret_file": ""}, "cluster.secret.file is not set"),
    ],
)
def test_a_broker_that_is_not_one_of_the_cluster_is_refused(
    cluster: ClusterProcesses, settings: dict[str, object], says: str, tmp_path: Path
) -> None:
    broker = cluster.broker(4, tmp_path, **settings)
    with pytest.raises(BrokerFailed, match=says), broker:
        pass


def test_lost_disks_and_an_etcd_without_its_data_are_refused(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path / "c", brokers=1) as cluster:
        (broker,) = cluster.brokers.values()
        broker.terminate()
        shutil.copytree(broker.data_dir, tmp_path / "kept")
        shutil.rmtree(broker.data_dir)
        with pytest.raises(BrokerFailed, match="warmlog cluster replace 1"):
            broker.start()
        shutil.rmtree(broker.data_dir)
        shutil.copytree(tmp_path / "kept", broker.data_dir)
        broker.start()
        broker.terminate()
        shutil.rmtree(broker.data_dir)
        shutil.copytree(tmp_path / "kept", broker.data_dir)
        broker.start()
        assert "DISKS OF THIS BROKER ARE OLDER" in broker.output
        broker.terminate()
        cluster.etcd.lose_all()
        cluster.create()
        with pytest.raises(BrokerFailed, match="etcd has lost what it had confirmed"):
            broker.start()


def test_a_directory_of_a_cluster_is_refused_by_a_broker_alone(tmp_path: Path) -> None:
    with EtcdProcess(tmp_path / "etcd") as etcd, ClusterProcesses(tmp_path / "c", brokers=1, etcd=etcd) as cluster:
        (broker,) = cluster.brokers.values()
        assert broker.terminate() == 0
        with pytest.raises(BrokerFailed, match=r"belongs to a broker of the cluster c, but cluster\.etcd is not set"):
            BrokerProcess(broker.data_dir).start()
