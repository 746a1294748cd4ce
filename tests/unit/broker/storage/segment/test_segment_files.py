"""The files of a segment: which there are, how they are renamed, closed, deleted and synced."""

import errno
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from present import present
from unit.broker.storage.log_files import append, append_batch, batch_of, open_segment, read_offsets, reopened
from unit.broker.storage.recovery_room import recover
from unit.broker.storage.time_lookups import record_in
from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_broker.storage.io.open_files import ClosedFile, OpenFiles
from warmlog_broker.storage.segment.segment_files import base_offsets_in
from warmlog_protocol.batch import read_header


def file_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_new_segment_has_no_index_files_and_reading_it_makes_none(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, 0)
    assert read_offsets(segment, 0) == [0]
    assert record_in(segment, 0, 0) == (0, 0, 0)
    segment.truncate_to(5, 0)
    assert file_names(tmp_path) == ["00000000000000000000.log"]
    append(segment, 1, 2)
    assert file_names(tmp_path) == [f"{0:020d}.{kind}" for kind in ("index", "log", "timeindex")]


def test_segments_that_cannot_be_listed_are_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_segment(tmp_path).close()
    assert base_offsets_in(tmp_path) == [0]
    assert base_offsets_in(tmp_path / "none") == []

    def fail(_: Path) -> list[str]:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(OSError, match="broken"):
        base_offsets_in(tmp_path)


def test_opening_and_closing_an_old_segment_opens_nothing(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, *range(10))
    segment.close()
    before = {path.name: path.stat() for path in tmp_path.iterdir()}
    open_files = OpenFiles()
    again = open_segment(tmp_path, open_files=open_files)
    assert again.size_bytes == before[again.path.name].st_size
    assert again.unflushed() is None
    again.on_become_inactive()
    again.close()
    assert open_files.open_count == 0
    assert again.indexes.loaded() == []
    after = {path.name: path.stat() for path in tmp_path.iterdir()}
    assert {name: stat.st_mtime_ns for name, stat in after.items()} == {n: s.st_mtime_ns for n, s in before.items()}
    assert {name: stat.st_ctime_ns for name, stat in after.items()} == {n: s.st_ctime_ns for n, s in before.items()}


def test_inactive_segments_are_trimmed_and_end_with_their_largest_timestamp(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, index_interval_bytes=300, preallocate_bytes=100_000)
    append(segment, *range(10))
    assert segment.path.stat().st_size == 100_000
    segment.on_become_inactive()
    segment.on_become_inactive()
    offset_index, time_index = segment.indexes.for_offsets(), segment.indexes.for_times()
    assert offset_index is not None
    assert time_index is not None
    assert segment.path.stat().st_size == segment.size_bytes
    assert offset_index.path.stat().st_size == 8 * offset_index.entries > 0
    assert time_index.path.stat().st_size == 12 * time_index.entries
    assert time_index.last_entry == (90, 9)
    assert [read_offsets(segment, offset) for offset in range(10)] == [[offset] for offset in range(10)]


def test_preallocation_lasts_until_the_segment_is_closed(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, 40, preallocate_bytes=512 << 20)
    append_batch(segment, batch_of(["hello", "there"], offset=50))
    append_batch(segment, batch_of(["a", "b"], offset=60))
    assert segment.path.stat().st_size == 512 << 20
    assert read_offsets(segment, 55, 200) == [60, 61]
    size_bytes = segment.size_bytes
    again = reopened(segment)
    assert again.size_bytes == again.path.stat().st_size == size_bytes
    assert read_offsets(again, 55, 200) == [60, 61]


@pytest.mark.parametrize("has_indexes", [False, True])
def test_changing_the_suffix_renames_what_there_is(has_indexes: bool, tmp_path: Path) -> None:
    segment = open_segment(tmp_path, 40)
    append(segment, *range(40, 45 if has_indexes else 41))
    before = file_names(tmp_path)
    (tmp_path / f"{40:020d}.txnindex").write_bytes(b"kafka's")
    segment.change_suffix("", ".deleted")
    assert file_names(tmp_path) == sorted(f"{name}.deleted" for name in [*before, f"{40:020d}.txnindex"])
    assert segment.path.name == f"{40:020d}.log.deleted"
    assert segment.indexes.time.path.name == f"{40:020d}.timeindex.deleted"
    assert read_offsets(segment, 40) == [40]
    append(segment, 45, 46)
    assert segment.indexes.offset.path.exists()
    with pytest.raises(ValueError, match="suffix"):
        segment.change_suffix("", ".swap")
    segment.change_suffix(".deleted", "")
    assert f"{40:020d}.log" in file_names(tmp_path)
    segment.delete()
    assert file_names(tmp_path) == []


def test_a_segment_follows_its_directory(tmp_path: Path) -> None:
    old, new = tmp_path / "flights-0", tmp_path / "flights-0.deleting"
    old.mkdir()
    segment = open_segment(old)
    append(segment, *range(10))
    old.rename(new)
    segment.update_directory(new)
    segment.records.let_go()
    segment.records.mark_synced(segment.records.writes)
    for index in segment.indexes.loaded():
        index.let_go()
    append(segment, 10)
    assert [read_offsets(segment, offset) for offset in range(11)] == [[offset] for offset in range(11)]
    segment.close()
    assert sorted(path.parent for path in new.iterdir()) == [new] * 3


def test_deleting_leaves_no_file_and_slices_stay_readable(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, *range(10))
    found = present(segment.read(3, 10_000, max_position=segment.size_bytes, min_one_batch=True))
    assert found.slice is not None
    segment.delete()
    segment.delete()
    assert file_names(tmp_path) == []
    assert read_header(found.slice.pread()).base_offset == 3
    for use in (lambda: read_offsets(segment, 3), lambda: append(segment, 10), lambda: segment.truncate_to(3, 0)):
        with pytest.raises(ClosedFile):
            use()


def test_deleting_tries_every_file_before_it_fails(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, *range(10))
    segment.close()
    segment.indexes.offset.path.unlink()
    segment.indexes.offset.path.mkdir()
    with pytest.raises(OSError, match=r"\.index"):
        segment.delete()
    assert file_names(tmp_path) == [f"{0:020d}.index"]


def test_closing_twice_is_harmless_and_use_after_it_a_clear_error(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, *range(10))
    segment.close()
    segment.close()
    segment.close_handles()
    for use in (lambda: read_offsets(segment, 3), lambda: append(segment, 10), lambda: segment.records.read(0, 1)):
        with pytest.raises(ClosedFile):
            use()


def test_letting_go_of_a_failed_directory_changes_no_file(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, preallocate_bytes=5000)
    append(segment, *range(10))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    segment.close_handles()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_threads_with_segments_of_their_own_may_share_a_few_descriptors(tmp_path: Path) -> None:
    open_files = OpenFiles(limit=4)

    def write_and_read(number: int) -> None:
        directory = tmp_path / f"{number}"
        directory.mkdir()
        segments = [open_segment(directory, base, open_files=open_files) for base in range(0, 80, 10)]
        for segment in segments:
            append(segment, *range(segment.base_offset, segment.base_offset + 10))
            segment.on_become_inactive()
            segment.flush()
        for segment in segments:
            for offset in range(segment.base_offset, segment.base_offset + 10):
                assert read_offsets(segment, offset) == [offset]
                assert record_in(segment, 10 * offset, 0) == (10 * offset, offset, 0)
            recover(segment)
            segment.close()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write_and_read, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert open_files.open_count == 0


# Flushing


def test_a_new_segment_is_unflushed_until_its_file_and_its_directory_were_synced(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    unflushed = present(segment.unflushed())
    assert unflushed.is_directory_dirty
    assert [file.path for file in unflushed.files] == [str(segment.path)]
    segment.mark_flushed(unflushed)
    assert segment.unflushed() is None
    append(segment, 0)
    unflushed = present(segment.unflushed())
    assert not unflushed.is_directory_dirty
    append(segment, 1)
    segment.mark_flushed(unflushed)
    assert segment.unflushed() is not None
    segment.flush()
    assert segment.unflushed() is None


def test_index_files_are_flushed_with_the_flush_that_follows_the_roll(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, *range(10))
    unflushed = present(segment.unflushed())
    assert [Path(file.path).suffix for file in unflushed.files] == [".log"]
    segment.mark_flushed(unflushed)
    assert segment.unflushed() is None
    segment.on_become_inactive()
    unflushed = present(segment.unflushed())
    assert [Path(file.path).suffix for file in unflushed.files] == [".index", ".timeindex"]
    segment.mark_flushed(unflushed)
    assert segment.unflushed() is None


def test_what_a_flush_holds_stays_open_while_the_segment_is_deleted(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, *range(10))
    segment.on_become_inactive()
    unflushed = present(segment.unflushed())
    segment.delete()
    for file in unflushed.files:
        os.fdatasync(file.fd)
    segment.mark_flushed(unflushed)


def test_truncation_and_recovery_must_be_flushed(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, *range(10))
    segment.flush()
    segment.truncate_to(5, 0)
    assert segment.unflushed() is not None
    segment.flush()
    recover(segment)
    unflushed = present(segment.unflushed())
    assert [Path(file.path).suffix for file in unflushed.files] == [".index", ".timeindex"]


# The transaction index


ABORTED = AbortedTxn(7, 0, 1, 2)


def test_a_transaction_index_goes_along_with_its_segment(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, 0, 1)
    assert not segment.transactions.file_exists()
    segment.add_aborted(ABORTED)
    assert "00000000000000000000.txnindex" in file_names(tmp_path)
    segment.change_suffix("", ".deleted")
    assert all(name.endswith(".deleted") for name in file_names(tmp_path))
    assert list(segment.transactions) == [ABORTED]
    segment.update_directory(tmp_path)
    segment.delete()
    assert file_names(tmp_path) == []


def test_entries_of_aborted_transactions_are_synced_with_the_indexes_of_an_inactive_segment(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, 0, 1)
    segment.flush()
    segment.add_aborted(ABORTED)
    segment.on_become_inactive()
    unflushed = present(segment.unflushed())
    assert unflushed.is_directory_dirty
    assert any(file.path.endswith(".txnindex") for file in unflushed.files)
    segment.flush()
    assert segment.unflushed() is None
    segment.close()
    assert list(reopened(segment).transactions) == [ABORTED]
