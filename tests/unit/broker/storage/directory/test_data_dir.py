"""The data directory: its lock, its format, how it was left."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from other_user import NOBODY, directory_open_to_all
from unit.broker.data_directories import open_directory
from warmlog_broker.storage.directory import data_dir, dir_lock, properties
from warmlog_broker.storage.directory.topic_partition import TopicPartition, marked_directory_name

KEY = TopicPartition("flights", 0)
OTHER = TopicPartition("flights", 1)


def test_a_new_directory_is_created_with_its_format(tmp_path: Path) -> None:
    path = tmp_path / "a" / "data"
    directory = open_directory(path)
    assert "format.version=1" in (path / properties.FORMAT_NAME).read_text()
    assert not directory.was_clean
    assert directory.partitions() == {}
    assert directory.stored_state(KEY) == data_dir.StoredState(data_dir.LogOffsets(0, 0, 0), None)
    directory.close()


def test_a_data_directory_of_kafka_is_refused_and_not_touched(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\n")
    (tmp_path / data_dir.RECOVERY_POINTS_NAME).write_text("0\n1\nflights 0 7\n")
    with pytest.raises(properties.ForeignDirectory, match="warmlog log adopt"):
        open_directory(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meta.properties", data_dir.RECOVERY_POINTS_NAME]
    assert (tmp_path / data_dir.RECOVERY_POINTS_NAME).read_text() == "0\n1\nflights 0 7\n"


def test_a_second_process_is_refused_naming_the_lock_and_its_holder(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from warmlog_broker.storage.directory.data_dir import DataDirectory\n"
        "d = DataDirectory.lock(pathlib.Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(dir_lock.DirectoryLocked) as refused:
            open_directory(tmp_path)
        assert str(tmp_path / dir_lock.LOCK_NAME) in str(refused.value)
        assert f"process {holder.pid} " in str(refused.value)
        holder.kill()
    open_directory(tmp_path).close()


def test_the_lock_is_given_back_by_close_and_not_shared_within_a_process(tmp_path: Path) -> None:
    first = open_directory(tmp_path)
    with pytest.raises(dir_lock.DirectoryLocked, match=f"process {os.getpid()} "):
        open_directory(tmp_path)
    first.close()
    first.close()
    open_directory(tmp_path).close()


def test_a_newer_format_is_refused_in_words_and_nothing_is_changed(tmp_path: Path) -> None:
    (tmp_path / properties.FORMAT_NAME).write_text("# from the future\nformat.version=2\n")
    (tmp_path / data_dir.CLEAN_MARKER_NAME).write_text("{}")
    with pytest.raises(properties.UnsupportedFormat, match="written by a newer warmlog: its format version is 2"):
        open_directory(tmp_path)
    assert (tmp_path / data_dir.CLEAN_MARKER_NAME).exists()
    (tmp_path / properties.FORMAT_NAME).write_text("format.version=one\n")
    with pytest.raises(properties.UnsupportedFormat, match=r"expected a line format.version=1"):
        open_directory(tmp_path)
    (tmp_path / properties.FORMAT_NAME).write_text("format.version=1\n")
    open_directory(tmp_path).close()


def test_what_cannot_be_a_directory_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "data", Path("/proc/warmlog")):
        with pytest.raises(properties.DataDirectoryError) as refused:
            open_directory(path)
        assert f"data directory {path} cannot be used" in str(refused.value)


def test_a_directory_that_cannot_be_written_is_refused() -> None:
    with directory_open_to_all() as path:
        path.chmod(0o555)
        user = os.geteuid()
        try:
            if user == 0:  # who may write everywhere
                os.seteuid(NOBODY)
            with pytest.raises(properties.DataDirectoryError) as refused:
                open_directory(path)
        finally:
            os.seteuid(user)
        assert f"(uid {NOBODY if user == 0 else user}) may write to" in str(refused.value)
        assert str(path / dir_lock.LOCK_NAME) in str(refused.value)


def stop_cleanly(path: Path, offsets: data_dir.LogOffsets, end: data_dir.CleanEnd) -> None:
    directory = open_directory(path)
    directory.write_checkpoints({KEY: offsets})
    directory.mark_clean({KEY: end})
    directory.close()


def test_a_clean_stop_is_known_at_the_next_start_and_only_then(tmp_path: Path) -> None:
    stop_cleanly(tmp_path, data_dir.LogOffsets(10, 2, 9), data_dir.CleanEnd(10, 700))
    directory = open_directory(tmp_path)
    assert not (tmp_path / data_dir.CLEAN_MARKER_NAME).exists()
    assert directory.was_clean
    assert directory.stored_state(KEY) == data_dir.StoredState(
        data_dir.LogOffsets(10, 2, 9), data_dir.CleanEnd(10, 700)
    )
    assert directory.stored_state(OTHER).clean_end is None
    directory.close()
    directory = open_directory(tmp_path)
    assert not directory.was_clean
    assert directory.stored_state(KEY) == data_dir.StoredState(data_dir.LogOffsets(10, 2, 9), None)
    directory.close()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"version": 1}', b'{"version": 0, "logs": {"x": [1, 2]}}', b'{"version":0,"logs":{"a-0":7}}'],
)
def test_a_damaged_marker_counts_as_a_crash(tmp_path: Path, content: bytes) -> None:
    stop_cleanly(tmp_path, data_dir.LogOffsets(10, 0, 10), data_dir.CleanEnd(10, 700))
    (tmp_path / data_dir.CLEAN_MARKER_NAME).write_bytes(content)
    directory = open_directory(tmp_path)
    assert not directory.was_clean
    assert not (tmp_path / data_dir.CLEAN_MARKER_NAME).exists()
    assert directory.stored_state(KEY) == data_dir.StoredState(data_dir.LogOffsets(10, 0, 10), None)
    directory.close()


def test_kafkas_marker_is_neither_believed_nor_removed(tmp_path: Path) -> None:
    (tmp_path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":3}')
    directory = open_directory(tmp_path)
    assert not directory.was_clean
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    directory.close()


def test_a_log_whose_marker_and_checkpoint_differ_is_checked(tmp_path: Path) -> None:
    stop_cleanly(tmp_path, data_dir.LogOffsets(10, 0, 10), data_dir.CleanEnd(11, 700))
    directory = open_directory(tmp_path)
    assert directory.stored_state(KEY).clean_end is None
    directory.close()


def test_a_damaged_checkpoint_means_that_logs_are_checked_from_their_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop_cleanly(tmp_path, data_dir.LogOffsets(10, 2, 10), data_dir.CleanEnd(10, 700))
    (tmp_path / data_dir.RECOVERY_POINTS_NAME).write_text("0\n7\nnonsense\n")
    with caplog.at_level(logging.WARNING):
        directory = open_directory(tmp_path)
    assert "every log is checked from its beginning" in caplog.text
    assert directory.stored_state(KEY) == data_dir.StoredState(data_dir.LogOffsets(0, 2, 10), None)
    directory.close()


def test_partitions_are_found_by_name_and_everything_else_is_left_alone(tmp_path: Path) -> None:
    deleted = marked_directory_name(KEY, "delete")
    stray = f"flights-7.{uuid4().hex}-stray"
    for name in ("flights-0", "a-b-12", deleted, stray, "lost+found", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "file-3").touch()
    directory = open_directory(tmp_path)
    assert directory.partitions() == {KEY: tmp_path / "flights-0", TopicPartition("a-b", 12): tmp_path / "a-b-12"}
    assert directory.deleted_partitions() == [tmp_path / deleted]
    assert directory.partition_path(KEY) == tmp_path / "flights-0"
    directory.close()
    assert (tmp_path / "notes").exists()
    assert (tmp_path / stray).exists()


def test_only_the_directory_of_a_deleted_partition_can_be_removed(tmp_path: Path) -> None:
    deleted = tmp_path / marked_directory_name(KEY, "delete")
    deleted.mkdir()
    (deleted / f"{0:020d}.log").touch()
    data_dir.remove_deleted_partition(deleted)
    assert not deleted.exists()
    for name in ("flights-0", "notes"):
        (tmp_path / name).mkdir()
        with pytest.raises(ValueError, match="not the directory of a deleted partition"):
            data_dir.remove_deleted_partition(tmp_path / name)


def test_the_marker_says_how_each_log_was_left(tmp_path: Path) -> None:
    stop_cleanly(tmp_path, data_dir.LogOffsets(10, 0, 10), data_dir.CleanEnd(10, 700))
    assert json.loads((tmp_path / data_dir.CLEAN_MARKER_NAME).read_bytes()) == {
        "version": 0,
        "logs": {"flights-0": [10, 700]},
    }


def test_the_end_of_the_last_compaction_is_kept_in_kafkas_file_for_those_that_had_one(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    other = TopicPartition("other", 3)
    directory.write_checkpoints({KEY: data_dir.LogOffsets(10, 2, 9, 7), other: data_dir.LogOffsets(5, 0, 5)})
    directory.close()
    assert (tmp_path / "cleaner-offset-checkpoint").read_text() == f"0\n1\n{KEY.topic} {KEY.partition} 7\n"
    directory = open_directory(tmp_path)
    assert directory.stored_state(KEY).offsets.first_dirty_offset == 7
    assert directory.stored_state(other).offsets.first_dirty_offset == 0
    directory.close()
