"""`warmlog quota`: without a broker, and of a running one."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from integration.command_line import CommandLine
from integration.test_cli_rights import OFFLINE, ok

BULK = {"user": "alice", "client_id": "bulk", "limits": {"consumer_byte_rate": 2000}}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


def test_quotas_are_set_listed_and_deleted(broker: BrokerProcess) -> None:
    warmlog = CommandLine(broker.address)
    done = warmlog("quota", "set", "--user", "User:alice", "producer_byte_rate=1MiB", "request_rate=100")
    assert (done.returncode, done.stderr) == (0, b"warmlog: user alice: producer_byte_rate=1048576, request_rate=100\n")
    ok(warmlog, "quota", "set", "--client-id", "*", "consumer_byte_rate=5kB")
    bulk = ok(warmlog, "quota", "set", "--user", "alice", "--client-id", "bulk", "consumer_byte_rate=2000", "--json")
    assert json.loads(bulk) == BULK
    assert ok(warmlog, "quota", "list").splitlines() == [
        "user\tclient id\tlimits",
        "\t*\tconsumer_byte_rate=5000",
        "alice\t\tproducer_byte_rate=1048576, request_rate=100",
        "alice\tbulk\tconsumer_byte_rate=2000",
    ]
    assert json.loads(ok(warmlog, "quota", "list", "--client-id", "bulk", "--json")) == [BULK]
    ok(warmlog, "quota", "delete", "--user", "alice", "request_rate")
    left = json.loads(ok(warmlog, "quota", "list", "--user", "alice", "--json"))
    assert [quota["limits"] for quota in left] == [{"producer_byte_rate": 1048576}, BULK["limits"]]
    done = warmlog("quota", "delete", "--user", "alice")
    assert (done.returncode, done.stderr) == (0, b"warmlog: user alice: no quota\n")
    assert json.loads(ok(warmlog, "quota", "list", "--user", "alice", "--json")) == [BULK]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["request_rate=1"], 2, "--user, --client-id or both"),
        (["--user", "a", "request_rate"], 2, "'request_rate' is not NAME=VALUE"),
        (["--user", "a", "request_rate=0"], 2, "'0' is not allowed"),
        (["--user", "a", "producer_byte_rate=1XB"], 2, "or a size such as"),
        (["--user", "a", "requests=1"], 1, "there is no limit 'requests'"),
        (["--user", "a", "--client-id", "b", "connections=1"], 1, "leave out the client id"),
    ],
)
def test_a_wrong_quota_is_refused_with_what_was_expected(
    broker: BrokerProcess, arguments: list[str], code: int, told: str
) -> None:
    done = CommandLine(broker.address)("quota", "set", *arguments)
    assert done.returncode == code
    assert told in " ".join(done.stderr.decode().replace("│", " ").split())
    assert b"Traceback" not in done.stderr


def test_quotas_are_changed_in_the_directory_of_a_broker_that_does_not_run(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ok(OFFLINE, "quota", "set", "--user", "*", "connections=3", "request_rate=1000", "--data-dir", data)
    ok(OFFLINE, "quota", "delete", "--user", "*", "request_rate", "--data-dir", data)
    with BrokerProcess(data) as broker:
        listed = json.loads(ok(CommandLine(broker.address), "quota", "list", "--json"))
        assert listed == [{"user": "*", "client_id": None, "limits": {"connections": 3}}]
        assert OFFLINE("quota", "set", "--user", "*", "connections=9", "--data-dir", data).returncode == 1
    ok(OFFLINE, "quota", "delete", "--user", "*", "--data-dir", data)
    assert json.loads(ok(OFFLINE, "quota", "list", "--data-dir", data, "--json")) == []
