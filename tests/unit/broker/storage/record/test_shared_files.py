"""Log files to which other names lead too: nothing that happens to the log changes what those names lead to."""

import os
from errno import ENOSPC, EXDEV
from pathlib import Path
from unittest.mock import patch

import pytest

from unit.broker.storage.log_files import batch_of, no_file_grows_beyond, offsets_in, overwrite
from unit.broker.storage.log_room import TINY, LogRoom, read_values
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.segment.file_records import FileRecords
from warmlog_protocol.batch import iter_batches

BATCHES = [batch_of([value], offset=offset) for offset, value in enumerate(("abcd", "efgh!", "ijkl!!"))]
CONTENT = b"".join(BATCHES)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The other name."""
    path = tmp_path / "kafka.log"
    path.write_bytes(CONTENT)
    os.utime(path, ns=(1_000_000_000, 2_000_000_000))
    return path


@pytest.fixture
def records(source: Path, tmp_path: Path) -> FileRecords:
    os.link(source, tmp_path / "0.log")
    return FileRecords.open(tmp_path / "0.log", OpenFiles())


def is_untouched(source: Path) -> bool:
    return source.read_bytes() == CONTENT and source.stat().st_mtime_ns == 2_000_000_000


def test_reading_makes_no_copy(source: Path, records: FileRecords) -> None:
    assert offsets_in(records) == [0, 1, 2]
    records.drop_cache()
    records.close()
    assert records.path.samefile(source)


def test_an_append_goes_into_a_copy(source: Path, records: FileRecords) -> None:
    before = records.slice(0, len(CONTENT))
    more = batch_of(["x"], offset=3)
    assert records.append(more[:21], more[21:]) == len(CONTENT)
    assert records.path.read_bytes() == CONTENT + more
    assert not records.path.samefile(source)
    assert is_untouched(source)
    assert before.pread() == CONTENT
    again = batch_of(["y"], offset=4)
    records.append(again[:21], again[21:])
    assert offsets_in(records) == [0, 1, 2, 3, 4]


def test_a_truncation_cuts_a_copy_that_keeps_the_time(source: Path, records: FileRecords) -> None:
    records.make_private()
    assert records.path.stat().st_mtime_ns == 2_000_000_000
    records.truncate_to(len(BATCHES[0]))
    assert offsets_in(records) == [0]
    assert is_untouched(source)


def test_a_file_that_is_linked_while_it_is_in_use_is_copied_when_it_is_opened_again(tmp_path: Path) -> None:
    records = FileRecords.open(tmp_path / "0.log", OpenFiles())
    for batch in BATCHES:
        records.append(batch[:21], batch[21:])
    records.mark_synced(records.writes)
    records.let_go()
    os.link(records.path, tmp_path / "backup")
    more = batch_of(["x"], offset=3)
    records.append(more[:21], more[21:])
    assert (tmp_path / "backup").read_bytes() == CONTENT


def test_without_room_for_the_copy_nothing_changes(source: Path, records: FileRecords) -> None:
    more = batch_of(["x"], offset=3)
    with no_file_grows_beyond(10), pytest.raises(OSError):  # noqa: PT011
        records.append(more[:21], more[21:])
    assert is_untouched(source)
    assert records.path.samefile(source)
    assert sorted(path.name for path in source.parent.iterdir()) == ["0.log", "kafka.log"]
    records.append(more[:21], more[21:])
    assert offsets_in(records) == [0, 1, 2, 3]


def test_files_are_copied_where_the_kernel_cannot_copy_ranges(source: Path, records: FileRecords) -> None:
    with patch("os.copy_file_range", side_effect=OSError(EXDEV, "Invalid cross-device link")):
        records.make_private()
    assert records.path.read_bytes() == CONTENT
    with patch("os.copy_file_range", side_effect=OSError(ENOSPC, "No space left on device")):
        os.link(records.path, source.with_name("third"))
        with pytest.raises(OSError, match="No space"):
            records.make_private()


def linked_room(tmp_path: Path) -> tuple[LogRoom, dict[Path, bytes]]:
    """A log of several segments that was closed, and the other names of all of its log files, with what is in them."""
    room = LogRoom(tmp_path / "data")
    room.fill(12, b"value")
    room.close()
    kafka = tmp_path / "kafka"
    kafka.mkdir()
    contents = {}
    for name in room.files(".log"):
        os.link(room.path(name), kafka / name)
        contents[kafka / name] = room.path(name).read_bytes()
    assert len(contents) >= 3
    return room, contents


@pytest.fixture
def _small_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()


def contents_of(contents: dict[Path, bytes]) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in contents}


@pytest.mark.usefixtures("_small_files")
def test_appends_and_rolls_of_a_log_leave_the_other_names_alone(tmp_path: Path) -> None:
    room, contents = linked_room(tmp_path)
    room.open()
    room.fill(12, b"more")
    room.restart()
    assert read_values(room.log) == [b"value"] * 12 + [b"more"] * 12
    assert contents_of(contents) == contents


@pytest.mark.usefixtures("_small_files")
@pytest.mark.parametrize("recovery_point", [0, 6, 12])
def test_recovery_from_damage_leaves_the_other_names_alone(tmp_path: Path, recovery_point: int) -> None:
    room, contents = linked_room(tmp_path)
    last = room.path(room.files(".log")[-1])
    overwrite(last, last.stat().st_size - 1, b"X")  # through either name
    contents[tmp_path / "kafka" / last.name] = last.read_bytes()
    room.crash(recovery_point=recovery_point)
    room.fill(3, b"more")
    assert read_values(room.log, room.log.log_end_offset - 3) == [b"more"] * 3
    assert contents_of(contents) == contents


@pytest.mark.usefixtures("_small_files")
def test_retention_and_deletion_leave_the_other_names_alone(tmp_path: Path) -> None:
    room, contents = linked_room(tmp_path)
    room.open()
    room.log.bounds.raise_high_watermark(room.log.log_end_offset)
    room.set_config(retention_bytes=TINY.segment_bytes)
    room.log.retention.delete_old_segments(room.now_ms)
    assert room.log.log_start_offset > 0
    room.log.delete()
    assert contents_of(contents) == contents


@pytest.mark.usefixtures("_small_files")
def test_a_copy_that_a_crash_left_half_done_is_removed(tmp_path: Path) -> None:
    room, _ = linked_room(tmp_path)
    left = room.path(room.files(".log")[0] + ".private")
    left.write_bytes(CONTENT[:50])
    room.open()
    assert not left.exists()
    assert [batch.base_offset for batch in iter_batches(CONTENT)] == [0, 1, 2]
