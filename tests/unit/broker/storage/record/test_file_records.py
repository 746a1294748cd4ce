"""A log file: appended to at its end, sliced anywhere, cut where it must be; on the real file system."""

import os
import threading
import time
from pathlib import Path

import pytest

from unit.broker.storage.log_files import batch_of, no_file_grows_beyond, offsets_in, overwrite
from warmlog_broker.storage.io.open_files import ClosedFile, OpenFiles
from warmlog_broker.storage.segment.file_records import DamagedLog, FileRecords, FileSlice
from warmlog_protocol.batch import encode_batch, iter_batches, read_batch, to_rows

MAX_LOG_BYTES = 2**31 - 1
BATCHES = [batch_of([value], offset=offset) for offset, value in enumerate(("abcd", "efgh!", "ijkl!!"))]
SIZES = [len(batch) for batch in BATCHES]


def put(records: FileRecords, *batches: bytes) -> None:
    for batch in batches:
        records.append(batch[:21], batch[21:])


@pytest.fixture
def records(tmp_path: Path) -> FileRecords:
    """A file with three batches."""
    records = FileRecords.open(tmp_path / "0.log", OpenFiles())
    put(records, *BATCHES)
    return records


def opened(path: Path) -> FileRecords:
    return FileRecords.open(path, OpenFiles())


def test_batches_lie_back_to_back(records: FileRecords) -> None:
    assert records.path.read_bytes() == b"".join(BATCHES)
    assert records.size_bytes == sum(SIZES)
    assert [(header.base_offset, position) for header, position in records.batches()] == [
        (0, 0),
        (1, SIZES[0]),
        (2, SIZES[0] + SIZES[1]),
    ]


def rows_at(offset: int) -> bytes:
    return to_rows(read_batch(batch_of(["v"], offset=offset)))


def test_a_file_knows_up_to_where_it_has_only_rows_of_those_that_it_was_appended(tmp_path: Path) -> None:
    records = FileRecords.open(tmp_path / "0.log", OpenFiles())
    put(records, rows_at(0), rows_at(1))
    rows_bytes = records.size_bytes
    put(records, BATCHES[2], rows_at(3))
    assert not records.slice(0, rows_bytes).may_have_columns
    assert records.slice(0, rows_bytes + 1).may_have_columns
    assert records.slice(rows_bytes + SIZES[2], 1000).may_have_columns, "after columns, it is not known"
    assert not records.slice(0, 1000).slice(0, rows_bytes).may_have_columns
    records.truncate_to(len(rows_at(0)))
    put(records, BATCHES[1], rows_at(2))
    assert records.slice(0, rows_bytes).may_have_columns


def test_a_file_that_was_there_learns_by_whoever_walks_it_what_has_only_rows(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    put(FileRecords.open(path, OpenFiles()), *map(rows_at, range(4)))
    records, size_bytes = opened(path), len(rows_at(0))
    first, middle, last = (records.slice(size_bytes * n, size_bytes) for n in (0, 1, 3))
    assert all(each.may_have_columns for each in (first, middle, last))
    last.note_rows()
    assert last.may_have_columns, "what is before it may have columns: then it would not be read for them"
    first.note_rows()
    middle.note_rows()
    first.note_rows()
    assert [each.may_have_columns for each in (first, middle, last)] == [False, False, True]
    put(records, rows_at(4))
    assert records.rows_end == 2 * size_bytes
    stale = records.slice(2 * size_bytes, size_bytes)
    records.truncate_to(2 * size_bytes)
    stale.note_rows()
    assert records.rows_end == 2 * size_bytes


def test_a_file_that_exists_is_not_opened_before_it_is_used(records: FileRecords) -> None:
    records.close()
    open_files = OpenFiles()
    again = FileRecords.open(records.path, open_files)
    assert (again.size_bytes, again.is_new, open_files.open_count) == (sum(SIZES), False, 0)
    put(again, batch_of(["x"], offset=3))
    assert offsets_in(again) == [0, 1, 2, 3]
    assert open_files.open_count == 1


def test_a_log_may_not_grow_beyond_what_an_index_can_point_at(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.touch()
    os.truncate(path, MAX_LOG_BYTES)
    records = opened(path)
    with pytest.raises(ValueError, match="a log file may have"):
        put(records, BATCHES[0])
    assert path.stat().st_size == MAX_LOG_BYTES
    os.truncate(path, MAX_LOG_BYTES + 5)
    with pytest.raises(ValueError, match="a log file may have"):
        opened(path)


@pytest.mark.parametrize("garbage", [2, 4, 5, 6, 60])
def test_iteration_yields_all_before_bytes_that_cannot_hold_a_header(records: FileRecords, garbage: int) -> None:
    with records.path.open("ab") as file:
        file.write(bytes(garbage))
    again = opened(records.path)
    assert again.size_bytes == sum(SIZES) + garbage
    assert offsets_before_damage(again) == ([0, 1, 2], sum(SIZES))


def test_iteration_yields_all_before_a_partial_batch(records: FileRecords) -> None:
    for missing in (1, SIZES[2] - 61, SIZES[2] - 60, SIZES[2] - 1):
        records.truncate_to(sum(SIZES) - missing)
        assert offsets_before_damage(records) == ([0, 1], SIZES[0] + SIZES[1])


def offsets_before_damage(records: FileRecords) -> tuple[list[int], int]:
    """The base offsets of the batches before the first damage, and its position."""
    offsets: list[int] = []
    with pytest.raises(DamagedLog) as damaged:
        offsets.extend(header.base_offset for header, _ in records.batches())
    return offsets, damaged.value.position


def test_iteration_refuses_offsets_that_go_back(records: FileRecords) -> None:
    overwrite(records.path, SIZES[0], (9).to_bytes(8, "big"))
    with pytest.raises(DamagedLog, match=f"position {SIZES[0] + SIZES[1]}: base offset 2 follows offset 9"):
        offsets_in(records)


def test_iteration_refuses_what_is_no_header(records: FileRecords) -> None:
    overwrite(records.path, SIZES[0] + 16, b"\x07")
    with pytest.raises(DamagedLog, match=f"0.log: no valid batch at position {SIZES[0]}: .*magic 7") as caught:
        offsets_in(records)
    assert (caught.value.position, caught.value.path) == (SIZES[0], str(records.path))


@pytest.mark.parametrize("value_bytes", [1, 300, 5000, 70_000])
def test_iteration_finds_batches_of_any_size(value_bytes: int, tmp_path: Path) -> None:
    records = opened(tmp_path / "0.log")
    for offset in range(max(20, 600_000 // (value_bytes + 100))):
        put(records, batch_of(["x" * (value_bytes + offset % 7)], offset=offset))
    found = list(records.batches())
    assert [header.base_offset for header, _ in found] == list(range(len(found)))
    assert found[-1][1] + found[-1][0].size_bytes == records.size_bytes
    middle = found[len(found) // 2][1]
    assert [position for _, position in records.batches(middle)] == [p for _, p in found if p >= middle]
    assert [position for _, position in records.batches(0, middle)] == [p for _, p in found if p < middle]


def test_a_slice_is_clipped_to_what_there_is(records: FileRecords) -> None:
    rest = BATCHES[1] + BATCHES[2]
    for size_bytes in (len(rest), len(rest) + 1, 2**31 - 1, 2**40):
        assert records.slice(SIZES[0], size_bytes).pread() == rest
    assert records.slice(SIZES[0], SIZES[1]).pread() == BATCHES[1]
    assert records.slice(sum(SIZES), 100).pread() == b""


def test_slices_of_slices_count_from_their_own_start(records: FileRecords) -> None:
    outer = records.slice(1, 2**31 - 1)
    inner = outer.slice(SIZES[0] - 1, SIZES[1])
    assert inner.pread() == BATCHES[1]
    assert inner.slice(21, 2**40).pread() == BATCHES[1][21:]
    with pytest.raises(ValueError, match="cannot be sliced"):
        inner.slice(SIZES[1] + 1, 1)


@pytest.mark.parametrize(("position", "size_bytes"), [(-1, 5), (0, -1), (10**6, 1)])
def test_a_slice_outside_the_file_is_refused(records: FileRecords, position: int, size_bytes: int) -> None:
    with pytest.raises(ValueError, match="cannot be sliced"):
        records.slice(position, size_bytes)


def test_a_slice_holds_the_file_while_it_is_evicted_closed_and_deleted(records: FileRecords) -> None:
    taken = records.slice(0, SIZES[0])
    records.let_go()
    records.delete()
    assert not records.path.exists()
    assert taken.pread() == BATCHES[0]
    assert os.pread(taken.fileno(), 10, taken.position) == BATCHES[0][:10]


def test_a_slice_of_a_file_that_became_shorter_is_damage(records: FileRecords) -> None:
    taken = records.slice(SIZES[0], 10**6)
    records.truncate_to(SIZES[0] + 10)
    with pytest.raises(DamagedLog, match="truncated there"):
        taken.pread()


def test_what_was_just_written_is_cached(records: FileRecords) -> None:
    assert records.slice(0, 10**6).is_cached()
    assert records.slice(0, 0).is_cached()


def test_what_was_dropped_from_the_cache_is_not(tmp_path: Path) -> None:
    records = opened(tmp_path / "0.log")
    for offset in range(8):
        put(records, batch_of(["x" * 300_000], offset=offset))
    taken = records.slice(0, 10**9)
    assert taken.is_cached()
    records.drop_cache()
    if taken.is_cached():
        pytest.skip("this file system keeps its pages, or cannot tell")
    taken.pread()
    assert taken.is_cached()


def test_a_search_finds_the_first_batch_that_ends_at_the_offset_or_behind_it(records: FileRecords) -> None:
    last = batch_of(["far"], offset=50)
    put(records, last)
    s1, s2, s3 = SIZES
    assert records.search_for_offset(0) == (0, 0, 0, s1)
    assert records.search_for_offset(1) == records.search_for_offset(1, s1) == (1, 1, s1, s2)
    assert records.search_for_offset(3) == (50, 50, s1 + s2 + s3, len(last))
    assert records.search_for_offset(3, s1) == records.search_for_offset(50, s1 + s2) == records.search_for_offset(3)
    assert records.search_for_offset(51) is None


@pytest.mark.parametrize("value_bytes", [1, 2000, 9000])
def test_a_search_reads_on_through_any_number_of_batches(value_bytes: int, tmp_path: Path) -> None:
    records = opened(tmp_path / "0.log")
    positions = [records.append(b[:21], b[21:]) for b in (batch_of(["x" * value_bytes], offset=o) for o in range(200))]
    for offset in (0, 1, 42, 43, 44, 100, 199):
        found = records.search_for_offset(offset)
        assert found is not None
        assert (found.base_offset, found.position) == (offset, positions[offset])


@pytest.mark.parametrize(
    ("at", "data", "reason"),
    [
        (16, b"\x04", "magic 4"),
        (16, b"\x00", "magic 0"),
        (8, b"\x00\x00\x00\x30", "length 48"),
        (8, b"\x7f\xff\xff\xff", "claims 2147483659 bytes"),
        (8, b"\xff\xff\xff\xff", "length -1"),
        (0, bytes(8), "base offset 0 follows offset 0"),
        (0, b"\xff", "negative"),
        (23, b"\xff", "negative"),
    ],
)
def test_a_search_refuses_what_cannot_be_the_next_batch(
    records: FileRecords, at: int, data: bytes, reason: str
) -> None:
    overwrite(records.path, SIZES[0] + at, data)
    assert records.search_for_offset(0) is not None
    with pytest.raises(DamagedLog, match=f"position {SIZES[0]}: .*{reason}"):
        records.search_for_offset(2)


def test_truncation_keeps_what_lies_before(records: FileRecords) -> None:
    assert records.truncate_to(SIZES[0]) == SIZES[1] + SIZES[2]
    assert records.size_bytes == records.path.stat().st_size == SIZES[0]
    put(records, BATCHES[2])
    assert records.path.read_bytes() == BATCHES[0] + BATCHES[2]
    records.truncate_to(23)
    assert records.path.stat().st_size == 23


def test_truncation_to_the_current_size_does_not_touch_the_file(records: FileRecords) -> None:
    writes, stat = records.writes, records.path.stat()
    assert records.truncate_to(sum(SIZES)) == 0
    assert records.writes == writes
    assert records.path.stat().st_mtime_ns == stat.st_mtime_ns
    assert records.path.stat().st_ctime_ns == stat.st_ctime_ns


@pytest.mark.parametrize("size_bytes", [sum(SIZES) + 1, -1])
def test_truncation_outside_the_file_is_refused(records: FileRecords, size_bytes: int) -> None:
    with pytest.raises(ValueError, match="cannot truncate"):
        records.truncate_to(size_bytes)
    assert records.size_bytes == sum(SIZES)


def test_preallocation_lasts_until_the_file_is_trimmed(tmp_path: Path) -> None:
    records = FileRecords.open(tmp_path / "0.log", OpenFiles(), preallocate_bytes=1 << 20)
    assert (records.size_bytes, records.file_bytes, records.path.stat().st_size) == (0, 1 << 20, 1 << 20)
    put(records, *BATCHES)
    assert (records.size_bytes, records.path.stat().st_size) == (sum(SIZES), 1 << 20)
    assert offsets_in(records) == [0, 1, 2]
    assert records.search_for_offset(3) is None
    assert records.slice(0, 1 << 30).size_bytes == sum(SIZES)
    records.close()
    again = opened(records.path)
    assert again.size_bytes == again.file_bytes == records.path.stat().st_size == sum(SIZES)


def test_opening_read_only_creates_and_changes_nothing(records: FileRecords) -> None:
    with pytest.raises(FileNotFoundError):
        FileRecords.open_read_only(records.path.with_name("missing"), OpenFiles())
    records.path.chmod(0o444)
    before = records.path.stat()
    reader = FileRecords.open_read_only(records.path, OpenFiles())
    assert offsets_in(reader) == [0, 1, 2]
    flags = int(Path(f"/proc/self/fdinfo/{reader.open_file().fd}").read_text().split("flags:")[1].split()[0], 8)
    assert flags & os.O_ACCMODE == os.O_RDONLY
    with pytest.raises(PermissionError):
        put(reader, BATCHES[0])
    with pytest.raises(PermissionError):
        reader.truncate_to(0)
    reader.close()
    assert records.path.stat().st_mtime_ns == before.st_mtime_ns
    assert records.path.read_bytes() == b"".join(BATCHES)


@pytest.mark.parametrize("preallocate_bytes", [0, 4096])
@pytest.mark.parametrize("room_bytes", [0, 1, 30, 100])
def test_a_full_disk_is_an_error_and_the_file_ends_where_it_did(
    preallocate_bytes: int, room_bytes: int, tmp_path: Path
) -> None:
    records = FileRecords.open(tmp_path / "0.log", OpenFiles(), preallocate_bytes=preallocate_bytes)
    put(records, *BATCHES)
    large = batch_of(["x" * 5000], offset=3)
    writes = records.writes
    with no_file_grows_beyond(max(preallocate_bytes, sum(SIZES)) + room_bytes):
        for _ in range(2):
            with pytest.raises(OSError, match="too large"):
                put(records, large)
            assert records.size_bytes == sum(SIZES)
            assert records.path.read_bytes().rstrip(b"\0") == b"".join(BATCHES).rstrip(b"\0")
            assert offsets_in(records) == [0, 1, 2]
    assert records.writes > writes
    put(records, large)
    assert offsets_in(records) == [0, 1, 2, 3]
    records.close()
    assert records.path.read_bytes() == b"".join([*BATCHES, large])


def test_every_change_counts_as_unflushed_until_a_sync_that_began_after_it(records: FileRecords) -> None:
    assert records.has_unflushed_writes()
    writes = records.writes
    put(records, batch_of(["x"], offset=3))
    records.mark_synced(writes)
    assert records.has_unflushed_writes()
    records.mark_synced(records.writes)
    assert not records.has_unflushed_writes()
    records.truncate_to(0)
    assert records.has_unflushed_writes()


def test_a_file_with_unflushed_writes_is_not_evicted(tmp_path: Path) -> None:
    open_files = OpenFiles(limit=1)
    dirty, other, third = (FileRecords.open(tmp_path / f"{n}.log", open_files) for n in range(3))
    put(dirty, BATCHES[0])
    descriptor = dirty.open_file().fd
    for records in (other, third, other):
        records.open_file()
    assert dirty.open_file().fd == descriptor
    dirty.mark_synced(dirty.writes)
    other.open_file()
    third.open_file()
    assert open_files.open_count == 1
    put(dirty, BATCHES[1])
    assert offsets_in(dirty) == [0, 1]


def test_closing_twice_is_harmless_and_use_after_it_a_clear_error(records: FileRecords) -> None:
    records.close()
    records.close()
    records.close_handles()
    for use in (
        lambda: put(records, BATCHES[0]),
        lambda: records.read(0, 10),
        lambda: records.slice(0, 10),
        lambda: offsets_in(records),
        lambda: records.search_for_offset(0),
        records.open_file,
    ):
        with pytest.raises(ClosedFile, match=r"0\.log was closed"):
            use()


def test_deleting_says_whether_there_was_a_file(records: FileRecords) -> None:
    assert records.delete() is True
    assert records.delete() is False


def test_a_batch_may_be_appended_from_a_view_of_a_receive_buffer(tmp_path: Path) -> None:
    records = opened(tmp_path / "0.log")
    buffer = bytearray(b"header" + BATCHES[0] + b"next")
    records.append(BATCHES[0][:21], memoryview(buffer)[27 : 6 + SIZES[0]])
    assert records.path.read_bytes() == BATCHES[0]


def test_a_reader_beside_a_writer_sees_whole_batches_up_to_the_size_it_read(tmp_path: Path) -> None:
    records = opened(tmp_path / "0.log")
    batch = encode_batch([b"x" * 50], timestamps_ms=0)
    failures: list[str] = []

    def read() -> None:
        while (size_bytes := records.size_bytes) < 1 << 12:
            taken = FileSlice(file, 0, size_bytes)
            data = taken.pread()
            if len(data) != size_bytes or sum(b.size_bytes for b in iter_batches(data)) != size_bytes:
                failures.append(f"{size_bytes} bytes: {len(data)} read")
            time.sleep(0)

    file = records.open_file()
    reader = threading.Thread(target=read)
    reader.start()
    while records.size_bytes < 1 << 12:
        put(records, batch)
    reader.join()
    assert failures == []
