"""A log whose disk is full or fails, or that runs out of memory: what is refused, and what a restart finds."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from unit.broker.data_directories import open_directory
from unit.broker.storage.log_files import batch_of
from unit.broker.storage.log_room import LogRoom, make_batch, read_values
from unit.broker.storage.time_lookups import latest_record, record_at
from warmlog_broker.storage.directory.data_dir import LogOffsets
from warmlog_broker.storage.directory.leader_epochs import read_epochs
from warmlog_broker.storage.io.os_errors import is_resource_exhaustion
from warmlog_broker.storage.producer.producer_state import ProducerStates
from warmlog_broker.storage.segment import file_records
from warmlog_broker.storage.segment.file_records import FileRecords
from warmlog_protocol.errors import (
    OutOfResources,
    StorageError,
)

FULL = OSError(errno.ENOSPC, "No space left on device")


class TestFailing:
    def fail_writes(self, monkeypatch: pytest.MonkeyPatch, number: int) -> Callable[[], None]:
        def refuse(*_: object) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(file_records, "_pwritev", refuse)
        return lambda: monkeypatch.setattr(file_records, "_pwritev", os.pwritev)

    def test_a_full_disk_refuses_the_append_and_nothing_else(
        self, room: LogRoom, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        room.append(b"a")
        stop_failing = self.fail_writes(monkeypatch, errno.ENOSPC)
        with pytest.raises(StorageError, match="No space left on device") as refused:
            room.append(b"b", producer=(1, 0, 0))
        assert refused.value.retriable
        assert read_values(room.log) == [b"a"]
        assert room.flush() == 1
        stop_failing()
        assert room.append(b"b", producer=(1, 0, 0)).first_offset == 1
        assert read_values(room.log) == [b"a", b"b"]

    def test_an_append_that_gets_no_descriptor_for_its_look_at_the_segment_is_refused(
        self, room: LogRoom, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        room.append(b"a")
        room.restart()

        def refuse(*_: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        copied = batch_of(["b"], offset=1, timestamps_ms=room.now_ms) + batch_of(["c"], offset=2)
        with monkeypatch.context() as short:
            short.setattr("warmlog_broker.storage.io.open_files.OpenFile", refuse)
            with pytest.raises(OutOfResources, match="Too many open files"):
                room.append(b"b")
            with pytest.raises(OutOfResources, match="Too many open files"):
                room.log.follower.append(copied, now_ms=room.now_ms)
        assert room.log.log_end_offset == 1
        assert room.log.follower.append(copied, now_ms=room.now_ms)[:2] == (1, 2)

    def test_a_disk_that_is_too_full_to_roll_leaves_the_old_segment_active(
        self, room: LogRoom, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        room.append(b"a")
        real = file_records.FileRecords._create

        def refuse(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(file_records.FileRecords, "_create", refuse)
        with pytest.raises(StorageError, match="roll failed"):
            room.log.local.roll(room.now_ms)
        monkeypatch.setattr(file_records.FileRecords, "_create", real)
        room.append(b"b")
        assert len(room.log.local.segments) == 1
        room.log.local.roll(room.now_ms)
        room.append(b"c")
        room.flush()
        assert read_values(room.log) == [b"a", b"b", b"c"]
        assert read_values(room.restart()) == [b"a", b"b", b"c"]

    def test_a_failed_write_takes_the_log_offline_for_everything(
        self, room: LogRoom, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        room.append(b"a")
        room.flush()
        data = room.log.reader.read(0, 100)
        self.fail_writes(monkeypatch, errno.EIO)()
        self.fail_writes(monkeypatch, errno.EIO)
        with pytest.raises(StorageError, match="Input/output error"):
            room.append(b"b")
        self.assert_offline(room, "Input/output error")
        assert data.slices[0].pread()

    def assert_offline(self, room: LogRoom, reason: str) -> None:
        log, now_ms = room.log, room.now_ms
        uses: list[Callable[[], object]] = [
            lambda: room.append(b"b"),
            lambda: log.reader.read(0, 100),
            lambda: record_at(log, 0),
            lambda: latest_record(log),
            log.flusher.prepare,
            lambda: log.local.roll(now_ms),
            lambda: log.retention.delete_old_segments(now_ms),
        ]
        for use in uses:
            with pytest.raises(StorageError, match=rf"flights-0 is offline: .*{reason}"):
                use()
        assert log.close() is None
        assert log.offsets == LogOffsets(1, 0, 1)

    def test_a_failed_flush_is_never_run_again(self, room: LogRoom, monkeypatch: pytest.MonkeyPatch) -> None:
        room.append(b"a")
        room.flush()
        room.append(b"b")
        plan = room.log.flusher.prepare()
        assert plan is not None

        def refuse(_: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as failing:
            failing.setattr(os, "fdatasync", refuse)
            with pytest.raises(OSError, match="Input/output error"):
                plan.run()
        room.log.fail("flush failed: Input/output error")
        room.log.fail("a later reason")
        self.assert_offline(room, "flush failed: Input/output error")
        assert room.log.local.failure == "flush failed: Input/output error"

    def test_a_log_that_failed_is_whole_again_after_a_restart(self, room: LogRoom) -> None:
        room.append(b"a")
        room.flush()
        room.append(b"b")
        room.log.fail("the disk")
        room.crash()
        assert read_values(room.log) == [b"a", b"b"]
        assert room.append(b"c").first_offset == 2


def out_of_memory(*_arguments: object) -> None:
    raise MemoryError


def before_the_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(file_records, "_pwritev", out_of_memory)


def after_the_write(patch: pytest.MonkeyPatch) -> None:
    real = FileRecords.append

    def append(self: FileRecords, prefix: bytes, covered: bytes) -> int:
        real(self, prefix, covered)
        raise MemoryError

    patch.setattr(FileRecords, "append", append)


@pytest.mark.parametrize("fail", [before_the_write, after_the_write])
def test_the_log_ends_as_before_and_goes_on(
    room: LogRoom, monkeypatch: pytest.MonkeyPatch, fail: Callable[[pytest.MonkeyPatch], None]
) -> None:
    room.append(b"a")
    room.append(b"b")
    with monkeypatch.context() as patch:
        fail(patch)
        for _ in range(3):
            with pytest.raises(OutOfResources):
                room.append(b"lost")
            assert room.log.log_end_offset == 2
    assert room.append(b"c").first_offset == 2
    room.flush()
    room.crash()
    assert read_values(room.log) == [b"a", b"b", b"c"]
    assert not room.log.recovery_report.damage


def test_a_batch_that_is_not_known_to_be_its_producers_ends_the_log(
    room: LogRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(b"a", producer=(7, 0, 0))
    with monkeypatch.context() as patch:
        patch.setattr(ProducerStates, "update", out_of_memory)
        with pytest.raises(StorageError, match="out of memory"):
            room.append_bytes(batch)
    with pytest.raises(StorageError, match="offline"):
        room.append(b"b")


# A disk without space: appends are refused, and everything else goes on


def refuse(*_: object, **__: object) -> None:
    raise FULL


def test_a_shortage_is_told_from_a_failure() -> None:
    assert is_resource_exhaustion(FULL)
    assert is_resource_exhaustion(OSError(errno.EMFILE, "Too many open files"))
    assert not is_resource_exhaustion(OSError(errno.EIO, "Input/output error"))
    assert not is_resource_exhaustion(OSError(errno.EROFS, "Read-only file system"))


def test_retention_unlinks_at_once_what_cannot_be_renamed(room: LogRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    room.fill(20)
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
    room.fill(20)
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
    room.fill(20)
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
