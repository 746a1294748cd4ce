"""`warmlog config`: files checked, settings shown."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from integration.command_line import CommandLine

OFFLINE = CommandLine("127.0.0.1:1")


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
