"""Clients of Kafka at three brokers: they find leaders and coordinators by themselves, and administer the cluster."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import admin as of_kafka

import kafka
from broker_process import port_to_keep
from cluster_processes import ClusterProcesses, all_are_in_sync, ask, run
from etcd_process import needs_etcd
from kafka_client import KafkaClient, rows
from waiting import wait_until
from warmlog.blocking import Admin, Producer
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


def test_what_a_leader_has_damaged_is_read_from_the_next_one(cluster: ClusterProcesses, servers: str) -> None:
    values = [b"value-%d" % number for number in range(20)]
    with Admin(cluster.addresses) as admin:
        admin.create_topic("damaged", partitions=1)
    with Producer(cluster.addresses) as producer:
        for value in values:
            producer.send("damaged", value).result()
    node = cluster.leader_of("damaged")
    (path,) = cluster.brokers[node].data_dir.glob("damaged-0/*.log")
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(values[7]))
        file.write(b"VALUE")
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "none", "check.crcs": True})
    consumer.assign([confluent_kafka.TopicPartition("damaged", 0, 0)])
    read: list[object] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while len(read) < len(values) and time.monotonic() < deadline_s:
        if (message := consumer.poll(0.2)) is not None:
            read.append(message.error() or message.value())
    consumer.close()
    assert read == values
    assert cluster.leader_of("damaged") != node


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


# --- administration: librdkafka's admin client and kafka-python's

TOPIC, BROKER = of_kafka.ConfigResource.Type.TOPIC, of_kafka.ConfigResource.Type.BROKER
SET, DELETE = of_kafka.AlterConfigOpType.SET, of_kafka.AlterConfigOpType.DELETE
PREFERRED, UNCLEAN = confluent_kafka.ElectionType.PREFERRED, confluent_kafka.ElectionType.UNCLEAN


@pytest.fixture
def admin(servers: str) -> of_kafka.AdminClient:
    return of_kafka.AdminClient({"bootstrap.servers": servers})


@pytest.fixture
def python_admin(servers: str) -> Iterator[kafka.KafkaAdminClient]:
    client = kafka.KafkaAdminClient(bootstrap_servers=servers)
    yield client
    client.close()


def codes(futures: dict[Any, Any]) -> dict[Any, int]:
    """The error codes of an admin client's results, 0 for none."""
    found = {}
    for name, future in futures.items():
        try:
            future.result(PATIENCE_S)
            found[name] = 0
        except confluent_kafka.KafkaException as error:
            found[name] = error.args[0].code()
    return found


def chosen(name: str, replicas: list[list[int]], **config: str) -> of_kafka.NewTopic:
    return of_kafka.NewTopic(name, len(replicas), replica_assignment=replicas, config=config)


def create(admin: of_kafka.AdminClient, replicas: dict[str, list[list[int]]], **config: str) -> None:
    new = [chosen(name, nodes, **config) for name, nodes in replicas.items()]
    assert set(codes(admin.create_topics(new)).values()) == {0}


def replicas_of(admin: of_kafka.AdminClient, topic: str) -> list[list[int]]:
    partitions = admin.list_topics(topic, PATIENCE_S).topics[topic].partitions
    return [partitions[number].replicas for number in range(len(partitions))]


def leader_of(admin: of_kafka.AdminClient, topic: str) -> int:
    leader: int = admin.list_topics(topic, PATIENCE_S).topics[topic].partitions[0].leader
    return leader


def elect(admin: of_kafka.AdminClient, kind: confluent_kafka.ElectionType, topic: str) -> int:
    partition = confluent_kafka.TopicPartition(topic, 0)
    (error,) = admin.elect_leaders(kind, [partition]).result(PATIENCE_S).values()
    return 0 if error is None else error.code()


def setting(admin: of_kafka.AdminClient, kind: Any, name: str, key: str) -> str:
    (future,) = admin.describe_configs([of_kafka.ConfigResource(kind, name)]).values()
    value: str = future.result(PATIENCE_S)[key].value
    return value


def alter(admin: of_kafka.AdminClient, node: int, key: str, operation: Any, value: str | None = None) -> None:
    entry = of_kafka.ConfigEntry(key, value, incremental_operation=operation)
    resource = of_kafka.ConfigResource(BROKER, str(node), incremental_configs=[entry])
    assert list(codes(admin.incremental_alter_configs([resource])).values()) == [0]


def test_topics_get_the_replicas_that_admin_clients_ask_for(admin: of_kafka.AdminClient) -> None:
    new = [
        of_kafka.NewTopic("default"),
        of_kafka.NewTopic("two", 2, 2, config={"min.insync.replicas": "1"}),
        chosen("chosen", [[3, 1], [2, 3]]),
        of_kafka.NewTopic("many", 1, 4),
        chosen("elsewhere", [[1, 9]]),
    ]
    assert codes(admin.create_topics(new)) == {
        "default": 0,
        "two": 0,
        "chosen": 0,
        "many": ErrorCode.INVALID_REPLICATION_FACTOR,
        "elsewhere": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    }
    more = {
        "chosen": of_kafka.NewPartitions("chosen", 3, replica_assignment=[[1, 2]]),
        "two": of_kafka.NewPartitions("two", 3, replica_assignment=[[1]]),
        "default": of_kafka.NewPartitions("default", 2),
    }
    added = {name: codes(admin.create_partitions([each]))[name] for name, each in more.items()}
    assert added == {"chosen": 0, "two": ErrorCode.INVALID_REPLICA_ASSIGNMENT, "default": 0}
    wait_until(lambda: replicas_of(admin, "chosen") == [[3, 1], [2, 3], [1, 2]])
    wait_until(lambda: [len(each) for each in replicas_of(admin, "default")] == [3, 3])
    assert [len(each) for each in replicas_of(admin, "two")] == [2, 2]
    assert [setting(admin, TOPIC, name, "min.insync.replicas") for name in ("default", "two")] == ["2", "1"]


def test_each_broker_has_its_own_settings_and_directories(
    cluster: ClusterProcesses, admin: of_kafka.AdminClient, python_admin: kafka.KafkaAdminClient
) -> None:
    described = admin.describe_cluster().result(PATIENCE_S)
    assert {each.id: each.rack for each in described.nodes} == {node: f"r{node}" for node in cluster.brokers}
    assert described.controller.id in cluster.brokers
    assert [setting(admin, BROKER, node, "broker.id") for node in "123"] == ["1", "2", "3"]
    assert setting(admin, BROKER, "2", "default.replication.factor") == "3"
    for node in (2, 3):
        alter(admin, node, "num.partitions", SET, str(node))
    assert [setting(admin, BROKER, node, "num.partitions") for node in "123"] == ["1", "2", "3"]
    with KafkaClient(str(cluster.brokers[1].settings["kafka.listen"])) as client:
        other = API["DescribeConfigs"].request.DescribeConfigsResource(4, "2", None)
        (of_other,) = client.call("DescribeConfigs", 4, resources=[other]).results
    assert of_other.error_code == ErrorCode.INVALID_REQUEST
    assert "each broker" in of_other.error_message
    for node in (2, 3):
        alter(admin, node, "num.partitions", DELETE)
    create(admin, {"placed": [[1, 3]]})

    def holders() -> set[int]:
        found = python_admin.describe_log_dirs({"placed": [0]})
        return {each["broker"] for each in found if any(directory["topics"] for directory in each["log_dirs"])}

    wait_until(lambda: holders() == {1, 3})


def test_settings_of_all_brokers_are_in_force_at_each_that_has_none_of_its_own(
    cluster: ClusterProcesses, admin: of_kafka.AdminClient
) -> None:
    def alter_all(operation: int, **changes: str | None) -> int:
        request = API["IncrementalAlterConfigs"].request
        given = [request.AlterableConfig(name.replace("_", "."), operation, value) for name, value in changes.items()]
        with KafkaClient(str(cluster.brokers[1].settings["kafka.listen"])) as client:
            resources = [request.AlterConfigsResource(4, "", given)]
            (result,) = client.call("IncrementalAlterConfigs", 1, resources=resources).responses
        code: int = result.error_code
        return code

    def of_all(node: int) -> dict[str, str]:
        asked = API["DescribeConfigs"].request.DescribeConfigsResource(4, "", None)
        with KafkaClient(str(cluster.brokers[node].settings["kafka.listen"])) as client:
            (result,) = client.call("DescribeConfigs", 4, resources=[asked]).results
        assert {each.config_source for each in result.configs} <= {3}
        return {each.name: each.value for each in result.configs}

    def partitions() -> list[str]:
        return [setting(admin, BROKER, node, "num.partitions") for node in "123"]

    alter(admin, 2, "num.partitions", SET, "2")
    create(admin, {"kept": [[1, 2, 3]]})
    assert alter_all(0, num_partitions="5", log_retention_ms="9000") == 0
    wait_until(lambda: partitions() == ["5", "2", "5"])
    wait_until(lambda: setting(admin, TOPIC, "kept", "retention.ms") == "9000")
    everywhere = {"num.partitions": "5", "retention.ms": "9000", "log.retention.ms": "9000"}
    assert [of_all(node) for node in (1, 2, 3)] == [everywhere] * 3
    assert alter_all(0, node_id="5") == ErrorCode.INVALID_CONFIG
    cluster.brokers[3].kill()
    assert alter_all(0, num_partitions="6") == 0
    cluster.brokers[3].start()
    assert setting(admin, BROKER, "3", "num.partitions") == "6"
    with Admin(cluster.brokers[3].address) as own:
        assert own.describe_broker()["num.partitions"].source == "altered for all"
    alter(admin, 2, "num.partitions", DELETE)
    assert partitions() == ["6"] * 3
    assert alter_all(1, num_partitions=None, log_retention_ms=None) == 0
    wait_until(lambda: partitions() == ["1"] * 3)
    assert of_all(1) == {}
    wait_until(lambda: all_are_in_sync(cluster))


def test_partitions_are_moved_and_a_move_is_taken_back(
    cluster: ClusterProcesses, admin: of_kafka.AdminClient, python_admin: kafka.KafkaAdminClient, servers: str
) -> None:
    create(admin, {"moved": [[1]]})
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "batch.num.messages": 1})
    for _ in range(4):  # more than one fetch of a follower brings
        producer.produce("moved", os.urandom(900_000))
    assert producer.flush(PATIENCE_S) == 0
    alter(admin, 3, "follower.replication.throttled.rate", SET, "1")
    part = kafka.TopicPartition("moved", 0)
    assert python_admin.alter_partition_reassignments({part: [3]}) == {part: None}
    moves = {part: {"replicas": [3, 1], "adding_replicas": [3], "removing_replicas": [1]}}
    assert python_admin.list_partition_reassignments() == moves
    assert python_admin.list_partition_reassignments({"moved": [1]}) == {}
    assert python_admin.alter_partition_reassignments({part: None}) == {part: None}
    wait_until(lambda: python_admin.list_partition_reassignments() == {})
    wait_until(lambda: replicas_of(admin, "moved") == [[1]])
    alter(admin, 3, "follower.replication.throttled.rate", DELETE)
    assert python_admin.alter_partition_reassignments({part: [3, 2]}) == {part: None}
    wait_until(lambda: python_admin.list_partition_reassignments() == {})
    wait_until(lambda: replicas_of(admin, "moved") == [[3, 2]])
    for nodes, code in ((None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS), ([1, 9], ErrorCode.INVALID_REPLICA_ASSIGNMENT)):
        assert python_admin.alter_partition_reassignments({part: nodes})[part].errno == code
    with KafkaClient(str(cluster.brokers[1].settings["kafka.listen"])) as client:
        request = API["AlterPartitionReassignments"].request
        topics = [request.ReassignableTopic("moved", [request.ReassignablePartition(0, [1])])]
        fields = {"topics": topics, "allow_replication_factor_change": False}
        (told,) = client.call("AlterPartitionReassignments", 1, **fields).responses
    assert told.partitions[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_leaders_are_elected(cluster: ClusterProcesses, admin: of_kafka.AdminClient, servers: str) -> None:
    """The last one loses a record, as was asked for."""

    def is_away(node: int) -> bool:
        return {row["node"]: row["state"] for row in ask(cluster, "brokers")}[node] == "away"

    create(admin, {"first": [[3, 1]], "lone": [[3]], "lossy": [[2, 3]]}, **{"min.insync.replicas": "1"})
    run(cluster, "elect", "first", "0", "--leader", "1")
    assert elect(admin, PREFERRED, "first") in (0, ErrorCode.ELECTION_NOT_NEEDED), "it goes back by itself, too"
    wait_until(lambda: leader_of(admin, "first") == 3)
    for kind in (PREFERRED, UNCLEAN):
        assert elect(admin, kind, "first") == ErrorCode.ELECTION_NOT_NEEDED
    assert elect(admin, PREFERRED, "nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster.brokers[3].kill()
    wait_until(lambda: is_away(3))
    wait_until(lambda: leader_of(admin, "first") == 1)
    assert elect(admin, PREFERRED, "first") == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert elect(admin, UNCLEAN, "lone") == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    with KafkaClient(str(cluster.brokers[1].settings["kafka.listen"])) as client:
        wanted = [API["Metadata"].request.MetadataRequestTopic(name="first")]
        (told,) = client.call("Metadata", 12, topics=wanted).topics
    assert told.partitions[0].offline_replicas == [3]
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    producer.produce("lossy", b"lost")
    assert producer.flush(PATIENCE_S) == 0
    cluster.brokers[2].kill()
    wait_until(lambda: is_away(2))
    cluster.brokers[3].start()
    wait_until(lambda: not is_away(3))
    assert leader_of(admin, "lossy") == -1
    # What is not done in time is withdrawn, or may be done just then.
    wait_until(lambda: elect(admin, UNCLEAN, "lossy") in (0, ErrorCode.ELECTION_NOT_NEEDED))
    wait_until(lambda: leader_of(admin, "lossy") == 3)
    cluster.brokers[2].start()
