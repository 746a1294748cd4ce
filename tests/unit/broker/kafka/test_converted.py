"""Columnar batches as rows for clients of Kafka: converted once while they are kept, and never mistaken for others."""

import errno
from pathlib import Path

import pytest

from unit.broker.storage.log_files import batch_of, overwrite
from warmlog_broker.kafka.converted import ConvertedBatches
from warmlog_broker.kafka.data.rows import HEADERS_A_TURN, in_rows, note_rows, with_columns
from warmlog_broker.runtime.counters import Conversions
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.segment.file_records import FileRecords, FileSlice
from warmlog_protocol.batch import iter_batches, read_batch, to_rows
from warmlog_protocol.errors import CorruptBatch

LIMIT_BYTES = 1 << 20
COLUMNS = [batch_of(["v" * 50], offset=offset) for offset in range(4)]
ROWS = [to_rows(read_batch(batch)) for batch in COLUMNS]


@pytest.fixture
def records(tmp_path: Path) -> FileRecords:
    return FileRecords.open(tmp_path / "0.log", OpenFiles())


def put(records: FileRecords, *batches: bytes) -> list[FileSlice]:
    positions = [records.append(batch[:21], batch[21:]) for batch in batches]
    return [records.slice(position, len(batch)) for position, batch in zip(positions, batches, strict=True)]


def test_a_batch_is_converted_once_while_it_is_kept(records: FileRecords) -> None:
    converted = ConvertedBatches(LIMIT_BYTES, LIMIT_BYTES, Conversions())
    for _ in range(2):
        for piece, rows in zip(put(records, *COLUMNS), ROWS, strict=True):
            for _ in range(3):
                assert converted.rows_of(piece) == rows
    assert (converted.counted.batches, converted.counted.hits) == (8, 16)
    assert converted.counted.kept_bytes == 2 * sum(map(len, ROWS))


def test_the_least_recently_used_one_is_dropped_first(records: FileRecords) -> None:
    converted = ConvertedBatches(3 * len(ROWS[0]), LIMIT_BYTES, Conversions())
    first, second, third, fourth = put(records, *COLUMNS)
    for piece in (first, second, third, first, fourth):
        converted.rows_of(piece)
        assert converted.counted.kept_bytes <= 3 * len(ROWS[0])
    assert converted.counted.batches == 4
    converted.rows_of(first)
    assert converted.counted.batches == 4
    converted.rows_of(second)
    assert converted.counted.batches == 5


def test_a_cache_without_room_keeps_nothing(records: FileRecords) -> None:
    converted = ConvertedBatches(0, LIMIT_BYTES, Conversions())
    (piece,) = put(records, COLUMNS[0])
    for _ in range(2):
        assert converted.rows_of(piece) == ROWS[0]
    assert (converted.counted.batches, converted.counted.hits, converted.counted.kept_bytes) == (2, 0, 0)


def test_what_is_written_where_a_file_was_cut_is_another_batch(records: FileRecords) -> None:
    converted = ConvertedBatches(LIMIT_BYTES, LIMIT_BYTES, Conversions())
    (before,) = put(records, COLUMNS[0])
    assert converted.rows_of(before) == ROWS[0]
    records.truncate_to(0)
    other = batch_of(["w" * 50], offset=0)
    (after,) = put(records, other)
    assert (after.position, after.size_bytes) == (before.position, before.size_bytes)
    assert converted.rows_of(after) == to_rows(read_batch(other))
    with pytest.raises(CorruptBatch, match="truncated there"):
        converted.rows_of(before)


def test_damage_is_not_kept(records: FileRecords) -> None:
    converted = ConvertedBatches(LIMIT_BYTES, LIMIT_BYTES, Conversions())
    (piece,) = put(records, COLUMNS[0])
    overwrite(records.path, len(COLUMNS[0]) - 1, b"x")
    for _ in range(2):
        with pytest.raises(CorruptBatch, match="CRC"):
            converted.rows_of(piece)
    overwrite(records.path, len(COLUMNS[0]) - 1, COLUMNS[0][-1:])
    assert converted.rows_of(piece) == ROWS[0]


def test_all_batches_become_rows_and_runs_of_rows_stay_in_the_file(records: FileRecords) -> None:
    stored = [ROWS[0], ROWS[1], COLUMNS[2], ROWS[3]]
    put(records, *stored)
    whole = records.slice(0, records.size_bytes)
    pieces = in_rows([whole], LIMIT_BYTES, ConvertedBatches(LIMIT_BYTES, LIMIT_BYTES, Conversions()).rows_of)
    assert [isinstance(piece, bytes) for piece in pieces] == [False, True, False]
    found = b"".join(piece if isinstance(piece, bytes) else piece.pread() for piece in pieces)
    assert found == b"".join(ROWS)
    assert [batch.base_offset for batch in iter_batches(found)] == [0, 1, 2, 3]


def test_rows_are_looked_for_columns_once(tmp_path: Path, records: FileRecords) -> None:
    put(records, *ROWS, COLUMNS[0])
    rows_bytes = sum(map(len, ROWS))
    again = FileRecords.open(records.path, OpenFiles())
    assert with_columns([[again.slice(0, again.size_bytes)]]) == [0]
    assert again.rows_end == 0
    cut_off = again.slice(0, rows_bytes - 1)
    assert with_columns([[cut_off]]) == []
    assert again.rows_end == 0, "the last batch is not there as a whole"
    assert with_columns([[again.slice(0, rows_bytes)]]) == []
    assert again.rows_end == rows_bytes
    note_rows([again.slice(0, 0), b"converted", again.slice(0, again.size_bytes)])
    assert again.rows_end == rows_bytes


def test_a_fetch_looks_at_so_many_headers_in_all(tmp_path: Path, records: FileRecords) -> None:
    put(records, *ROWS)
    again = [FileRecords.open(records.path, OpenFiles()) for _ in range(HEADERS_A_TURN // len(ROWS) + 2)]
    partitions = [[each.slice(0, each.size_bytes)] for each in again]
    assert with_columns(partitions) == [len(again) - 2, len(again) - 1]
    assert with_columns(partitions) == [], "those before are known now"


def test_what_cannot_be_read_is_left_to_the_conversion(records: FileRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    put(records, *ROWS)

    def broken(_: FileSlice) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(FileSlice, "pread", broken)
    again = FileRecords.open(records.path, OpenFiles())
    assert with_columns([[], [again.slice(0, again.size_bytes)]]) == [1]


def test_a_conversion_stops_at_its_limit_and_with_its_connection(records: FileRecords) -> None:
    put(records, *COLUMNS)
    converted = ConvertedBatches(0, LIMIT_BYTES, Conversions())
    whole = [records.slice(0, records.size_bytes)]
    assert in_rows(whole, 1, converted.rows_of) == [ROWS[0]]
    assert converted.counted.batches == 1
    assert in_rows(whole, 1, converted.rows_of, min_one_batch=False) == []
    assert in_rows(whole, 0, converted.rows_of, min_one_batch=False) == []
    assert converted.counted.batches == 2, "without room nothing is converted"
    found = in_rows(whole, LIMIT_BYTES, converted.rows_of, is_over=lambda: converted.counted.batches >= 4)
    assert found == ROWS[:2]
