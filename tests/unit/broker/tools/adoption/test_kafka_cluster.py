"""A running Kafka, asked for settings and partition counts: what is taken, and what is said if it does not tell."""

import shutil
import socket
from pathlib import Path
from unittest.mock import patch

import pytest

from fake_kafka import FakeKafka, FakeTopic
from kafka_sample import copy_sample
from warmlog_broker.metadata.log_file import read_state
from warmlog_broker.tools.adoption import kafka_cluster
from warmlog_broker.tools.adoption.adopt import adopt
from warmlog_broker.tools.adoption.kafka_cluster import ask_kafka
from warmlog_broker.tools.adoption.partition import AdoptionRefused
from warmlog_broker.tools.adoption.plan import AdoptionOptions
from warmlog_broker.tools.adoption.topic_configs import TopicConfigs, checked_configs
from warmlog_protocol.errors import InvalidConfig

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
"""As in the sample."""
SETTINGS = {"retention.ms": "3600000", "cleanup.policy": "delete,compact", "local.retention.ms": "2"}
TOPICS = {"flights": FakeTopic(settings=SETTINGS), "transfers": FakeTopic(), "elsewhere": FakeTopic(error=(29, "no"))}


@pytest.fixture
def kafka(tmp_path: Path) -> Path:
    return copy_sample(tmp_path / "kafka")


def asked(kafka: Path, **flights: object) -> TopicConfigs:
    """What a Kafka says whose topic `flights` is like that."""
    topics = {**TOPICS, "flights": FakeTopic(**flights)}  # type: ignore[arg-type]
    with FakeKafka(topics, cluster_id=CLUSTER) as server:
        return ask_kafka(server.address, [kafka])


def refusal(kafka: Path, topics: dict[str, FakeTopic], **options: object) -> str:
    with (
        FakeKafka(topics, **{"cluster_id": CLUSTER, **options}) as server,  # type: ignore[arg-type]
        pytest.raises(AdoptionRefused) as caught,
    ):
        ask_kafka(server.address, [kafka])
    return str(caught.value).replace(server.address, "KAFKA")


def test_only_what_was_set_on_a_topic_is_taken_and_only_topics_to_take_over_are_asked_for(kafka: Path) -> None:
    with FakeKafka(TOPICS, cluster_id=CLUSTER) as server:
        configs = ask_kafka(server.address, [kafka])
        assert server.asked == ["flights", "transfers"]
        assert configs.known == {
            "flights": {"retention.ms": "3600000", "cleanup.policy": "compact,delete"},
            "transfers": {},
        }
        assert configs.unknown == {"flights": ["local.retention.ms"]}
        assert configs.partitions == {"flights": 1, "transfers": 1}
        assert ask_kafka(server.address, [kafka], frozenset({"transfers"})).partitions == {"transfers": 1}


def test_partitions_that_only_kafka_knows_of_are_missing(kafka: Path, tmp_path: Path) -> None:
    configs = asked(kafka, partitions=3)
    with pytest.raises(AdoptionRefused, match="'flights' lacks partition 1, 2"):
        adopt([kafka], tmp_path / "data", AdoptionOptions(configs=configs), now_ms=1, is_dry_run=True)
    adopt([kafka], tmp_path / "data", AdoptionOptions(fills_missing=True, configs=configs), now_ms=0)
    assert read_state(tmp_path / "data" / "metadata.log").topics["flights"].partitions == 3


def test_partitions_that_kafka_does_not_know_are_refused(kafka: Path, tmp_path: Path) -> None:
    shutil.copytree(kafka / "flights-0", kafka / "flights-1")
    with pytest.raises(AdoptionRefused, match="'flights' has 1 partitions in Kafka, but partition 1 is here"):
        adopt([kafka], tmp_path / "data", AdoptionOptions(configs=asked(kafka)), now_ms=1, is_dry_run=True)


@pytest.mark.parametrize("value", ["true", "TRUE"])
def test_a_topic_with_segments_in_a_remote_storage_is_refused(kafka: Path, tmp_path: Path, value: str) -> None:
    for configs in (
        asked(kafka, settings={"remote.storage.enable": value}),
        checked_configs({"flights": {"remote.storage.enable": value}}, "a file"),
    ):
        with pytest.raises(AdoptionRefused, match=r"remote\.storage.enable=true"):
            adopt([kafka], tmp_path / "data", AdoptionOptions(configs=configs), now_ms=1, is_dry_run=True)
        only = AdoptionOptions(frozenset({"transfers"}), configs=configs)
        planned = adopt([kafka], tmp_path / "data", only, now_ms=1, is_dry_run=True)
        assert [topic.name for topic in planned.topics] == ["transfers"]


def test_a_value_that_warmlog_does_not_allow_names_the_topic(kafka: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"the Kafka at .*, topic flights: cleanup.policy: '' is not allowed"):
        asked(kafka, settings={"cleanup.policy": ""})


def test_a_topic_that_kafka_does_not_have_or_show(kafka: Path) -> None:
    topics = {"flights": FakeTopic()}
    assert "the Kafka at KAFKA has no topic transfers, or does not show it" in refusal(kafka, topics)


def test_settings_that_this_client_may_not_see(kafka: Path) -> None:
    topics = {**TOPICS, "flights": FakeTopic(error=(29, "Topic authorization failed."))}
    assert refusal(kafka, topics) == (
        "the Kafka at KAFKA does not tell the settings of topic flights: TopicAuthorizationFailedError, Topic "
        "authorization failed. Grant this client DescribeConfigs, or give --topic-configs"
    )


def test_another_cluster(kafka: Path) -> None:
    said = refusal(kafka, TOPICS, cluster_id="another")
    assert said.startswith(f"the Kafka at KAFKA is of cluster another, but {kafka} of {CLUSTER}: ")
    (kafka / "meta.properties").write_text("version=0\nbroker.id=1\n")
    with FakeKafka(TOPICS, cluster_id="another") as server:
        assert ask_kafka(server.address, [kafka]).partitions


def test_a_kafka_that_does_not_tell_where_a_setting_comes_from(kafka: Path) -> None:
    assert "older than 1.1" in refusal(kafka, TOPICS, configs_version=0)


def test_a_kafka_that_does_not_respond(kafka: Path) -> None:
    with patch.object(kafka_cluster, "REQUEST_TIMEOUT_MS", 100):
        assert refusal(kafka, TOPICS, is_silent=True).startswith("cannot ask the Kafka at KAFKA: KafkaConnectionError")


def test_a_kafka_that_advertises_an_address_that_cannot_be_reached(kafka: Path) -> None:
    said = refusal(kafka, TOPICS, advertised_port=1)
    assert said.startswith("cannot ask the Kafka at KAFKA: ")
    assert "whose advertised.listeners can be reached from here" in said


def test_no_kafka(kafka: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(AdoptionRefused, match=r"cannot ask the Kafka at .* Expected one that listens"):
            ask_kafka(f"127.0.0.1:{unused.getsockname()[1]}", [kafka])
