"""Kafka's Java consumers, of both protocols of groups, and Kafka's tool for groups against the listener."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from clients import fetched
from clients.served import Served
from kafka_jars import JARS, run_java
from waiting import wait_until
from warmlog.blocking import Admin, Producer

CLIENT = "Kafka's tools 4.1.0"
SETTINGS = {"group_heartbeat_interval_ms": "500"}
TOOLS = "org.apache.kafka.tools"
GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
PROTOCOLS = ["classic", "consumer"]
PARTITIONS, RECORDS = 4, 20


@pytest.fixture(scope="module")
def address(served: Served) -> str:
    """Where the listener is of a broker with a topic of PARTITIONS * RECORDS records."""
    fetched.jars()
    with Admin(served.broker.address) as admin:
        admin.create_topic("read", partitions=PARTITIONS)
    with Producer(served.broker.address) as producer:
        for number in range(PARTITIONS * RECORDS):
            producer.send("read", b"%d" % number, partition=number % PARTITIONS)
        producer.flush()
    return served.address


def groups(address: str, *options: object) -> str:
    done = run_java(GROUPS, "--bootstrap-server", address, *options)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "Error" not in done.stdout, done.stdout
    return done.stdout


def lines_of(output: str, group: str) -> list[list[str]]:
    """The lines about a group in a table."""
    return [line.split() for line in output.splitlines() if line.startswith(f"{group} ")]


@contextmanager
def consumer(address: str, group: str, protocol: str, *options: object) -> Iterator["subprocess.Popen[str]"]:
    """A VerifiableConsumer, which says what it does line by line; SIGTERM lets it leave."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", f"{JARS}/*", f"{TOOLS}.VerifiableConsumer"]
    own = ("--bootstrap-server", address, "--topic", "read", "--group-id", group, "--group-protocol", protocol)
    session = () if protocol == "consumer" else ("--session-timeout", 6000)
    said = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([*command, *map(str, (*own, *session, *options))], **said) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.terminate()


def said_by(process: "subprocess.Popen[str]", name: str) -> dict[str, object]:
    """The next thing of this name that it says."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{") and (said := json.loads(line))["name"] == name and said.get("partitions", True):
            return dict(said)
    raise AssertionError(f"the consumer ended without {name}")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_of_the_console_consumer_reads_each_record_once(address: str, protocol: str) -> None:
    def read() -> list[str]:
        done = run_java(
            f"{TOOLS}.consumer.ConsoleConsumer",
            *("--bootstrap-server", address, "--topic", "read", "--group", f"console-{protocol}"),
            *("--consumer-property", f"group.protocol={protocol}", "--from-beginning", "--timeout-ms", 5000),
        )
        return done.stdout.splitlines()

    assert sorted(map(int, read())) == list(range(PARTITIONS * RECORDS))
    assert read() == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_java_consumers_share_partitions_and_the_tool_shows_them(address: str, protocol: str) -> None:
    group = f"shared-{protocol}"
    with consumer(address, group, protocol) as first:
        assert len(said_by(first, "partitions_assigned")["partitions"]) == PARTITIONS  # type: ignore[arg-type]
        said_by(first, "offsets_committed")
        with consumer(address, group, protocol) as second:
            assert len(said_by(second, "partitions_assigned")["partitions"]) == PARTITIONS // 2  # type: ignore[arg-type]
            wait_until(
                lambda: len({row[6] for row in lines_of(groups(address, "--describe", "--group", group), group)}) == 2
            )
            state = groups(address, "--describe", "--group", group, "--state")
            assert "Stable" in state
            assert len(lines_of(groups(address, "--describe", "--group", group, "--members"), group)) == 2
    assert lines_of(groups(address, "--list", "--state"), group) == [[group, "Empty"]]


def test_static_and_cooperative_consumers(address: str) -> None:
    strategy = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    options = ("--assignment-strategy", strategy)
    with consumer(address, "static", "classic", *options, "--group-instance-id", "a") as first:
        said_by(first, "partitions_assigned")
        with consumer(address, "static", "classic", *options, "--group-instance-id", "b") as second:
            assert len(said_by(second, "partitions_assigned")["partitions"]) == PARTITIONS // 2  # type: ignore[arg-type]
            second.kill()
            second.wait()
        with consumer(address, "static", "classic", *options, "--group-instance-id", "b") as again:
            assert len(said_by(again, "partitions_assigned")["partitions"]) == PARTITIONS // 2  # type: ignore[arg-type]


def test_the_tool_resets_deletes_and_exports(address: str) -> None:
    reset = ("--reset-offsets", "--group", "tool", "--topic", "read", "--execute")
    groups(address, *reset, "--to-offset", 7)
    rows = lines_of(groups(address, "--describe", "--group", "tool"), "tool")
    assert [(row[3], row[4], row[5]) for row in rows] == PARTITIONS * [("7", str(RECORDS), str(RECORDS - 7))]
    groups(address, *reset, "--shift-by", -2)
    assert {row[3] for row in lines_of(groups(address, "--describe", "--group", "tool"), "tool")} == {"5"}
    groups(address, "--delete-offsets", "--group", "tool", "--topic", "read:0")
    assert len(lines_of(groups(address, "--describe", "--group", "tool"), "tool")) == PARTITIONS - 1
    groups(address, "--delete", "--group", "tool")
    assert "tool" not in groups(address, "--list").splitlines()
