"""A log whose disk is full or fails: what is refused, and what a restart finds."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from unit.broker.storage.log_room import LogRoom, read_values
from unit.broker.storage.time_lookups import latest_record, record_at
from warmlog_broker.storage.directory.data_dir import LogOffsets
from warmlog_broker.storage.record import file_records
from warmlog_protocol.errors import (
    StorageError,
)


@pytest.fixture
def room(quick_path: Path) -> LogRoom:
    return LogRoom(quick_path)


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
