"""A disk without space: appends are refused, and everything else goes on."""

import errno
from pathlib import Path

import pytest

from unit.broker.data_directories import open_directory
from unit.broker.storage.log_room import LogRoom, read_values
from warmlog_broker.storage.directory.leader_epochs import read_epochs
from warmlog_broker.storage.io.os_errors import is_resource_exhaustion

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def room(quick_path: Path) -> LogRoom:
    room = LogRoom(quick_path)
    room.fill(20)
    return room


def refuse(*_: object, **__: object) -> None:
    raise FULL


def test_a_shortage_is_told_from_a_failure() -> None:
    assert is_resource_exhaustion(FULL)
    assert is_resource_exhaustion(OSError(errno.EMFILE, "Too many open files"))
    assert not is_resource_exhaustion(OSError(errno.EIO, "Input/output error"))
    assert not is_resource_exhaustion(OSError(errno.EROFS, "Read-only file system"))


def test_retention_unlinks_at_once_what_cannot_be_renamed(room: LogRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    room.log.bounds.raise_log_start(15)
    with monkeypatch.context() as full:
        full.setattr(Path, "replace", refuse)
        full.setattr(Path, "rename", refuse)
        removed = room.log.retention.delete_old_segments(room.now_ms)
    assert removed > 2
    assert room.files(".deleted") == []
    assert len(room.files(".log")) == len(room.log.local.segments)
    assert room.log.local.failure == ""
    assert read_values(room.log) == [b"v"] * 5
    assert read_values(room.restart()) == [b"v"] * 5


def test_leader_epochs_that_could_not_be_written_are_written_by_the_next_flush(
    room: LogRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.leader_epoch = 3
    room.append()
    with monkeypatch.context() as full:
        full.setattr("warmlog_broker.storage.log.flush_plan.replace_file", refuse)
        assert room.flush() == 21
    assert read_epochs(room.path("leader-epoch-checkpoint")) == [(0, 0)]
    assert room.flush() == 21
    assert read_epochs(room.path("leader-epoch-checkpoint")) == [(0, 0), (3, 20)]
    assert room.log.flusher.prepare() is None


def test_a_log_is_recovered_and_served_without_a_snapshot_and_without_keeping_what_is_cut(
    room: LogRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.leader_epoch = 1
    room.append(b"w")
    path = room.segment_path(int(room.files(".log")[-1][:20]))
    path.write_bytes(path.read_bytes() + b"torn")
    with monkeypatch.context() as full:
        full.setattr("warmlog_broker.storage.producer.snapshots.write_file", refuse)
        full.setattr("warmlog_broker.storage.recovery.recovery.keep_bytes", refuse)
        room.crash()
    report = room.log.recovery_report
    assert (report.cut_bytes, report.kept_aside) == (len(b"torn"), [])
    assert room.log.epochs.entries == ((0, 0), (1, 20))
    assert read_values(room.log) == [*[b"v"] * 20, b"w"]
    assert room.append(b"x").first_offset == 21


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = open_directory(tmp_path)
    directory.write_checkpoints({})
    before = sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir())
    with monkeypatch.context() as full:
        full.setattr("os.pwrite", refuse)
        with pytest.raises(OSError, match="No space left"):
            directory.write_checkpoints({})
    assert sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir()) == before
    with monkeypatch.context() as full:
        full.setattr("os.pwrite", refuse)
        directory.close()
        open_directory(tmp_path).close()
