"""Topics and settings by the admin clients of Kafka: what they create, change and describe is the same here."""

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import confluent_kafka
import pytest
from confluent_kafka import admin as of_kafka

from broker_thread import BrokerThread
from kafka_client import KafkaClient, rows
from warmlog.blocking import Admin
from warmlog_broker.kafka.admin import configs
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.kafka.schema import API
from wire_client import WireClient

TIMEOUT_S = 40
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def admin(kafka_address: str) -> of_kafka.AdminClient:
    return of_kafka.AdminClient({"bootstrap.servers": kafka_address})


@pytest.fixture
def own(broker: BrokerThread) -> Iterator[Admin]:
    with Admin(broker.address) as client:
        yield client


def done(futures: dict[Any, Any]) -> dict[Any, Any]:
    """The results of an admin client, which are errors or None."""
    found = {}
    for name, future in futures.items():
        try:
            found[name] = future.result(TIMEOUT_S)
        except confluent_kafka.KafkaException as error:
            found[name] = error.args[0].code()
    return found


def test_topics_are_created_extended_and_deleted(admin: of_kafka.AdminClient, own: Admin) -> None:
    settings = {"retention.ms": "86400000", "cleanup.policy": "compact"}
    created = admin.create_topics([of_kafka.NewTopic("made", 3, 1, config=settings), of_kafka.NewTopic("plain")])
    assert done(created) == {"made": None, "plain": None}
    described = own.describe_topic("made")
    assert (len(described.partitions), described.configs["retention.ms"].value) == (3, "86400000")
    assert done(admin.create_partitions([of_kafka.NewPartitions("made", 5)])) == {"made": None}
    assert len(own.describe_topic("made").partitions) == 5
    assert done(admin.delete_topics(["made", "nowhere"])) == {
        "made": None,
        "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert "made" not in own.topic_names()


def test_trap_25_a_topic_that_exists_and_wrong_ones_are_said(admin: of_kafka.AdminClient, own: Admin) -> None:
    own.create_topic("there")
    wanted = [
        of_kafka.NewTopic("there"),
        of_kafka.NewTopic("no/name"),
        of_kafka.NewTopic("many", 1, 3),
        of_kafka.NewTopic("unknown", config={"no.such.setting": "1"}),
        of_kafka.NewTopic("wrong", config={"retention.ms": "soon"}),
        of_kafka.NewTopic("zero", 0),
    ]
    assert done(admin.create_topics(wanted)) == {
        "there": ErrorCode.TOPIC_ALREADY_EXISTS,
        "no/name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "many": ErrorCode.INVALID_REPLICATION_FACTOR,
        "unknown": ErrorCode.INVALID_CONFIG,
        "wrong": ErrorCode.INVALID_CONFIG,
        "zero": ErrorCode.INVALID_PARTITIONS,
    }


def new_topic(name: str, **fields: Any) -> Any:
    request = API["CreateTopics"].request
    values = {"num_partitions": -1, "replication_factor": -1, "assignments": [], "configs": []}
    return request.CreatableTopic(name, **values | fields)


def test_a_created_topic_is_told_with_its_settings(client: KafkaClient, own: Admin) -> None:
    (told,) = client.call("CreateTopics", 7, topics=[new_topic("told")]).topics
    assert (told.error_code, told.num_partitions, told.replication_factor) == (0, 1, 1)
    assert own.describe_topic("told").topic_id == UUID(bytes=told.topic_id)
    assert {each.name: each.value for each in told.configs}["retention.ms"] == "604800000"
    (checked,) = client.call("CreateTopics", 7, topics=[new_topic("not")], validate_only=True).topics
    assert (checked.error_code, own.topic_names().count("not")) == (0, 0)


def test_assignments_may_name_the_only_broker(client: KafkaClient, own: Admin) -> None:
    part = API["CreateTopics"].request.CreatableReplicaAssignment
    topics = [
        new_topic("assigned", assignments=[part(1, [1]), part(0, [1])]),
        new_topic("elsewhere", assignments=[part(0, [2])]),
        new_topic("both", num_partitions=1, assignments=[part(0, [1])]),
        new_topic("gap", assignments=[part(1, [1])]),
        new_topic("twice"),
        new_topic("twice"),
    ]
    told = client.call("CreateTopics", 4, topics=topics).topics
    assert {each.name: each.error_code for each in told} == {
        "assigned": 0,
        "elsewhere": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "both": ErrorCode.INVALID_REQUEST,
        "gap": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "twice": ErrorCode.INVALID_REQUEST,
    }
    assert len(own.describe_topic("assigned").partitions) == 2


def test_trap_24_settings_of_a_cluster_are_taken_and_named_in_the_log(
    client: KafkaClient, own: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    config = API["CreateTopics"].request.CreatableTopicConfig
    foreign = [
        config("unclean.leader.election.enable", "true"),
        config("min.insync.replicas", "2"),
        config("remote.storage.enable", "false"),
        config("retention.ms", "1000"),
    ]
    (told,) = client.call("CreateTopics", 5, topics=[new_topic("foreign", configs=foreign)]).topics
    assert told.error_code == 0
    assert "for topic 'foreign' what has no effect here: unclean.leader.election.enable=true" in caplog.text
    assert "remote.storage.enable" not in caplog.text
    assert own.describe_topic("foreign").configs["retention.ms"].value == "1000"
    assert own.describe_topic("foreign").configs["min.insync.replicas"].value == "2"


def test_trap_26_each_topic_is_in_the_response(client: KafkaClient, own: Admin) -> None:
    own.create_topic("by-id")
    topic_id = own.describe_topic("by-id").topic_id.bytes
    state = API["DeleteTopics"].request.DeleteTopicState
    topics = [state(None, topic_id), state("nowhere"), state(None, b"?" * 16)]
    told = client.call("DeleteTopics", 6, topics=topics).responses
    assert {(each.name, each.topic_id): each.error_code for each in told} == {
        ("by-id", topic_id): 0,
        ("nowhere", bytes(16)): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (None, b"?" * 16): ErrorCode.UNKNOWN_TOPIC_ID,
    }
    new = API["CreatePartitions"].request.CreatePartitionsTopic
    more = API["CreatePartitions"].request.CreatePartitionsAssignment
    own.create_topic("grows")
    wanted = [new("nowhere", 2), new("grows", 2, [more([7])]), new("grows", 3)]
    results = client.call("CreatePartitions", 3, topics=wanted).results
    assert [each.name for each in results] == ["nowhere", "grows", "grows"]


def describe(
    client: KafkaClient, version: int, kind: int, name: str, keys: list[str] | None = None, **more: Any
) -> Any:
    resource = API["DescribeConfigs"].request.DescribeConfigsResource(kind, name, keys)
    (result,) = client.call("DescribeConfigs", version, resources=[resource], **more).results
    return result


def test_trap_23_settings_have_their_source_and_every_name_that_tools_look_for(client: KafkaClient, own: Admin) -> None:
    own.create_topic("described", configs={"retention.ms": "5000"})
    for version in range(1, 5):
        told = describe(client, version, TOPIC, "described", include_synonyms=True)
        entries = {each.name: each for each in told.configs}
        assert (entries["retention.ms"].value, entries["retention.ms"].config_source) == ("5000", 1)
        assert (entries["cleanup.policy"].value, entries["cleanup.policy"].config_source) == ("delete", 5)
        assert [each.source for each in entries["retention.ms"].synonyms] == [1]
        assert entries["min.insync.replicas"].value == "1", "the majority of its replicas"
        assert entries["retention.ms"].config_type == (5 if version >= 3 else 0)
    of_broker = {each.name: each for each in describe(client, 4, BROKER, "1").configs}
    looked_for = (
        "default.replication.factor num.partitions auto.create.topics.enable log.retention.ms message.max.bytes "
        "delete.topic.enable inter.broker.protocol.version log.dirs broker.id broker.rack connections.max.reauth.ms"
    )
    assert set(looked_for.split()) <= of_broker.keys()
    assert (of_broker["auto.create.topics.enable"].value, of_broker["auto.create.topics.enable"].config_source) == (
        "true",
        4,
    )
    assert of_broker["log.retention.ms"].value == "604800000"
    assert of_broker["connections.max.reauth.ms"].value == of_broker["sasl.session.lifetime.ms"].value
    few = describe(client, 4, TOPIC, "described", ["retention.ms"], include_documentation=True)
    assert [each.name for each in few.configs] == ["retention.ms"]
    assert few.configs[0].documentation


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "7", ErrorCode.INVALID_REQUEST),
        (8, "1", ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_has_no_settings_is_said(client: KafkaClient, kind: int, name: str, code: ErrorCode) -> None:
    assert describe(client, 4, kind, name).error_code == code


def alter(client: KafkaClient, kind: int, name: str, *changes: tuple[str, int, str | None]) -> int:
    request = API["IncrementalAlterConfigs"].request
    configs = [request.AlterableConfig(*change) for change in changes]
    (result,) = client.call(
        "IncrementalAlterConfigs", 1, resources=[request.AlterConfigsResource(kind, name, configs)]
    ).responses
    code: int = result.error_code
    return code


def test_trap_25_settings_change_one_by_one_or_all_at_once(client: KafkaClient, own: Admin) -> None:
    own.create_topic("altered", configs={"retention.ms": "5000", "segment.bytes": "1048576"})

    def set_here() -> dict[str, str]:
        told = describe(client, 4, TOPIC, "altered")
        return {each.name: each.value for each in told.configs if each.config_source == 1}

    assert alter(client, TOPIC, "altered", ("retention.ms", SET, "6000")) == 0
    assert set_here() == {"retention.ms": "6000", "segment.bytes": "1048576"}
    assert alter(client, TOPIC, "altered", ("segment.bytes", DELETE, None), ("cleanup.policy", APPEND, "compact")) == 0
    assert set_here() == {"retention.ms": "6000", "cleanup.policy": "compact,delete"}
    assert alter(client, TOPIC, "altered", ("cleanup.policy", SUBTRACT, "delete")) == 0
    assert set_here()["cleanup.policy"] == "compact"
    assert alter(client, TOPIC, "altered", ("retention.ms", APPEND, "1")) == ErrorCode.INVALID_CONFIG
    assert alter(client, TOPIC, "altered", ("retention.ms", SET, None)) == ErrorCode.INVALID_REQUEST
    assert alter(client, TOPIC, "altered", ("retention.ms", 9, "1")) == ErrorCode.INVALID_REQUEST
    assert alter(client, TOPIC, "nowhere", ("retention.ms", SET, "1")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = API["AlterConfigs"].request
    resource = request.AlterConfigsResource(TOPIC, "altered", [request.AlterableConfig("retention.bytes", "77")])
    (result,) = client.call("AlterConfigs", 2, resources=[resource]).responses
    assert (result.error_code, set_here()) == (0, {"retention.bytes": "77"})


def test_settings_of_the_broker_change_while_it_runs(client: KafkaClient, own: Admin) -> None:
    assert alter(client, BROKER, "1", ("num.partitions", SET, "4"), ("log.retention.ms", SET, "9000")) == 0
    try:
        altered = {each.name: each.value for each in describe(client, 4, BROKER, "").configs}
        assert altered == {"num.partitions": "4", "retention.ms": "9000", "log.retention.ms": "9000"}
        own.create_topic("with-defaults")
        assert len(own.describe_topic("with-defaults").partitions) == 4
    finally:
        assert alter(client, BROKER, "1", ("num.partitions", DELETE, None), ("log.retention.ms", DELETE, None)) == 0
    assert describe(client, 4, BROKER, "").configs == []
    assert alter(client, BROKER, "1", ("data.dir", SET, "/elsewhere")) == ErrorCode.INVALID_CONFIG


def test_settings_of_the_broker_are_altered_again_under_kafkas_names(client: KafkaClient) -> None:
    def set_all(*changes: tuple[str, str]) -> int:
        request = API["AlterConfigs"].request
        resource = request.AlterConfigsResource(BROKER, "1", [request.AlterableConfig(*change) for change in changes])
        (result,) = client.call("AlterConfigs", 2, resources=[resource]).responses
        code: int = result.error_code
        return code

    try:
        assert [set_all(("log.retention.ms", text)) for text in ("9000", "8000")] == [0, 0]
        assert alter(client, BROKER, "1", ("log.cleanup.policy", APPEND, "compact")) == 0
        altered = {each.name: each.value for each in describe(client, 4, BROKER, "").configs}
        assert (altered["retention.ms"], altered["cleanup.policy"]) == ("8000", "compact,delete")
    finally:
        assert set_all() == 0
    assert describe(client, 4, BROKER, "").configs == []


def test_settings_of_kafkas_broker_that_mean_nothing_here_are_taken_and_named_in_the_log(
    client: KafkaClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert alter(client, BROKER, "1", ("num.network.threads", SET, "2"), ("num.io.threads", DELETE, None)) == 0
    assert "for the broker what has no effect here: num.network.threads=2" in caplog.text
    assert describe(client, 4, BROKER, "").configs == []


@pytest.mark.parametrize("name", ["AlterConfigs", "IncrementalAlterConfigs"])
def test_settings_of_another_broker_are_not_those_of_this_one(client: KafkaClient, name: str) -> None:
    request = API[name].request
    resource = request.AlterConfigsResource(BROKER, "77", [request.AlterableConfig("fetch.max.bytes", value="1048576")])
    (result,) = client.call(name, 1, resources=[resource]).responses
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert describe(client, 4, BROKER, "").configs == []


def test_others_have_their_turns_while_many_resources_are_validated(
    broker: BrokerThread, client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = 0
    seen: list[int] = []
    alter_broker = configs._alter_broker

    async def noted(*arguments: Any, **more: Any) -> None:
        seen.append(turn)
        await alter_broker(*arguments, **more)

    async def count_turns() -> None:
        nonlocal turn
        while len(seen) < 20:
            turn += 1
            await asyncio.sleep(0)

    async def begin() -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(count_turns())

    async def end() -> None:
        await counting

    monkeypatch.setattr(configs, "_alter_broker", noted)
    counting = broker.run(begin())
    request = API["IncrementalAlterConfigs"].request
    resource = request.AlterConfigsResource(BROKER, "1", [request.AlterableConfig("fetch.max.bytes", SET, "1048576")])
    told = client.call("IncrementalAlterConfigs", 1, resources=[resource] * 20, validate_only=True)
    broker.run(end())
    assert {each.error_code for each in told.responses} == {0}
    assert len(set(seen)) == 20


def test_a_resource_that_is_named_often_is_described_once(client: KafkaClient, own: Admin) -> None:
    own.create_topic("often")
    resource = API["DescribeConfigs"].request.DescribeConfigsResource
    resources = [resource(BROKER, "1", None), resource(TOPIC, "often", None)] * 1000
    results = client.call("DescribeConfigs", 4, resources=resources).results
    assert [(each.resource_name, each.error_code) for each in results] == [("1", 0), ("often", 0)]


def test_the_cluster_and_its_directories(
    client: KafkaClient, admin: of_kafka.AdminClient, broker: BrokerThread
) -> None:
    client.create("sized")
    wanted = [API["Metadata"].request.MetadataRequestTopic(name="sized")]
    (topic,) = client.call("Metadata", 12, topics=wanted, include_topic_authorized_operations=True).topics
    assert topic.topic_authorized_operations == sum(1 << each for each in (3, 4, 5, 6, 7, 8, 10, 11))
    told = client.call("DescribeCluster", 1, include_cluster_authorized_operations=True)
    assert [each.broker_id for each in told.brokers] == [told.controller_id] == [1]
    assert told.cluster_authorized_operations > 0
    assert client.call("DescribeCluster", 1, endpoint_type=2).error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
    assert admin.describe_cluster().result(TIMEOUT_S).cluster_id == told.cluster_id
    client.produce("sized", rows(b"x" * 1000))
    for version in range(1, 5):
        wanted = [API["DescribeLogDirs"].request.DescribableLogDirTopic("sized", [0])]
        (directory,) = client.call("DescribeLogDirs", version, topics=wanted).results
        ((partition,),) = [topic.partitions for topic in directory.topics]
        assert (partition.partition_index, partition.partition_size > 1000) == (0, True)
    move = API["AlterReplicaLogDirs"].request
    dirs = [move.AlterReplicaLogDir("/nowhere", [move.AlterReplicaLogDirTopic("sized", [0])])]
    (moved,) = client.call("AlterReplicaLogDirs", 2, dirs=dirs).results
    assert moved.partitions[0].error_code == ErrorCode.LOG_DIR_NOT_FOUND


def test_one_broker_has_nothing_to_move_and_nothing_to_elect(broker: BrokerThread, client: KafkaClient) -> None:
    client.create("stays")
    move = API["AlterPartitionReassignments"].request
    wanted = [("stays", 0, [1]), ("stays", 0, [2]), ("stays", 0, None), ("stays", 7, [1]), ("nowhere", 0, [1])]
    topics = [move.ReassignableTopic(name, [move.ReassignablePartition(*part)]) for name, *part in wanted]
    for version in range(2):
        moved = client.call("AlterPartitionReassignments", version, topics=topics)
        assert moved.error_code == 0
        assert [each.name for each in moved.responses] == [name for name, *_ in wanted]
        assert [each.partitions[0].error_code for each in moved.responses] == [
            0,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
    assert client.call("ListPartitionReassignments", 0, topics=None).topics == []
    elect = API["ElectLeaders"].request
    topics = [elect.TopicPartitions("stays", [0, 7])]
    for version in range(3):
        (elected,) = client.call("ElectLeaders", version, topic_partitions=topics).replica_election_results
        assert [(each.partition_id, each.error_code) for each in elected.partition_result] == [
            (0, ErrorCode.ELECTION_NOT_NEEDED),
            (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert client.call("ElectLeaders", version, topic_partitions=None).replica_election_results == []
    refused = client.call("ElectLeaders", 2, topic_partitions=topics, election_type=2)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    broker.in_loop(lambda it: it.topics.partition("stays", 0).take_offline("the disk fails"))
    expected = [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    for kind, code in enumerate(expected):
        elected = client.call("ElectLeaders", 2, topic_partitions=topics, election_type=kind)
        assert elected.replica_election_results[0].partition_result[0].error_code == code
    with WireClient(broker.address) as own:
        own.call(m.DeleteTopicsRequest(["stays"]))
