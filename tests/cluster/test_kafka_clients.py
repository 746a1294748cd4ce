"""A client of Kafka at three brokers while one is killed: it finds leaders and coordinators by its own requests."""

import asyncio
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import confluent_kafka
import pytest

from broker_process import port_to_keep
from cluster_processes import ClusterProcesses
from etcd_process import needs_etcd
from kafka_client import KafkaClient, rows
from warmlog.blocking import Admin
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.kafka.schema import API

pytestmark = [needs_etcd, pytest.mark.slow]
PATIENCE_S = 120


class Member(threading.Thread):
    """Reads with a group, and commits by itself, until it has so many records as `expected` says."""

    def __init__(self, servers: str) -> None:
        super().__init__()
        self.servers = servers
        self.read: list[list[int]] = [[], [], []]
        self.expected: int | None = None
        self.ends_at_s = time.monotonic() + 3 * PATIENCE_S

    @property
    def count(self) -> int:
        return sum(map(len, self.read))

    def run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
            }
        )
        consumer.subscribe(["orders"])
        while self.count != self.expected and time.monotonic() < self.ends_at_s:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.read[message.partition()].append(int(message.value()))
        consumer.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    cluster = ClusterProcesses(tmp_path_factory.mktemp("kafka"))
    cluster.brokers = {
        node: cluster.broker(node, cluster.directory, kafka_listen=f"127.0.0.1:{port_to_keep()}", rack=f"r{node}")
        for node in cluster.brokers
    }
    with cluster:
        yield cluster


@pytest.fixture
def servers(cluster: ClusterProcesses) -> str:
    return ",".join(str(broker.settings["kafka.listen"]) for broker in cluster.brokers.values())


def test_librdkafka_goes_on_while_the_coordinator_of_its_group_is_dead(cluster: ClusterProcesses, servers: str) -> None:
    refused: list[object] = []
    with Admin(cluster.addresses) as admin:
        admin.create_topic("orders", partitions=3)
    member = Member(servers)
    member.start()
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
    sent = 0

    def send_until_read(count: int) -> None:
        nonlocal sent
        deadline = time.monotonic() + PATIENCE_S
        while member.count < count and time.monotonic() < deadline:
            producer.produce(
                "orders",
                b"%d" % sent,
                partition=sent % 3,
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )
            sent += 1
            producer.poll(0.01)

    send_until_read(100)
    dead = asyncio.run(cluster.coordinator_of("readers"))
    dead.kill()
    send_until_read(member.count + 200)
    dead.start()
    send_until_read(member.count + 100)
    assert producer.flush(PATIENCE_S) == 0
    member.expected = sent
    member.join()
    assert refused == []
    assert member.read == [list(range(number, sent, 3)) for number in range(3)]


def test_who_asks_a_broker_that_does_not_lead_is_told_who_does(cluster: ClusterProcesses) -> None:
    """By the current leader in the responses (KIP-951), and its address, and by the racks in metadata."""
    with Admin(cluster.addresses) as admin:
        admin.create_topic("led", partitions=1)
        described = admin.describe_topic("led")
    (partition,) = described.partitions
    other = next(node for node in cluster.brokers if node != partition.leader)
    address = cluster.brokers[partition.leader].settings["kafka.listen"]
    fetched, produced = API["Fetch"].request, API["Produce"].request
    part = fetched.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topics = [fetched.FetchTopic(topic_id=described.topic_id.bytes, partitions=[part])]
    records = rows(b"1")
    data = [produced.TopicProduceData("led", partition_data=[produced.PartitionProduceData(0, len(records))])]
    with KafkaClient(str(cluster.brokers[other].settings["kafka.listen"])) as client:
        read = client.call("Fetch", 16, topics=topics, max_wait_ms=100, min_bytes=1, max_bytes=1000, session_epoch=-1)
        written = client.receive(
            "Produce", 10, client.send("Produce", 10, records=records, acks=-1, timeout_ms=1000, topic_data=data)
        )
        racks = {each.node_id: each.rack for each in client.call("Metadata", 9, topics=[]).brokers}
    for refused, response in (
        (read.responses[0].partitions[0], read),
        (written.responses[0].partition_responses[0], written),
    ):
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert refused.current_leader.leader_id == partition.leader
        assert refused.current_leader.leader_epoch >= 0
        (endpoint,) = response.node_endpoints
        assert (endpoint.node_id, f"{endpoint.host}:{endpoint.port}") == (partition.leader, address)
    assert racks == {node: f"r{node}" for node in cluster.brokers}


def test_librdkafka_reads_from_the_replica_of_its_rack(cluster: ClusterProcesses, servers: str) -> None:
    told: list[str] = []
    with Admin(cluster.addresses) as admin:
        admin.create_topic("near", partitions=1)
        leader = admin.describe_topic("near").partitions[0].leader
    near = next(node for node in cluster.brokers if node != leader)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "near",
            "client.rack": f"r{near}",
            "debug": "fetch",
            "logger": SimpleNamespace(log=lambda _level, form, *given: told.append(form % given)),
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("near", 0, 0)])
    deadline, read, sent = time.monotonic() + PATIENCE_S, 0, 0
    while (sent < 20 or read < sent) and time.monotonic() < deadline:
        if sent == read:
            producer.produce("near", b"%d" % sent)
            producer.flush(PATIENCE_S)
            sent += 1
        message = consumer.poll(0.2)
        if message is not None:
            assert (message.error(), message.value()) == (None, b"%d" % read)
            read += 1
    consumer.close()
    assert read == sent == 20
    assert any("preferred replica" in line.lower() for line in told), told
    assert not any("non-zero message set" in line for line in told)


def test_offsets_of_a_transaction_come_to_the_coordinator_of_the_group(cluster: ClusterProcesses, servers: str) -> None:
    """Kafka's clients send them there; the broker that coordinates the transactional id has to know of them, too."""
    with Admin(cluster.addresses) as admin:
        admin.create_topic("copied", partitions=1)
    elsewhere = asyncio.run(cluster.coordinator_of("copier", m.CoordinatorKind.TRANSACTION))
    names = (f"copiers-{number}" for number in range(100))
    group = next(name for name in names if asyncio.run(cluster.coordinator_of(name)) is not elsewhere)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": "copier"})
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent_kafka.TopicPartition("copied", 0, 7)])
    producer.init_transactions(PATIENCE_S)
    for offset, commits in ((5, True), (7, False)):
        producer.begin_transaction()
        producer.produce("copied", b"%d" % offset)
        moved = [confluent_kafka.TopicPartition("copied", 0, offset)]
        producer.send_offsets_to_transaction(moved, consumer.consumer_group_metadata(), PATIENCE_S)
        (producer.commit_transaction if commits else producer.abort_transaction)(PATIENCE_S)
    consumer.close()
    with Admin(cluster.addresses) as admin:
        assert admin.committed_offsets(group)["copied", 0].offset == 5
