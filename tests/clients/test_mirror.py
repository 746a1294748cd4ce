"""MirrorMaker 2 from a real Kafka: records, settings of topics and positions of groups."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.spark.kafka_server import KafkaServer
from clients import fetched
from clients.java import java, running
from clients.java import program as java_program
from clients.programs import numbered, run
from clients.served import Served
from waiting import wait_until
from warmlog.blocking import Admin
from warmlog.errors import WarmlogError

CLIENT = "MirrorMaker 2 of Kafka 4.1.0"
TIMEOUT_S = 180.0
PAGE = fetched.TOP / "docs" / "how-to" / "coming-from-kafka.md"
SOONER = "".join(
    f"{what}.interval.seconds = 2\n" for what in ("refresh.topics", "refresh.groups", "sync.topic.configs")
)


class Mirrored:
    """A Kafka with a topic of 500 records and a group that has read 200."""

    def __init__(self, server: KafkaServer) -> None:
        self.server = server
        self.address = server.address

    def tool(self, name: str, *arguments: object) -> list[str]:
        return run(java("", name, "--bootstrap-server", self.address, *arguments))


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    directory = tmp_path_factory.mktemp("kafka")
    settings = (
        "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\nauto.create.topics.enable=true\n"
    )
    with KafkaServer(fetched.jars(), directory, settings) as server:
        yield Mirrored(server)


def test_records_settings_and_positions(kafka: Mirrored, served: Served, tmp_path: Path) -> None:
    program = java_program("mirrored", "clients-new", "Clients")
    settings = ("--config", "retention.ms=123456789", "--config", "cleanup.policy=compact")
    kafka.tool("org.apache.kafka.tools.TopicCommand", "--create", "--topic", "orders", *settings)
    there = Served(served.broker, kafka.address)
    program.run(there, "produce", "orders", "lz4", 500)
    assert len(program.run(there, "consume", "orders", "billing", 500)) == 500
    assert len(program.run(there, "consume", "orders", "lagging", 200)) == 200
    documented = PAGE.read_text().partition("```properties\n")[2].partition("```")[0]
    for name, here in {"kafka.example.org:9092": kafka.address, "warmlog.example.org:9092": served.address}.items():
        assert name in documented
        documented = documented.replace(name, here)
    properties = tmp_path / "mirror.properties"
    properties.write_text(documented.replace(".seconds = 10", ".seconds = 1") + SOONER)
    command = java("connect", "org.apache.kafka.connect.mirror.MirrorMaker", properties)
    with running(command, tmp_path / "log"):
        wait_until(lambda: len(records(served)) == 500, TIMEOUT_S)
        wait_until(lambda: position(served, "billing") == 500, TIMEOUT_S)
        wait_until(lambda: position(served, "lagging") > 0, TIMEOUT_S)
        wait_until(lambda: settings_of(served).get("retention.ms") == "123456789", TIMEOUT_S)
    assert settings_of(served)["cleanup.policy"] == "compact"
    assert records(served) == numbered()
    assert position(served, "lagging") <= 200
    program.run(served, "produce", "orders", "none", 100)
    assert program.run(served, "consume", "orders", "billing", 100) == numbered(0, 100)


def records(served: Served) -> list[str]:
    try:
        return [f"{(each.key or b'').decode()}={(each.value or b'').decode()}" for each in served.read("orders")]
    except WarmlogError:
        return []


def position(served: Served, group: str) -> int:
    with Admin(served.broker.address) as admin:
        committed = admin.committed_offsets(group)
    return sum(each.offset for each in committed.values())


def settings_of(served: Served) -> dict[str, str]:
    with Admin(served.broker.address) as admin:
        return {name: each.value for name, each in admin.describe_topic("orders").configs.items()}
