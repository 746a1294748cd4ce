"""Retention and unlinking as duties: what becomes of the files, and what a partition that fails does to the others."""

import errno
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from truncating import truncate_fully, truncate_to
from unit.broker.conftest import NOW_MS, flush
from unit.broker.topics.test_topics import Room
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.deletion import DirectoryRemover
from warmlog_broker.maintenance.housekeeping import Housekeeping
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.partition_state import Role
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_protocol.errors import StorageError
from warmlog_protocol.messages import ACKS_LEADER
from wire_client import batch_of


class Kept(Room):
    """Topics on a real data directory, and their housekeeping."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.housekeeping = Housekeeping(
            config=BrokerConfig(),
            topics=self.topics,
            directories=self.directories,
            remover=DirectoryRemover(self.threads),
            threads=self.threads,
            now_ms=lambda: NOW_MS,
        )

    async def filled(self, partitions: int = 1, **settings: str) -> list[Partition]:
        """Return the partitions of a new topic, each of which has ten segments of a record."""
        await self.create("t", partitions, segment_bytes="1024", **settings)
        for partition in self.topics.partitions:
            for number in range(10):
                batch = batch_of([b"%d" % number * 700], timestamp_ms=NOW_MS)
                partition.append(batch, ACKS_LEADER, None, now_ms=NOW_MS)
            flush(partition)
            assert len(files(partition, ".log")) == 10
        return self.topics.partitions

    async def unlink(self, partition: Partition, *, is_due: bool) -> list[str]:
        """Have files unlinked whose delay is over, that of `partition` if it `is_due`; return those that it has."""
        delay_ms = 0 if is_due else 60_000
        partition.log.update_config(replace(partition.log.local.config, file_delete_delay_ms=delay_ms))
        await self.housekeeping.unlink_due()
        return files(partition, ".deleted")


def files(partition: Partition, ending: str) -> list[str]:
    return sorted(path.name for path in partition.log.local.directory.iterdir() if path.name.endswith(ending))


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Kept]:
    room = Kept(tmp_path / "data")
    yield room
    await room.close()


async def test_what_retention_removes_is_unlinked_after_its_delay(room: Kept) -> None:
    (partition,) = await room.filled(retention_bytes="2000")
    await room.housekeeping.keep_retention()
    assert (partition.log.log_start_offset, room.housekeeping.deleted_segments) == (7, 7)
    removed = files(partition, ".deleted")
    assert [name for name in removed if ".log" in name] == [f"{number:020d}.log.deleted" for number in range(7)]
    assert await room.unlink(partition, is_due=False) == removed
    assert await room.unlink(partition, is_due=True) == []
    await room.housekeeping.unlink_due()
    assert not room.topics.unlinking


async def test_a_follower_removes_what_its_leader_has_removed_and_nothing_else(room: Kept) -> None:
    (partition,) = await room.filled(retention_bytes="2000")
    follow(partition)
    await room.housekeeping.keep_retention()
    assert len(files(partition, ".log")) == 10
    partition.log.bounds.raise_log_start(4)
    await room.housekeeping.keep_retention()
    assert len(files(partition, ".log")) == 6


@pytest.mark.parametrize("cut", [truncate_to, truncate_fully])
async def test_what_a_truncation_takes_out_is_unlinked_without_retention(room: Kept, cut: Callable[..., Any]) -> None:
    (partition,) = await room.filled(retention_ms="-1")
    follow(partition)
    cut(partition.log, 3, NOW_MS)
    assert len(files(partition, ".log.deleted")) >= 6
    assert await room.unlink(partition, is_due=True) == []


async def test_what_a_copy_in_another_directory_takes_out_is_unlinked_too(room: Kept, tmp_path: Path) -> None:
    (partition,) = await room.filled()
    copied = shutil.copytree(partition.log.local.directory, tmp_path / "copy")
    partition.begin_move()
    partition.switch_to(Log.take_over(partition.log, copied, NOW_MS))
    partition.complete_switch()
    truncate_to(partition.log, 3, NOW_MS)
    assert len(files(partition, ".log.deleted")) == 6
    assert await room.unlink(partition, is_due=True) == []


async def test_files_that_wait_are_not_forgotten_while_the_partition_has_no_role(room: Kept) -> None:
    (partition,) = await room.filled(retention_bytes="2000")
    await room.housekeeping.keep_retention()
    partition.resign(1)
    assert len(await room.unlink(partition, is_due=False)) >= 7
    follow(partition)
    assert await room.unlink(partition, is_due=True) == []


async def test_a_log_that_has_failed_is_left_as_it_is(room: Kept) -> None:
    (partition,) = await room.filled(retention_bytes="2000")
    await room.housekeeping.keep_retention()
    directory, removed = partition.log.local.directory, files(partition, ".deleted")
    partition.take_offline("for a test")
    await room.housekeeping.unlink_due()
    assert sorted(path.name for path in directory.glob("*.deleted")) == removed
    assert not room.topics.unlinking


@pytest.mark.parametrize(
    ("error", "logged", "probes"),
    [
        (OSError(errno.EIO, "Input/output error"), "t-0: retention failed: [Errno 5] Input/output error", 1),
        (OSError(errno.EMFILE, "Too many open files"), "t-0: retention failed: [Errno 24] Too many open files", 1),
        (StorageError("an index is being rebuilt"), "t-0: retention failed: an index is being rebuilt", 1),
        (RuntimeError("odd"), "t-0: retention failed: a bug", 0),
    ],
)
async def test_a_partition_that_fails_keeps_its_segments_and_the_others_lose_theirs(
    room: Kept,
    error: Exception,
    logged: str,
    probes: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken, sound = await room.filled(2, retention_bytes="2000")

    def fail(segment: LogSegment) -> int:
        if segment.directory == broken.log.local.directory:
            raise error
        return NOW_MS

    (directory,) = room.directories
    probed: list[bool] = []
    monkeypatch.setattr(LogSegment, "largest_timestamp_ms", property(fail))
    monkeypatch.setattr(directory.data, "probe", lambda: probed.append(True))
    await room.housekeeping.keep_retention()
    await directory.wait_for_probe()
    assert (len(files(broken, ".log")), len(files(sound, ".log"))) == (10, 3)
    assert [each.getMessage() for each in caplog.records] == [logged]
    assert (len(probed), broken.role) == (probes, Role.LEADING)


async def test_when_the_probe_finds_the_directory_broken_its_partitions_are_offline(
    room: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, other = await room.filled(2, retention_bytes="2000")

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    (directory,) = room.directories
    monkeypatch.setattr(LogSegment, "largest_timestamp_ms", property(fail))
    monkeypatch.setattr(directory.data, "probe", fail)
    await room.housekeeping.keep_retention()
    await directory.wait_for_probe()
    assert [directory.is_live, broken.allows.read, other.allows.read] == [False] * 3


def follow(partition: Partition) -> None:
    partition.become_follower(partition.leader_epoch + 1, lambda *_: 0)
