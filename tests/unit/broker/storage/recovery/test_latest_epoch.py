"""The latest leader epoch of a log that is not open yet."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from unit.broker.storage.log_room import TINY, LogRoom
from warmlog_broker.storage.recovery.latest_epoch import latest_epoch
from warmlog_broker.storage.segment import file_records

MIB = 1024 * 1024


@pytest.mark.parametrize(("batches", "epoch"), [(0, -1), (1, 3)])
def test_what_was_preallocated_and_not_written_is_not_read(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int, epoch: int
) -> None:
    room = LogRoom(quick_path, replace(TINY, segment_bytes=64 * MIB, preallocate=True))
    room.leader_epoch = 3
    for _ in range(batches):
        room.append(b"v")
    room.flush()
    assert room.segment_path(0).stat().st_size == 64 * MIB
    read_bytes = 0
    pread = file_records._pread

    def counted(fd: int, size_bytes: int, position: int) -> bytes:
        nonlocal read_bytes
        read_bytes += size_bytes
        return pread(fd, size_bytes, position)

    monkeypatch.setattr(file_records, "_pread", counted)
    assert latest_epoch(room.directory, 0, was_closed=False)[0] == epoch
    assert read_bytes < MIB // 10
