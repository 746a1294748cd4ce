"""A data directory that fails takes its own partitions offline, and nobody else's."""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from broker_process import BrokerProcess
from broker_thread import BrokerThread
from waiting import wait_until
from warmlog_broker.storage.io import durable_files
from warmlog_broker.storage.segment import file_records
from warmlog_protocol.errors import StorageError
from wire_client import WireClient, batch_of

PARTITIONS = 4


@pytest.fixture
def break_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Lets every write and sync below a directory fail from now on."""
    broken: list[str] = []

    def failing(real: Callable[..., object]) -> Callable[..., object]:
        def call(descriptor: int, *arguments: object) -> object:
            name = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
            if any(name.startswith(directory) for directory in broken):
                raise OSError(errno.EIO, "the disk is broken")
            return real(descriptor, *arguments)

        return call

    for name in ("fdatasync", "fsync", "write", "pwrite"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    monkeypatch.setattr(file_records, "_pwritev", failing(os.pwritev))
    assert durable_files.os is os
    return lambda directory: broken.append(f"{directory}{os.sep}")


@pytest.mark.parametrize("number", [0, 1])
def test_a_broken_disk_takes_all_its_partitions_offline_and_the_other_goes_on(
    tmp_path: Path, break_disk: Callable[[Path], None], number: int, caplog: pytest.LogCaptureFixture
) -> None:
    disks = [tmp_path / "one", tmp_path / "two"]
    bad, good = disks[number], disks[1 - number]
    with BrokerThread(*disks) as broker, WireClient(broker.address) as client:
        client.create_topic("t", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            client.produce("t", batch_of([b"good"]), partition=partition)
        lost = sorted(int(path.name[-1]) for path in bad.glob("t-*"))
        kept = sorted(set(range(PARTITIONS)) - set(lost))
        break_disk(bad)
        with pytest.raises(StorageError):
            client.produce("t", batch_of([b"x"]), partition=lost[0])
        wait_until(lambda: client.leaders() == [-1 if each in lost else 1 for each in range(PARTITIONS)])
        assert f"DATA DIRECTORY {bad} IS OFFLINE, and 2 partitions with it" in caplog.text
        for partition in lost:
            with pytest.raises(StorageError, match="offline"):
                client.fetch("t", 0, partition=partition)
        for partition in kept:
            assert client.produce("t", batch_of([b"more"]), partition=partition).base_offset == 1
        if number == 0:
            with pytest.raises(StorageError):
                client.create_topic("u")  # the metadata log was in that one
        else:
            client.create_topic("u", partitions=3)
            assert len(list(good.glob("u-*"))) == 3
    assert not broker.was_clean
    assert not (bad / ".warmlog_cleanshutdown").exists()
    assert (good / ".warmlog_cleanshutdown").exists()


def test_after_a_restart_the_broken_disk_serves_all_that_was_acknowledged(
    tmp_path: Path, break_disk: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = [tmp_path / "one", tmp_path / "two"]
    with BrokerThread(*disks) as broker, WireClient(broker.address) as client:
        client.create_topic("t", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            client.produce("t", batch_of([b"good"]), partition=partition)
        break_disk(disks[1])
        for partition in range(PARTITIONS):
            with suppress(StorageError):
                client.produce("t", batch_of([b"x"]), partition=partition)
    monkeypatch.undo()
    with BrokerThread(*disks) as broker, WireClient(broker.address) as client:
        for partition in range(PARTITIONS):
            assert client.fetch("t", 0, partition=partition)[0].high_watermark in (1, 2)
            client.produce("t", batch_of([b"x"]), partition=partition)


def test_a_checkpoint_that_cannot_be_written_has_the_directory_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = durable_files.write_file
    bad = tmp_path / "two"

    def failing(path: Path, content: bytes, **options: Any) -> None:
        if path.parent == bad:
            raise OSError(errno.EIO, "the disk is broken", str(path))
        real(path, content, **options)

    with (
        BrokerThread(tmp_path / "one", bad, log_flush_offset_checkpoint_interval_ms=50) as broker,
        WireClient(broker.address) as client,
    ):
        client.create_topic("t", partitions=2)
        monkeypatch.setattr(durable_files, "write_file", failing)
        monkeypatch.setattr("warmlog_broker.storage.directory.data_dir.write_file", failing)
        for partition in range(2):
            with suppress(StorageError):
                client.produce("t", batch_of([b"good"]), partition=partition)
        wait_until(lambda: client.leaders().count(-1) == 1)


def test_a_directory_that_vanishes_is_noticed_though_nobody_writes_and_gets_no_marker(tmp_path: Path) -> None:
    """LM-02."""
    disks = [tmp_path / "one", tmp_path / "two"]
    with BrokerProcess(*disks) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t", partitions=PARTITIONS)
            for partition in range(PARTITIONS):
                client.produce("t", batch_of([b"good"]), partition=partition)
            shutil.rmtree(disks[1])
            wait_until(lambda: client.leaders().count(-1) == PARTITIONS // 2)
        assert broker.terminate() == 1
    assert not disks[1].exists()
    assert (disks[0] / ".warmlog_cleanshutdown").exists()


def test_a_disk_that_is_exchanged_under_the_broker_is_not_written_to(tmp_path: Path) -> None:
    disks = [tmp_path / "one", tmp_path / "two"]
    with BrokerProcess(*disks) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t", partitions=2)
            disks[1].rename(tmp_path / "elsewhere")
            disks[1].mkdir()
            (disks[1] / ".lock").touch()
            wait_until(lambda: client.leaders().count(-1) == 1)
        assert "the disk was replaced" in broker.output
        assert broker.terminate() == 1
    assert [path.name for path in disks[1].iterdir()] == [".lock"]


def test_when_all_directories_have_failed_the_broker_says_so_and_ends(tmp_path: Path) -> None:
    disks = [tmp_path / "one", tmp_path / "two"]
    with BrokerProcess(*disks) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t", partitions=2)
        for path in disks:
            shutil.rmtree(path)
        assert broker.wait() == 1
        assert "every data directory has failed" in broker.output
