"""`warmlog config`: files checked, settings shown; `warmlog quota`, without a broker and of a running one."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from integration.command_line import CommandLine
from integration.test_cli_rights import OFFLINE, ok


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", flush_threads=2) as running:
        yield running


def test_a_file_is_checked_without_a_broker(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('flush.threads = 0\nlisen = "x"\n')
    done = OFFLINE("config", "check", file)
    assert done.returncode == 1
    first, second = done.stdout.decode().splitlines()
    assert first.startswith(f"{file}: flush.threads: '0' is not allowed, it must be a whole number from 1 to 256")
    assert second.startswith(f"{file}: ")
    assert second.endswith("did you mean listen?")
    assert b"2 mistakes" in done.stderr
    documents = json.loads(OFFLINE("config", "check", file, "--json").stdout)
    assert [each["name"] for each in documents] == ["flush.threads", "lisen"]
    file.write_text("flush.threads = 1\n")
    assert OFFLINE("config", "check", file).returncode == 0
    missing = OFFLINE("config", "check", tmp_path / "missing.toml")
    assert missing.returncode == 1
    assert b"cannot read the configuration" in missing.stderr


def test_effective_values_are_shown_with_where_they_come_from(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("flush.threads = 3\nretention.ms = '7d'\nnum.partitions = 2\n")
    commands = CommandLine("127.0.0.1:1", WARMLOG_COLD_READ_THREADS="5")
    done = commands("config", "show", "--config", file, "--set", "num.partitions=6", "--json")
    rows = json.loads(done.stdout)
    assert rows["flush.threads"] == {"value": "3", "origin": "file", "place": f"{file}", "is_dynamic": False}
    assert rows["retention.ms"]["value"] == "604800000"
    assert rows["cold.read.threads"]["place"] == "WARMLOG_COLD_READ_THREADS"
    assert (rows["num.partitions"]["value"], rows["num.partitions"]["origin"]) == ("6", "flag")
    assert rows["node.id"]["origin"] == "default"
    text = commands("config", "show", "--config", file, "--changed").stdout.decode()
    assert f"flush.threads\t3\tfile: {file}\t" in text.splitlines()
    assert "node.id" not in text


def test_settings_with_which_a_broker_would_not_start_are_told(tmp_path: Path) -> None:
    done = OFFLINE("config", "show", "--set", "flush.threads=0", "--set", "nod.id=1")
    assert done.returncode == 1
    assert b"flag: flush.threads: '0' is not allowed" in done.stderr
    assert b"did you mean node.id?" in done.stderr


def test_settings_of_a_running_broker_are_shown(broker: BrokerProcess) -> None:
    rows = json.loads(CommandLine(broker.address)("config", "show", "--json").stdout)
    assert (rows["flush.threads"]["value"], rows["flush.threads"]["origin"]) == ("2", "flag")
    assert rows["node.id"]["origin"] == "default"
    one = CommandLine(broker.address)("config", "show", "node.id").stdout.decode().splitlines()
    assert one == ["setting\tvalue\tfrom\talterable", "node.id\t1\tdefault\t"]
    wrong = CommandLine(broker.address)("config", "show", "nod.id")
    assert wrong.returncode == 1
    assert b"did you mean node.id?" in wrong.stderr


BULK = {"user": "alice", "client_id": "bulk", "limits": {"consumer_byte_rate": 2000}}


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
def test_a_wrong_quota_is_told_what_is_right(broker: BrokerProcess, arguments: list[str], code: int, told: str) -> None:
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
