"""Walking the chain of batches, on files that Kafka wrote and on random bytes, and getting past damage."""

import os
import random
from contextlib import suppress
from pathlib import Path

import pytest

import kafka_sample
from unit.broker.storage.log_room import make_batch
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.time_index import TimeIndex
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.segment import scan as scanning
from warmlog_broker.storage.segment.file_records import DamagedLog, FileRecords, chain, find_batch
from warmlog_broker.storage.segment.scan import Damage, Place, find_after_damage, scan
from warmlog_protocol.batch import placement_prefix, read_header

KAFKA_FILES = kafka_sample.SAMPLE
KAFKA_LOGS = sorted(KAFKA_FILES.glob("*/*.log"))
KAFKA_DUMPS = sorted(KAFKA_FILES.glob("*/*.log.dump"))


def opened(path: Path) -> FileRecords:
    return FileRecords.open_read_only(path, OpenFiles())


@pytest.mark.parametrize("path", KAFKA_LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_logs_that_kafka_wrote_are_walked_to_their_end(path: Path) -> None:
    records = opened(path)
    file, end = records.open_file(), records.size_bytes
    headers = list(chain(file, path, 0, end))
    assert list(chain(file, path, 0, end, checks_crc=True)) == headers
    last, position = headers[-1]
    assert position + last.size_bytes == end
    for header, position in headers:
        assert find_batch(file, path, header.last_offset, 0, end) == (
            header.base_offset,
            header.last_offset,
            position,
            header.size_bytes,
        )


@pytest.mark.parametrize("dump", KAFKA_DUMPS, ids=lambda path: path.name)
def test_the_walk_sees_what_kafkas_own_dump_of_a_log_says(dump: Path) -> None:
    headers = list(opened(dump.with_suffix("")).batches())
    lines = [line for line in dump.read_text().splitlines() if line.startswith("baseOffset:")]
    assert len(lines) == len(headers) > 10
    for line, (header, position) in zip(lines, headers, strict=True):
        words = line.split()
        fields = dict(zip(words[::2], words[1::2], strict=False))
        assert int(fields["baseOffset:"]) == header.base_offset
        assert int(fields["lastOffset:"]) == header.last_offset
        assert int(fields["position:"]) == position
        assert int(fields["size:"]) == header.size_bytes


@pytest.mark.parametrize("path", KAFKA_LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_indexes_that_kafka_wrote_lead_to_batches(path: Path) -> None:
    records = opened(path)
    base_offset = int(path.stem)
    positions = {position: header for header, position in records.batches()}
    with OffsetIndex(path.with_suffix(".index"), base_offset, open_files=OpenFiles(), is_writable=False) as index:
        index.sanity_check()
        assert index.entries > 10
        for offset, position in index:
            assert positions[position].base_offset <= offset
            found = records.search_for_offset(offset, index.lookup(offset).position)
            assert found is not None
            assert found.base_offset <= offset <= found.last_offset
    with TimeIndex(path.with_suffix(".timeindex"), base_offset, open_files=OpenFiles(), is_writable=False) as times:
        times.sanity_check()
        assert times.last_entry.timestamp_ms == max(header.max_timestamp_ms for header in positions.values())


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_damage_at_the_start(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(random.Random(seed).randbytes(61 + 500 * seed))
    records = opened(path)
    file, end = records.open_file(), records.size_bytes
    with pytest.raises(DamagedLog, match="position 0"):
        find_batch(file, path, 5, 0, end)
    with pytest.raises(DamagedLog, match="position 0"):
        list(chain(file, path, 0, end, checks_crc=True))
    with suppress(DamagedLog):
        assert list(chain(file, path, 0, end)) == []


def test_a_file_that_became_shorter_is_damage_where_it_ends(tmp_path: Path) -> None:
    source = KAFKA_LOGS[0].read_bytes()
    path = tmp_path / "0.log"
    path.write_bytes(source)
    records = opened(path)
    file, end = records.open_file(), records.size_bytes
    path.write_bytes(source[: end // 2])
    with pytest.raises(DamagedLog) as caught:
        list(chain(file, path, 0, end, checks_crc=True))
    assert 0 < caught.value.position <= end // 2


# Damage


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


@pytest.mark.parametrize("zeros_in_hole", [0, 7])
def test_a_batch_after_a_hole_is_found(quick_path: Path, zeros_in_hole: int) -> None:
    """Also one whose first bytes, zeros, are in the hole."""
    records = records_of(quick_path, batch_at(0))
    with records.path.open("r+b") as file:
        file.seek(1_000_000 - 1_000_000 % 4096)
        begins_at = file.tell() - zeros_in_hole
        file.write(batch_at(7)[zeros_in_hole:])
    records = opened(records.path)
    assert records.next_data(SIZE + 4096) == (begins_at + zeros_in_hole, records.size_bytes)
    assert find_after_damage(records, SIZE, 1, 8) == (begins_at, 7)


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


def test_a_file_that_is_cut_during_a_walk_is_damaged_from_there_on(quick_path: Path) -> None:
    records = records_of(quick_path, batch_at(0), batch_at(1), batch_at(2), batch_at(3))
    os.truncate(records.path, 2 * SIZE)
    assert offsets_around_damage(records) == ([0, 1], 1)


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
