"""Getting past damage in a log file."""

from pathlib import Path

import pytest

from unit.broker.storage.log_room import make_batch
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.segment import scan as scanning
from warmlog_broker.storage.segment.file_records import FileRecords
from warmlog_broker.storage.segment.scan import Damage, Place, find_after_damage, scan
from warmlog_protocol.batch import placement_prefix, read_header

SIZE = len(make_batch(b"v"))


def batch_at(offset: int) -> bytes:
    batch = make_batch(b"v")
    return placement_prefix(read_header(batch), offset, 0) + batch[21:]


def records_of(path: Path, *parts: bytes) -> FileRecords:
    (path / "x.log").write_bytes(b"".join(parts))
    return FileRecords.open(path / "x.log", OpenFiles())


def broken(offset: int, position: int) -> bytes:
    batch = bytearray(batch_at(offset))
    batch[position] ^= 0xFF
    return bytes(batch)


def test_behind_a_damaged_body_the_next_batch_follows(quick_path: Path) -> None:
    records = records_of(quick_path, batch_at(0), broken(1, 65), batch_at(2))
    assert find_after_damage(records, SIZE, 1, 3) == (2 * SIZE, 2)


def test_a_damaged_batch_at_the_end_may_be_the_last(quick_path: Path) -> None:
    records = records_of(quick_path, batch_at(0), broken(1, 65))
    assert find_after_damage(records, SIZE, 1, 2) == (2 * SIZE, 2)


@pytest.mark.parametrize("position", [8, 11, 23, 26])
def test_a_length_or_count_that_the_next_batch_does_not_bear_out_is_not_believed(
    quick_path: Path, position: int
) -> None:
    records = records_of(quick_path, batch_at(0), broken(1, position), batch_at(2), batch_at(3))
    assert find_after_damage(records, SIZE, 1, 4) == (2 * SIZE, 2)


def test_an_intact_batch_is_found_behind_garbage_of_any_length(quick_path: Path) -> None:
    for garbage in (b"\0" * 500, b"\xff" * 500, bytes(range(256)) * 3, b"\0" * 16 + b"\x02" * 300):
        records = records_of(quick_path, batch_at(0), garbage, batch_at(7))
        assert find_after_damage(records, SIZE, 1, 8) == (SIZE + len(garbage), 7)


def test_a_batch_across_the_border_of_two_chunks_is_found(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "_CHUNK_BYTES", 64)
    for length in range(100, 200):
        records = records_of(quick_path, b"\xaa" * length, batch_at(300))
        assert find_after_damage(records, 0, 250, 400) == (length, 300)


@pytest.mark.parametrize(("offset", "expected", "most"), [(1, 1, 5), (0, 3, 5), (6, 3, 5), (2**40, 3, 5)])
def test_a_batch_with_an_offset_that_does_not_fit_is_passed_by(
    quick_path: Path, offset: int, expected: int, most: int
) -> None:
    records = records_of(quick_path, b"\xaa" * 100, batch_at(offset))
    assert find_after_damage(records, 0, expected, most) is None


def test_the_search_has_an_end(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = records_of(quick_path, b"\xaa" * 1000, batch_at(2))
    monkeypatch.setattr(scanning, "SEARCH_LIMIT_BYTES", 500)
    assert find_after_damage(records, 0, 1, 5) is None


def test_damage_says_what_cannot_be_read(tmp_path: Path) -> None:
    text = str(Damage(tmp_path / "x.log", 91, 182, 3, 5, "CRC 1 expected, 2 found"))
    assert text == f"{tmp_path / 'x.log'}: offsets 3 to 4 are damaged, positions 91 to 182: CRC 1 expected, 2 found"


def offsets_around_damage(records: FileRecords, *, low: int = 0) -> tuple[list[int], int]:
    """The base offsets that a scan finds, and how many damages."""
    found = list(scan(records, 0, Place(low, 1001)))
    batches = [each[0].base_offset for each in found if not isinstance(each, Damage)]
    return batches, len(found) - len(batches)


def test_a_walk_leaves_out_what_is_damaged_and_says_where(quick_path: Path) -> None:
    records = records_of(quick_path, batch_at(0), broken(1, 16), batch_at(2), batch_at(3), b"\xff" * 200, batch_at(9))
    assert offsets_around_damage(records) == ([0, 2, 3, 9], 2)


def test_a_batch_that_claims_the_offsets_of_the_next_one_is_left_out(quick_path: Path) -> None:
    records = records_of(quick_path, batch_at(0), broken(1, 26), batch_at(2), batch_at(3))
    assert offsets_around_damage(records) == ([0, 2, 3], 1)


def test_an_intact_batch_with_another_base_offset_is_left_out_where_the_next_one_contradicts_it(
    quick_path: Path,
) -> None:
    records = records_of(quick_path, batch_at(0), batch_at(7), batch_at(2), batch_at(3))
    assert offsets_around_damage(records) == ([0, 2, 3], 1)
    records = records_of(quick_path, batch_at(4), batch_at(0), batch_at(6))
    assert offsets_around_damage(records, low=4) == ([4, 6], 1)


def test_gaps_that_nothing_contradicts_are_no_damage(quick_path: Path) -> None:
    records = records_of(quick_path, batch_at(0), batch_at(7), batch_at(12))
    assert offsets_around_damage(records) == ([0, 7, 12], 0)
