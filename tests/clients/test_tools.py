"""Kafka's own tools: topics, settings, records, directories, ACLs, users, quotas, transactions, perf and console."""

import json
import subprocess
from pathlib import Path

import pytest

from broker_process import port_to_keep
from clients import fetched
from clients.served import Served
from cluster_processes import ClusterProcesses
from etcd_process import needs_etcd
from kafka_jars import JARS, run_java
from warmlog.blocking import Consumer, Producer

CLIENT = "Kafka's tools 4.1.0"
SETTINGS = {"authorization": "acl", "super_users": "User:ANONYMOUS"}
TOOLS = "org.apache.kafka.tools"


class Tools:
    """The tools, for one broker."""

    def __init__(self, served: Served) -> None:
        self.broker = served.broker
        self.address = served.address

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


@pytest.fixture
def tools(served: Served) -> Tools:
    fetched.jars()
    return Tools(served)


def test_the_perf_producer_is_idempotent_and_all_of_its_records_are_there(tools: Tools) -> None:
    done = run_java(
        f"{TOOLS}.ProducerPerformance",
        *("--topic", "perf", "--num-records", 50_000, "--record-size", 100, "--throughput", -1),
        *("--producer-props", f"bootstrap.servers={tools.address}", "acks=all", "compression.type=lz4"),
    )
    assert "50000 records sent" in done.stdout, done.stderr
    assert tools.tool("GetOffsetShell", "--topic", "perf").strip() == "perf:0:50000"
    assert tools.tool("GetOffsetShell", "--topic", "perf", "--time", "earliest").strip() == "perf:0:0"
    with Consumer(tools.broker.address, topics=["perf"]) as consumer:
        assert sum(1 for _ in consumer.records(until="latest")) == 50_000


def test_the_verifiable_producer_has_all_of_its_records_acknowledged(tools: Tools) -> None:
    done = tools.verified("verified", 500)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sum(1 for each in said if each["name"] == "producer_send_success") == 500
    assert tools.console_read("verified", 500) == [str(number) for number in range(500)]


def test_the_console_consumer_reads_what_warmlogs_client_wrote(tools: Tools) -> None:
    console = [f"{TOOLS}.ConsoleProducer", "--bootstrap-server", tools.address, "--topic", "mixed"]
    java = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*", *console]
    done = subprocess.run(java, input="one\ntwo\n", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with Producer(tools.broker.address, compression="zstd") as producer:
        for value in (b"three", b"four"):
            producer.send("mixed", value)
    assert tools.console_read("mixed", 4) == ["one", "two", "three", "four"]


def test_records_are_deleted(tools: Tools, tmp_path: Path) -> None:
    assert tools.verified("deleted", 20).returncode == 0
    wanted = tmp_path / "wanted.json"
    wanted.write_text(json.dumps({"partitions": [{"topic": "deleted", "partition": 0, "offset": 7}]}))
    assert "low_watermark: 7" in tools.tool("DeleteRecordsCommand", "--offset-json-file", wanted)
    assert tools.tool("GetOffsetShell", "--topic", "deleted", "--time", "earliest").strip() == "deleted:0:7"


def test_the_versions_that_are_told_can_be_read(tools: Tools) -> None:
    told = tools.tool("BrokerApiVersionsCommand")
    assert "Produce(0): 0 to 13 [usable: 13]" in told
    assert "Fetch(1): 4 to 17 [usable: 17]" in told


def test_topics_and_their_settings_are_administered(tools: Tools) -> None:
    tools.tool("TopicCommand", "--create", "--topic", "managed", "--partitions", 2, "--config", "retention.ms=5000")
    described = tools.tool("TopicCommand", "--describe", "--topic", "managed")
    assert "PartitionCount: 2" in described
    assert "retention.ms=5000" in described
    tools.tool("TopicCommand", "--alter", "--topic", "managed", "--partitions", 3)
    entity = ("--entity-type", "topics", "--entity-name", "managed")
    tools.config(
        "--alter", *entity, "--add-config", "cleanup.policy=[compact,delete]", "--delete-config", "retention.ms"
    )
    told = tools.config("--describe", *entity, "--all")
    assert "cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy" in told
    assert "retention.ms=604800000 sensitive=false synonyms={DEFAULT_CONFIG:retention.ms" in told
    assert "num.partitions=1" in tools.config("--describe", "--entity-type", "brokers", "--entity-name", 1, "--all")
    sizes = json.loads(tools.tool("LogDirsCommand", "--describe", "--topic-list", "managed").splitlines()[-1])
    ((directory,),) = [each["logDirs"] for each in sizes["brokers"]]
    assert {each["partition"] for each in directory["partitions"]} == {f"managed-{number}" for number in range(3)}
    tools.tool("TopicCommand", "--delete", "--topic", "managed")
    assert "managed" not in tools.tool("TopicCommand", "--list").split()


@needs_etcd
def test_settings_of_all_brokers_of_a_cluster_are_administered(tmp_path: Path) -> None:
    fetched.jars()
    cluster = ClusterProcesses(tmp_path / "c")
    listeners = {node: f"127.0.0.1:{port_to_keep()}" for node in cluster.brokers}
    cluster.brokers = {node: cluster.broker(node, tmp_path / "c", kafka_listen=at) for node, at in listeners.items()}
    with cluster:
        tools = Tools(Served(cluster.brokers[1], ",".join(listeners.values())))
        every = ("--entity-type", "brokers", "--entity-default")
        tools.config("--alter", *every, "--add-config", "num.partitions=5,log.retention.ms=9000")
        told = tools.config("--describe", *every)
        assert "num.partitions=5 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:num.partitions=5}" in told
        assert "log.retention.ms=9000" in told
        for node in cluster.brokers:
            of_one = tools.config("--describe", "--entity-type", "brokers", "--entity-name", node, "--all")
            assert "num.partitions=5 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:num.partitions=5" in of_one
        tools.config("--alter", *every, "--delete-config", "num.partitions,log.retention.ms")
        assert "num.partitions" not in tools.config("--describe", *every)


def test_users_and_quotas_are_administered(tools: Tools) -> None:
    user = ("--entity-type", "users", "--entity-name", "alice")
    tools.config("--alter", *user, "--add-config", "SCRAM-SHA-256=[iterations=8192,password=geheim]")
    tools.config("--alter", *user, "--add-config", "producer_byte_rate=1000000")
    told = tools.config("--describe", *user)
    assert "producer_byte_rate=1000000.0" in told
    assert "SCRAM-SHA-256=iterations=8192" in told


def test_java_writes_transactions_and_its_tool_lists_them(tools: Tools) -> None:
    done = run_java(
        f"{TOOLS}.ProducerPerformance",
        *("--topic", "transactional", "--num-records", 3000, "--record-size", 100, "--throughput", 5000),
        *("--transactional-id", "perf", "--transaction-duration-ms", 50),
        *("--producer-props", f"bootstrap.servers={tools.address}", "acks=all"),
    )
    assert "3000 records sent" in done.stdout, done.stderr
    with Consumer(tools.broker.address, topics=["transactional"], isolation="read_committed") as consumer:
        assert sum(1 for _ in consumer.records(until="latest")) == 3000
    assert "perf" in tools.tool("TransactionsCommand", "list")
    assert "Empty" in tools.tool("TransactionsCommand", "describe", "--transactional-id", "perf")
    producers = tools.tool("TransactionsCommand", "describe-producers", "--topic", "transactional", "--partition", 0)
    assert "None" in producers.splitlines()[-1]  # no transaction is open


def test_acls_are_administered(tools: Tools) -> None:
    rule = ("--allow-principal", "User:bob", "--operation", "Read", "--topic", "secret", "--force")
    tools.tool("AclCommand", "--add", *rule)
    assert "principal=User:bob, host=*, operation=READ, permissionType=ALLOW" in tools.tool("AclCommand", "--list")
    tools.tool("AclCommand", "--remove", *rule)
    assert "User:bob" not in tools.tool("AclCommand", "--list")


def test_a_transactional_copier_copies_all_once(tools: Tools) -> None:
    assert tools.verified("copied-from", 500).returncode == 0
    done = run_java(
        f"{TOOLS}.TransactionalMessageCopier",
        *("--broker-list", tools.address, "--input-topic", "copied-from", "--input-partition", 0),
        *("--output-topic", "copied-to", "--max-messages", 500, "--consumer-group", "copiers"),
        *("--transaction-size", 50, "--transactional-id", "copier", "--enable-random-aborts"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with Consumer(tools.broker.address, topics=["copied-to"], isolation="read_committed") as consumer:
        assert sorted(int(each.value or b"") for each in consumer.records(until="latest")) == list(range(500))


def test_the_latency_from_end_to_end(tools: Tools) -> None:
    tools.tool("TopicCommand", "--create", "--topic", "latency")
    done = run_java(f"{TOOLS}.EndToEndLatency", tools.address, "latency", 200, "all", 100)
    assert "Percentiles" in done.stdout, done.stdout + done.stderr


def test_the_perf_consumer_reads_all(tools: Tools) -> None:
    assert tools.verified("perf-read", 500).returncode == 0
    read = tools.tool("ConsumerPerformance", "--topic", "perf-read", "--messages", 500, "--timeout", 20_000)
    assert read.splitlines()[-1].split(", ")[4] == "500"
