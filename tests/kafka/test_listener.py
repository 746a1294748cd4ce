"""Kafka's own tools against the listener of its clients: what needs no groups."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess, port_to_keep
from kafka_jars import JARS, NEEDS_KAFKA, run_java
from warmlog.blocking import Consumer, Producer

pytestmark = NEEDS_KAFKA
TOOLS = "org.apache.kafka.tools"


class Served:
    """A broker, and what its clients are given."""

    def __init__(self, broker: BrokerProcess, address: str) -> None:
        self.broker = broker
        self.address = address

    def tool(self, name: str, *options: object) -> str:
        """What one of Kafka's tools prints."""
        done = run_java(f"{TOOLS}.{name}", "--bootstrap-server", self.address, *options)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def config(self, *options: object) -> str:
        done = run_java("kafka.admin.ConfigCommand", "--bootstrap-server", self.address, *options)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def verified(self, topic: str, count: int) -> "subprocess.CompletedProcess[str]":
        """What the VerifiableProducer says of so many records."""
        options = ("--bootstrap-server", self.address, "--topic", topic, "--max-messages", count)
        return run_java(f"{TOOLS}.VerifiableProducer", *options)

    def console_read(self, topic: str, count: int) -> list[str]:
        more = ("--topic", topic, "--partition", 0, "--offset", "earliest", "--max-messages", count)
        return self.tool("consumer.ConsoleConsumer", *more, "--timeout-ms", 20_000).splitlines()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    address = f"127.0.0.1:{port_to_keep()}"
    settings = {"kafka_listen": address, "auto_create_topics_enable": "true"}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", **settings) as broker:
        yield Served(broker, address)


def test_the_perf_producer_is_idempotent_and_all_of_its_records_are_there(served: Served) -> None:
    done = run_java(
        f"{TOOLS}.ProducerPerformance",
        *("--topic", "perf", "--num-records", 50_000, "--record-size", 100, "--throughput", -1),
        *("--producer-props", f"bootstrap.servers={served.address}", "acks=all", "compression.type=lz4"),
    )
    assert "50000 records sent" in done.stdout, done.stderr
    assert served.tool("GetOffsetShell", "--topic", "perf").strip() == "perf:0:50000"
    assert served.tool("GetOffsetShell", "--topic", "perf", "--time", "earliest").strip() == "perf:0:0"
    with Consumer(served.broker.address, topics=["perf"]) as consumer:
        assert sum(1 for _ in consumer.records(until="latest")) == 50_000


def test_the_verifiable_producer_has_all_of_its_records_acknowledged(served: Served) -> None:
    done = run_java(
        f"{TOOLS}.VerifiableProducer",
        "--bootstrap-server",
        served.address,
        "--topic",
        "verified",
        "--max-messages",
        500,
    )
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sum(1 for each in said if each["name"] == "producer_send_success") == 500
    assert served.console_read("verified", 500) == [str(number) for number in range(500)]


def test_the_console_consumer_reads_what_warmlogs_client_wrote(served: Served) -> None:
    console = [f"{TOOLS}.ConsoleProducer", "--bootstrap-server", served.address, "--topic", "mixed"]
    java = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*", *console]
    done = subprocess.run(java, input="one\ntwo\n", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with Producer(served.broker.address, compression="zstd") as producer:
        for value in (b"three", b"four"):
            producer.send("mixed", value)
    assert served.console_read("mixed", 4) == ["one", "two", "three", "four"]


def test_records_are_deleted(served: Served, tmp_path: Path) -> None:
    assert served.verified("deleted", 20).returncode == 0
    wanted = tmp_path / "wanted.json"
    wanted.write_text(json.dumps({"partitions": [{"topic": "deleted", "partition": 0, "offset": 7}]}))
    assert "low_watermark: 7" in served.tool("DeleteRecordsCommand", "--offset-json-file", wanted)
    assert served.tool("GetOffsetShell", "--topic", "deleted", "--time", "earliest").strip() == "deleted:0:7"


def test_the_versions_that_are_told_can_be_read(served: Served) -> None:
    told = served.tool("BrokerApiVersionsCommand")
    assert "Produce(0): 0 to 13 [usable: 13]" in told
    assert "Fetch(1): 4 to 17 [usable: 17]" in told


def test_topics_and_their_settings_are_administered(served: Served) -> None:
    served.tool("TopicCommand", "--create", "--topic", "managed", "--partitions", 2, "--config", "retention.ms=5000")
    described = served.tool("TopicCommand", "--describe", "--topic", "managed")
    assert "PartitionCount: 2" in described
    assert "retention.ms=5000" in described
    served.tool("TopicCommand", "--alter", "--topic", "managed", "--partitions", 3)
    entity = ("--entity-type", "topics", "--entity-name", "managed")
    served.config(
        "--alter", *entity, "--add-config", "cleanup.policy=[compact,delete]", "--delete-config", "retention.ms"
    )
    told = served.config("--describe", *entity, "--all")
    assert "cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy" in told
    assert "retention.ms=604800000 sensitive=false synonyms={DEFAULT_CONFIG:retention.ms" in told
    assert "num.partitions=1" in served.config("--describe", "--entity-type", "brokers", "--entity-name", 1, "--all")
    sizes = json.loads(served.tool("LogDirsCommand", "--describe", "--topic-list", "managed").splitlines()[-1])
    ((directory,),) = [each["logDirs"] for each in sizes["brokers"]]
    assert {each["partition"] for each in directory["partitions"]} == {f"managed-{number}" for number in range(3)}
    served.tool("TopicCommand", "--delete", "--topic", "managed")
    assert "managed" not in served.tool("TopicCommand", "--list").split()


def test_users_and_quotas_are_administered(served: Served) -> None:
    user = ("--entity-type", "users", "--entity-name", "alice")
    served.config("--alter", *user, "--add-config", "SCRAM-SHA-256=[iterations=8192,password=geheim]")
    served.config("--alter", *user, "--add-config", "producer_byte_rate=1000000")
    told = served.config("--describe", *user)
    assert "producer_byte_rate=1000000.0" in told
    assert "SCRAM-SHA-256=iterations=8192" in told


def test_java_writes_transactions_and_its_tool_lists_them(served: Served) -> None:
    done = run_java(
        f"{TOOLS}.ProducerPerformance",
        *("--topic", "transactional", "--num-records", 3000, "--record-size", 100, "--throughput", 5000),
        *("--transactional-id", "perf", "--transaction-duration-ms", 50),
        *("--producer-props", f"bootstrap.servers={served.address}", "acks=all"),
    )
    assert "3000 records sent" in done.stdout, done.stderr
    with Consumer(served.broker.address, topics=["transactional"], isolation="read_committed") as consumer:
        assert sum(1 for _ in consumer.records(until="latest")) == 3000
    assert "perf" in served.tool("TransactionsCommand", "list")
    assert "Empty" in served.tool("TransactionsCommand", "describe", "--transactional-id", "perf")
    producers = served.tool("TransactionsCommand", "describe-producers", "--topic", "transactional", "--partition", 0)
    assert "None" in producers.splitlines()[-1]  # no transaction is open
