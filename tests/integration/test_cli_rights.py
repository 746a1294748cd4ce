"""`warmlog acl`: the first right without a broker, then rights of a running one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_process import BrokerProcess
from integration.command_line import CommandLine

OFFLINE = CommandLine("127.0.0.1:1")


def ok(commands: CommandLine, *arguments: object, **more: Any) -> str:
    done = commands(*arguments, **more)
    assert done.returncode == 0, done.stderr
    return str(done.stdout.decode())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    for name in ("root", "bob"):
        ok(OFFLINE, "user", "add", name, "--data-dir", directory, given=b"geheim\n")
    ok(OFFLINE, "acl", "add", "root", "all", "--cluster", "--topic", "*", "--group", "*", "--data-dir", directory)
    return directory


@pytest.fixture
def broker(data: Path) -> Iterator[BrokerProcess]:
    listeners = "main=sasl_plaintext://127.0.0.1:0"
    with BrokerProcess(data, listeners=listeners, authorization="acl") as running:
        yield running


def user(broker: BrokerProcess, name: str) -> CommandLine:
    return CommandLine(broker.address, WARMLOG_USERNAME=name, WARMLOG_PASSWORD="geheim")


def test_the_first_right_is_given_without_a_broker(data: Path) -> None:
    listed = ok(OFFLINE, "acl", "list", "--data-dir", data)
    assert listed.splitlines() == [
        "resource\tname\tprincipal\trule\toperation",
        "topic\t*\tUser:root\tallow\tall",
        "group\t*\tUser:root\tallow\tall",
        "cluster\tkafka-cluster\tUser:root\tallow\tall",
    ]
    clusters = json.loads(ok(OFFLINE, "acl", "list", "--cluster", "--data-dir", data, "--json"))
    assert [each["operation"] for each in clusters] == ["all"]


def test_rights_of_a_running_broker_are_not_changed_in_its_directory(broker: BrokerProcess, data: Path) -> None:
    added = OFFLINE("acl", "add", "bob", "all", "--topic", "*", "--data-dir", data)
    assert added.returncode == 1
    assert len(json.loads(ok(OFFLINE, "acl", "list", "--data-dir", data, "--json"))) == 3


def test_a_user_is_given_rights_and_loses_them(broker: BrokerProcess) -> None:
    root, bob = user(broker, "root"), user(broker, "bob")
    ok(root, "topic", "create", "orders.eu")
    refused = bob("produce", "orders.eu", given=b"one\n")
    assert refused.returncode == 1
    assert b"User:bob lacks the right" in refused.stderr
    assert b"Traceback" not in refused.stderr
    ok(root, "acl", "add", "bob", "read", "write", "--topic", "orders.", "--prefix")
    ok(bob, "produce", "orders.eu", given=b"one\n")
    assert ok(bob, "topic", "list", "--json").count("orders.eu") == 1
    ok(root, "acl", "add", "*", "write", "--topic", "orders.eu", "--deny")
    assert bob("produce", "orders.eu", given=b"one\n").returncode == 1
    deleted = ok(root, "acl", "delete", "--deny", "--yes", "--json")
    assert [each["principal"] for each in json.loads(deleted)] == ["User:*"]
    ok(bob, "produce", "orders.eu", given=b"one\n")
    ok(root, "acl", "delete", "--principal", "bob", "--yes")
    assert bob("produce", "orders.eu", given=b"one\n").returncode == 1
    own = bob("acl", "list")
    assert (own.returncode, b"DESCRIBE on the cluster" in own.stderr) == (1, True)


def test_who_may_only_change_topics_is_told_that_they_are_changed(broker: BrokerProcess) -> None:
    root, bob = user(broker, "root"), user(broker, "bob")
    ok(root, "topic", "create", "settled")
    ok(root, "acl", "add", "bob", "create", "--topic", "new.", "--prefix")
    ok(root, "acl", "add", "bob", "alter_configs", "--topic", "settled")
    changes = [bob("topic", "create", "new.a", "new.b"), bob("topic", "alter", "settled", "--set", "retention.ms=1d")]
    assert ok(bob, "topic", "create", "new.a", "--if-not-exists", "--json") == '{"name":"new.a"}\n'
    ok(root, "acl", "add", "bob", "alter", "--topic", "settled")
    changes.append(bob("topic", "add-partitions", "settled", "--total", 3))
    ok(root, "acl", "add", "bob", "delete", "--topic", "settled")
    changes.append(bob("topic", "delete", "settled", "--yes"))
    assert [(change.returncode, change.stderr) for change in changes] == [
        (0, b"warmlog: created topic new.a\nwarmlog: created topic new.b\n"),
        (0, b"warmlog: altered topic settled: retention.ms\n"),
        (0, b"warmlog: topic settled has 3 partitions now\n"),
        (0, b"warmlog: deleted topic settled\n"),
    ]


def test_a_check_says_why_and_ends_with_it(broker: BrokerProcess) -> None:
    root = user(broker, "root")
    ok(root, "acl", "add", "User:bob", "read", "--topic", "orders")
    allowed = ok(root, "acl", "check", "bob", "describe", "--topic", "orders")
    assert allowed.splitlines() == ["allowed: a rule allows it", "  allow User:bob read on topic orders"]
    refused = root("acl", "check", "bob", "write", "--topic", "orders", "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stdout) == {"is_allowed": False, "reason": "no rule allows it", "acls": []}
    matching = ok(root, "acl", "list", "--topic", "orders", "--matching", "--json")
    assert len(json.loads(matching)) == 2
    assert len(json.loads(ok(root, "acl", "list", "--topic", "orders", "--json"))) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("add", "bob", "raed", "--topic", "t"), b"raed"),
        (("add", "bob", "read"), b"--topic"),
        (("add", "bob"), b"OPERATION"),
        (("delete",), b"which rules"),
        (("check", "bob", "read", "--topic", "a", "--group", "b"), b"once"),
        (("list", "--topic", "a", "--topic", "b"), b"once"),
    ],
)
def test_a_wrong_command_is_a_usage_error(arguments: tuple[str, ...], told: bytes) -> None:
    done = OFFLINE("acl", *arguments)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_rule_that_cannot_be_one_is_refused_and_nothing_is_added(data: Path) -> None:
    done = OFFLINE("acl", "add", "bob", "read", "write", "--group", "g", "--data-dir", data)
    assert done.returncode == 1
    assert b"WRITE on a GROUP" in done.stderr
    assert "bob" not in ok(OFFLINE, "acl", "list", "--data-dir", data)


def test_without_the_right_to_read_a_topic_the_age_of_a_lag_is_unknown(broker: BrokerProcess) -> None:
    root, bob = user(broker, "root"), user(broker, "bob")
    ok(root, "topic", "create", "t", "--partitions", "2")
    ok(root, "produce", "t", "--partition", "0", given=b"x\n" * 7)
    ok(root, "group", "reset", "g", "--topic", "t", "--to", "earliest", "--execute")
    for kind, name in (("--group", "g"), ("--topic", "t")):
        ok(root, "acl", "add", "bob", "describe", kind, name)
    seen = json.loads(ok(bob, "group", "describe", "g", "--json"))
    assert (seen["lag_records"], seen["lag_seconds"]) == (7, None)
    assert [each["lag_seconds"] for each in seen["partitions"]] == [None, 0.0]
    for operation in ("describe", "describe_configs"):
        ok(root, "acl", "add", "bob", operation, "--cluster", "--topic", "t")
    (group,) = json.loads(ok(bob, "status", "--interval", "0s", "--json"))["groups"]
    assert (group["lag_records"], group["lag_seconds"]) == (7, None)
    ok(root, "acl", "add", "bob", "read", "--topic", "t")
    assert json.loads(ok(bob, "group", "describe", "g", "--json"))["lag_seconds"] > 0


def test_a_star_at_the_end_of_a_name_is_told_to_be_no_prefix(broker: BrokerProcess) -> None:
    root = user(broker, "root")
    said = root("acl", "add", "bob", "read", "--group", "bill*", "--group", "*")
    assert said.returncode == 0
    assert said.stderr.decode().count("--prefix") == 1
    assert "bill* is one name: for all that begin so give bill and --prefix" in said.stderr.decode()
    assert "--prefix" not in root("acl", "add", "bob", "read", "--group", "bill", "--prefix").stderr.decode()
