"""Indexes rebuilt from a log: the bytes that Kafka wrote, and those that a recovery writes."""

import os
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest

from kafka_sample import SAMPLE
from unit.broker.storage.log_files import overwrite
from unit.broker.storage.log_room import TINY, LogRoom, read_values
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.verify.partition import verify_partition
from warmlog_broker.storage.verify.rebuild import rebuild_partition
from warmlog_broker.storage.verify.report import Report
from warmlog_broker.storage.verify.segment import Expectations

INDEXES = (".index", ".timeindex", ".txnindex")
SIDES = (*INDEXES, ".snapshot")


def contents(directory: Path, kinds: tuple[str, ...] = SIDES) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.suffix in kinds}


@pytest.fixture
def room(tmp_path: Path) -> LogRoom:
    room = LogRoom(tmp_path)
    for number in range(12):
        room.now_ms += 10
        room.append(b"value", b"other", producer=(7, 0, 2 * number))
    room.flush()
    room.close()
    return room


@pytest.mark.parametrize(("partition", "interval_bytes"), [("flights-0", 1024), ("transfers-0", 512)])
@pytest.mark.parametrize("is_missing", [True, False])
def test_kafkas_own_files_come_out_byte_for_byte(
    tmp_path: Path, partition: str, interval_bytes: int, is_missing: bool
) -> None:
    directory = shutil.copytree(SAMPLE / partition, tmp_path / partition, ignore=shutil.ignore_patterns("*.dump"))
    kafkas = contents(directory)
    first_snapshot = f"{min(int(path.stem) for path in directory.glob('*.log')):020d}.snapshot"
    for name, content in kafkas.items():
        if is_missing and name != first_snapshot:
            (directory / name).unlink()
        elif name != first_snapshot:
            (directory / name).write_bytes(content[:-3] + b"???")
    result = rebuild_partition(directory, LogConfig(index_interval_bytes=interval_bytes), with_snapshots=True)
    assert contents(directory) == kafkas
    assert result.remarks == []
    assert {path.name for path in result.written} == set(kafkas) - {first_snapshot}


def test_a_recovery_writes_the_same(room: LogRoom) -> None:
    rebuilt = shutil.copytree(room.directory, room.directory.with_name("copy"))
    for path in rebuilt.iterdir():
        if path.suffix in INDEXES:
            path.unlink()
    rebuild_partition(rebuilt, TINY)
    room.stored = room.stored._replace(clean_end=None, offsets=room.stored.offsets._replace(recovery_point=0))
    for path in room.directory.iterdir():
        if path.suffix in INDEXES:
            path.unlink()
    room.open()
    room.close()
    assert contents(rebuilt, INDEXES) == contents(room.directory, INDEXES)


def test_the_log_files_are_not_touched_and_the_log_goes_on(room: LogRoom) -> None:
    before = {name: (room.path(name).read_bytes(), room.path(name).stat().st_mtime_ns) for name in room.files(".log")}
    rebuild_partition(room.directory, TINY, with_snapshots=True)
    assert {name: (room.path(name).read_bytes(), room.path(name).stat().st_mtime_ns) for name in before} == before
    report = Report()
    verify_partition(room.directory, Expectations(), report)
    assert [finding.path for finding in report.findings] == [str(room.path("partition.metadata"))]
    room.open()
    assert room.log.recovery_report.was_clean
    room.fill(2, b"more")
    assert read_values(room.log) == [b"value", b"other"] * 12 + [b"more"] * 2


def test_what_lies_behind_damage_can_be_reached_again(room: LogRoom) -> None:
    name = room.files(".log")[0]
    overwrite(room.path(name), 40, b"\xff\xff")
    result = rebuild_partition(room.directory, TINY)
    assert [remark for remark in result.remarks if "CRC" in remark]
    report = Report()
    verify_partition(room.directory, Expectations(), report)
    assert {Path(finding.path).name for finding in report.findings} == {name, "partition.metadata"}


def test_transactions_are_left_alone_where_the_beginning_is_not_known(tmp_path: Path) -> None:
    directory = shutil.copytree(SAMPLE / "flights-0", tmp_path / "flights-0")
    (directory / "00000000000000005468.snapshot").unlink()
    stray = directory / "00000000000000011639.txnindex"
    stray.write_bytes(b"something")
    result = rebuild_partition(directory, LogConfig(index_interval_bytes=1024), with_snapshots=True)
    assert stray.read_bytes() == b"something"
    assert len(result.remarks) == 1 + 2


def test_an_index_of_aborted_transactions_that_belongs_to_none_is_removed(room: LogRoom) -> None:
    stray = room.segment_path(0, ".txnindex")
    stray.write_bytes(bytes(34))
    rebuild_partition(room.directory, TINY)
    assert not stray.exists()


def test_a_crash_leaves_each_file_old_or_new_and_nothing_in_the_way(room: LogRoom) -> None:
    old = contents(room.directory, INDEXES)
    with patch("os.fsync", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        rebuild_partition(room.directory, LogConfig(index_interval_bytes=50, segment_index_bytes=4096))
    assert contents(room.directory, INDEXES) == old
    assert room.files(".rebuilt")
    room.open()
    assert not room.files(".rebuilt")
    assert os.listdir(room.directory)  # noqa: PTH208
