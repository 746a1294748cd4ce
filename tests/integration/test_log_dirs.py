"""DescribeLogDirs, and `warmlog log dirs`."""

import json
import shutil
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from integration.command_line import CommandLine, error_line, succeeded
from waiting import wait_until
from wire_client import WireClient, batch_of

GRAMMAR = {"partition", "size", "offsetLag", "isFuture"}


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    return [tmp_path / "one", tmp_path / "two"]


def fill(broker: BrokerProcess) -> None:
    with WireClient(broker.address) as client:
        client.create_topic("t", partitions=3)
        client.create_topic("u")
        for partition in range(3):
            client.produce("t", batch_of([b"x" * 1000]), partition=partition)


def log_dirs(broker: BrokerProcess, *topics: str) -> list[dict[str, object]]:
    """What Kafka's tool would print, without what is around the directories."""
    done = CommandLine(broker.address)("log", "dirs", *topics, "--json")
    document = json.loads(succeeded(done))
    assert document["version"] == 1
    (described,) = document["brokers"]
    assert described["broker"] == 1
    return described["logDirs"]


def test_every_directory_is_listed_with_sizes_in_kafkas_json(disks: list[Path]) -> None:
    with BrokerProcess(*disks) as broker:
        fill(broker)
        found = log_dirs(broker)
        assert [(each["logDir"], each["error"]) for each in found] == [(str(path), None) for path in disks]
        listed = {}
        for directory in found:
            for each in directory["partitions"]:
                assert each.keys() == GRAMMAR
                listed[each["partition"]] = each["size"]
                assert (Path(directory["logDir"]) / each["partition"]).is_dir()
                assert (each["offsetLag"], each["isFuture"]) == (0, False)
        assert listed.keys() == {"t-0", "t-1", "t-2", "u-0"}
        assert listed["u-0"] == 0
        assert all(listed[f"t-{number}"] > 1000 for number in range(3))
        assert [each["partition"] for one in log_dirs(broker, "u") for each in one["partitions"]] == ["u-0"]


def test_a_topic_that_is_not_there_is_named(disks: list[Path]) -> None:
    with BrokerProcess(*disks) as broker:
        fill(broker)
        command = CommandLine(broker.address)
        for arguments in (("nope",), ("t", "nope", "--json")):
            done = command("log", "dirs", *arguments)
            assert "nope" in error_line(done)
            assert done.stdout == b""


def test_a_table_says_how_much_room_there_is(disks: list[Path]) -> None:
    with BrokerProcess(*disks) as broker:
        fill(broker)
        lines = succeeded(CommandLine(broker.address)("log", "dirs")).decode().splitlines()
        assert lines[0].split("\t")[:4] == ["directory", "error", "total bytes", "usable bytes"]
        assert len(lines) == 5
        usage = shutil.disk_usage(disks[0])
        row = next(line for line in lines if line.startswith(str(disks[0]))).split("\t")
        assert int(row[2]) == usage.total
        assert 0 < int(row[3]) <= usage.total


def test_a_directory_that_has_failed_or_is_away_is_listed_with_its_error(disks: list[Path]) -> None:
    with BrokerProcess(*disks) as broker:
        fill(broker)
        lost = sorted(path.name for path in disks[1].glob("?-[0-9]"))
        disks[1].rename(disks[1].with_name("elsewhere"))
        wait_until(lambda: log_dirs(broker)[1]["error"] is not None)
        failed = log_dirs(broker)[1]
        assert [(each["partition"], each["offsetLag"]) for each in failed["partitions"]] == [
            (name, -1) for name in lost
        ]
        broker.terminate()
        broker.start()
        away = log_dirs(broker)[1]
        assert "is its disk mounted" in str(away["error"])
        assert [each["partition"] for each in away["partitions"]] == lost
