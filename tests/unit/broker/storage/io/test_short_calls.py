"""System calls that do less than they were asked to: nothing is torn, nothing is taken for damage."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warmlog_broker.storage.io.durable_files import write_all, write_file
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.segment import file_records
from warmlog_broker.storage.segment.file_records import FileRecords
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.batch.header import CRC_START

BATCH = encode_batch([b"some value"] * 5, timestamps_ms=1)
real_pwrite, real_pwritev, real_pread = os.pwrite, os.pwritev, os.pread


@pytest.fixture
def short_writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each write takes, one after another; then all."""
    sizes: list[int] = []

    def pwrite(descriptor: int, data: bytes, position: int) -> int:
        return real_pwrite(descriptor, bytes(data)[: sizes.pop(0)] if sizes else data, position)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(
        file_records, "_pwritev", lambda descriptor, parts, position: pwrite(descriptor, b"".join(parts), position)
    )
    return sizes


cuts = st.lists(st.integers(1, 30), max_size=12)
same_room = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)


@same_room
@given(cuts)
def test_what_is_written_in_pieces_is_all_there(tmp_path: Path, short_writes: list[int], sizes: list[int]) -> None:
    short_writes[:] = sizes
    write_file(tmp_path / "file", BATCH, sync=False)
    assert (tmp_path / "file").read_bytes() == BATCH


@same_room
@given(cuts)
def test_a_batch_that_is_written_in_pieces_is_whole(tmp_path: Path, short_writes: list[int], sizes: list[int]) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.unlink(missing_ok=True)
    records = FileRecords.open(path, OpenFiles())
    for number in range(2):
        short_writes[:] = sizes
        assert records.append(BATCH[:CRC_START], BATCH[CRC_START:]) == number * len(BATCH)
    assert path.read_bytes() == BATCH * 2
    records.close()


@pytest.mark.parametrize("size_bytes", [1, CRC_START, len(BATCH) - 1])
def test_a_disk_that_takes_some_and_then_nothing_leaves_no_torn_batch(
    tmp_path: Path, short_writes: list[int], size_bytes: int
) -> None:
    path = tmp_path / "00000000000000000000.log"
    records = FileRecords.open(path, OpenFiles())
    records.append(BATCH[:CRC_START], BATCH[CRC_START:])
    short_writes[:] = [size_bytes, 0]
    with pytest.raises(OSError, match="accepts none"):
        records.append(BATCH[:CRC_START], BATCH[CRC_START:])
    assert path.read_bytes() == BATCH
    records.append(BATCH[:CRC_START], BATCH[CRC_START:])
    assert path.read_bytes() == BATCH * 2
    records.close()


def test_a_write_of_nothing_is_no_endless_loop(tmp_path: Path, short_writes: list[int]) -> None:
    short_writes[:] = [3, 0]
    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="accepts none of 2 bytes at position 3"):
        write_all(descriptor, b"12345", 0)
    os.close(descriptor)


@pytest.mark.parametrize("size_bytes", [1, 7, 60, 61, 100])
def test_reads_that_give_less_than_there_is_find_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    path = tmp_path / "00000000000000000000.log"
    batches = [encode_batch([b"v"] * 3, timestamps_ms=1, base_offset=3 * number) for number in range(5)]
    path.write_bytes(b"".join(batches))
    monkeypatch.setattr(
        file_records, "_pread", lambda fd, size, position: real_pread(fd, min(size, size_bytes), position)
    )
    records = FileRecords.open_read_only(path, OpenFiles())
    assert [header.base_offset for header, _ in records.batches()] == [0, 3, 6, 9, 12]
    checked = records.batches(checks_crc=True)
    assert [records.read(position, header.size_bytes) for header, position in checked] == batches
    found = records.search_for_offset(10)
    assert found is not None
    assert found.base_offset == 9
    assert records.slice(0, path.stat().st_size).pread() == b"".join(batches)
    records.close_handles()
