"""A data directory on a file system that becomes, or is, read-only; and one that belongs to somebody else."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from broker_process import PROGRAM, BrokerFailed, BrokerProcess
from forked import Forked
from other_user import NOBODY, directory_open_to_all
from waiting import wait_until
from warmlog_protocol.errors import StorageError
from warmlog_protocol.messages import ACKS_LEADER, DescribeLogDirsRequest, DescribeLogDirsResponse
from wire_client import WireClient, batch_of

RECORD = batch_of([b"x" * 300], timestamp_ms=time.time_ns() // 1_000_000)


def run(*command: object) -> bool:
    return subprocess.run([str(each) for each in command], capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 file system of its own, which can be made read-only as the kernel does it after an error."""
    image, mounted = tmp_path / "image", tmp_path / "disk"
    mounted.mkdir()
    with open(image, "wb") as file:
        file.truncate(64 * 1024 * 1024)
    if not (run("mkfs.ext4", "-q", "-F", image) and run("mount", "-o", "loop,errors=remount-ro", image, mounted)):
        pytest.skip("an ext4 image can be mounted by root only, and where the system allows it")
    yield mounted
    run("umount", "-l", mounted)


def turn_read_only(disk: Path) -> None:
    assert run("mount", "-o", "remount,abort", disk)


def topic_of_two(client: WireClient, disks: list[Path]) -> tuple[int, int]:
    """Makes `t` with a partition on each disk; which one lies on the second, and which on the first."""
    client.create_topic("t", partitions=2)
    on_second = 0 if (disks[1] / "t-0").exists() else 1
    for partition in range(2):
        for _ in range(10):
            client.produce("t", RECORD, partition=partition)
    return on_second, 1 - on_second


def test_a_directory_that_becomes_read_only_is_read_on_and_the_others_are_served(tmp_path: Path, disk: Path) -> None:
    disks = [tmp_path / "one", disk / "two"]
    settings = {"segment_bytes": 1024, "disk_reserve_bytes": 0}
    with BrokerProcess(*disks, **settings) as broker:
        with WireClient(broker.address) as client:
            frozen, live = topic_of_two(client, disks)
        broker.restart()  # no file is open: closed segments are opened on the read-only disk
        with WireClient(broker.address) as client:
            client.produce("t", RECORD, partition=frozen)
            turn_read_only(disk)
            for _ in range(3):
                with pytest.raises(StorageError) as caught:
                    client.produce("t", RECORD, partition=frozen)
                assert caught.value.retriable
            assert client.produce("t", RECORD, partition=live).base_offset == 10
            wait_for(broker, "IS READ-ONLY")
            with pytest.raises(StorageError, match="can be read, and takes no records until a restart"):
                client.produce("t", RECORD, partition=frozen, acks=ACKS_LEADER)
            for offset in range(11):
                result, payload = client.fetch("t", offset, partition=frozen)
                assert (result.high_watermark, bool(payload)) == (11, True)
            described = client.call(DescribeLogDirsRequest(None))
            assert isinstance(described, DescribeLogDirsResponse)
            (entry,) = [each for each in described.directories if each.path == str(disks[1])]
            assert "read-only" in entry.error_message.lower()
            assert broker.output.count("CRITICAL DATA DIRECTORY") == 1
        assert broker.terminate() == 1
        assert "the next start" in broker.output


def wait_for(broker: BrokerProcess, text: str) -> None:
    wait_until(lambda: text in broker.output)


def test_the_only_directory_becomes_read_only_and_is_read_on_until_the_broker_is_stopped(disk: Path) -> None:
    with BrokerProcess(disk / "data", disk_reserve_bytes=0) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
            client.produce("t", RECORD)
            turn_read_only(disk)
            wait_for(broker, "IS READ-ONLY")
            with pytest.raises(StorageError):
                client.produce("t", RECORD)
            with pytest.raises(StorageError):
                client.create_topic("new")
            assert client.fetch("t", 0)[0].high_watermark == 1
        assert broker.terminate() == 1
        with pytest.raises(BrokerFailed) as refused:
            broker.start()
    _, _, last = refused.value.output.splitlines()[-1].partition(" CRITICAL ")
    assert last.startswith("warmlog: data directory")
    assert "Read-only file system" in last
    assert "that the user running the broker" in last


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a broker as another user")
@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_start_on_a_directory_of_another_owner_is_refused_with_what_to_do(mode: int) -> None:
    with directory_open_to_all() as above, TemporaryFile("w+") as stderr, open(os.devnull) as nothing:
        data_dir = above / "data"
        with BrokerProcess(data_dir) as broker, WireClient(broker.address) as client:
            client.create_topic("t")
            broker.terminate()
        before = sorted(path.name for path in data_dir.iterdir())
        data_dir.chmod(mode)
        # Forked: another user may be unable to read the interpreter and this clone.
        streams = (nothing.fileno(), stderr.fileno(), stderr.fileno())
        tried = Forked("warmlog_broker", broker.arguments[len(PROGRAM) :], streams, {**os.environ}, user=NOBODY)
        exit_code = tried.wait(60)
        stderr.seek(0)
        (line,) = stderr.read().splitlines()
        assert exit_code == 1, line
        assert str(data_dir) in line
        assert f"uid {NOBODY}" in line
        data_dir.chmod(0o755)
        assert sorted(path.name for path in data_dir.iterdir()) == before
