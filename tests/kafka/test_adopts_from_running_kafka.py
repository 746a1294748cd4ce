"""`warmlog log adopt` with a real Kafka: what it says of its topics while it runs, and its directories after that."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.spark.kafka_server import KafkaServer
from integration.command_line import CommandLine
from kafka_jars import JARS, NEEDS_KAFKA, run_java
from warmlog_broker.metadata.log_file import read_state
from warmlog_broker.tools.adoption.kafka_cluster import ask_kafka
from warmlog_broker.tools.adoption.partition import AdoptionRefused
from warmlog_broker.tools.adoption.topic_configs import read_topic_configs

AUTHORIZER = """\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
"""
SET = {"cleanup.policy": "compact,delete", "max.message.bytes": "2000000", "retention.ms": "86400000"}
NOT_OURS = {"follower.replication.throttled.replicas": "1:1,2:1"}
TOPICS = frozenset({"flights", "plain"})

pytestmark = NEEDS_KAFKA


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A Kafka with three topics, one of which this client may not ask for its settings."""
    with KafkaServer(JARS, tmp_path_factory.mktemp("kafka"), AUTHORIZER) as server:
        settings = [word for name, value in (SET | NOT_OURS).items() for word in ("--config", f"{name}={value}")]
        create = ("org.apache.kafka.tools.TopicCommand", "--create", "--topic")
        tool(server, *create, "flights", "--partitions", "3", *settings)
        tool(server, *create, "plain")
        tool(server, *create, "secret")
        only = ("--add", "--allow-principal", "User:ANONYMOUS", "--operation", "Describe", "--topic", "secret")
        tool(server, "org.apache.kafka.tools.AclCommand", *only)
        yield server


def tool(server: KafkaServer, name: str, *options: str) -> str:
    """What one of Kafka's tools prints."""
    done = run_java(name, "--bootstrap-server", server.address, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_running_kafka_says_what_was_set_on_its_topics(kafka: KafkaServer) -> None:
    configs = ask_kafka(kafka.address, [kafka.data_dir], TOPICS)
    assert configs.known == {"flights": SET, "plain": {}}
    assert configs.unknown == {"flights": list(NOT_OURS)}
    assert configs.partitions == {"flights": 3, "plain": 1}


@pytest.mark.parametrize("options", [[], ["--all"]])
def test_the_listing_of_kafkas_tool_says_the_same(kafka: KafkaServer, tmp_path: Path, options: list[str]) -> None:
    describe = ("kafka.admin.ConfigCommand", "--describe", "--entity-type", "topics")
    (tmp_path / "listed").write_text(
        "".join(tool(kafka, *describe, "--entity-name", topic, *options) for topic in sorted(TOPICS))
    )
    listed = read_topic_configs(tmp_path / "listed")
    assert listed.known.keys() == TOPICS
    assert listed.known["flights"].items() >= SET.items()
    assert (len(listed.known["flights"]) > len(SET)) == (listed.known["plain"] != {}) == bool(options)
    assert set(NOT_OURS) <= set(listed.unknown["flights"])
    assert not listed.tiered


def test_a_topic_whose_settings_may_not_be_seen_is_named(kafka: KafkaServer) -> None:
    with pytest.raises(AdoptionRefused, match="settings of topic secret: TopicAuthorizationFailedError"):
        ask_kafka(kafka.address, [kafka.data_dir])


def test_a_kafka_is_asked_then_stopped_then_taken_over(kafka: KafkaServer, tmp_path: Path) -> None:
    named = [word for topic in sorted(TOPICS) for word in ("--topic", topic)]
    arguments = [kafka.data_dir, "--data-dir", tmp_path / "data", "--kafka", kafka.address, *named]
    adopting = CommandLine("127.0.0.1:1").start("log", "adopt", *arguments)
    assert adopting.stderr is not None
    assert b"Kafka's settings are known; waiting:" in adopting.stderr.readline()
    kafka.stop()
    out, err = adopting.communicate(timeout=180)
    assert adopting.returncode == 0, err
    assert out.count(b"offsets 0 to 0") == 4
    assert b"compaction are off until you set them: plain" in err
    topics = read_state(tmp_path / "data" / "metadata.log").topics
    assert {name: topic.partitions for name, topic in topics.items()} == {"flights": 3, "plain": 1}
    assert topics["flights"].settings == {"retention.bytes": "-1", **SET}
