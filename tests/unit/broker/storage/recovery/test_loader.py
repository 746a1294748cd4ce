"""Opening logs: after a clean stop without a scan, with side files missing or damaged, and those that Kafka wrote."""

import shutil
from pathlib import Path

import pytest

from kafka_sample import SAMPLE
from unit.broker.storage.log_room import START_MS, TINY, LogRoom, read_values
from unit.broker.storage.time_lookups import record_at
from warmlog_broker.storage.config import UNLIMITED, LogConfig
from warmlog_broker.storage.directory.data_dir import CleanEnd, LogOffsets, StoredState
from warmlog_broker.storage.index.abstract_index import AbstractIndex
from warmlog_broker.storage.segment import file_records
from warmlog_broker.storage.segment.file_records import FileRecords
from warmlog_protocol.batch import read_header
from warmlog_protocol.errors import OutOfOrderSequence


@pytest.fixture
def room(quick_path: Path) -> LogRoom:
    room = LogRoom(quick_path, TINY)
    for sequence in range(40):
        room.append(b"%d" % sequence, producer=(1, 0, sequence), timestamp_ms=START_MS + sequence)
        if sequence == 20:
            room.leader_epoch = 1
    room.flush()
    return room


def check_whole(room: LogRoom) -> None:
    assert read_values(room.log) == [b"%d" % n for n in range(40)]
    for n in (0, 7, 20, 39):
        assert record_at(room.log, START_MS + n) == (START_MS + n, n, 0 if n <= 20 else 1)
    assert room.log.epochs.entries == ((0, 0), (1, 21))
    assert room.append(b"39", producer=(1, 0, 39)).is_duplicate
    with pytest.raises(OutOfOrderSequence):
        room.append(b"41", producer=(1, 0, 41))


def test_after_a_clean_stop_no_log_is_read_and_no_index_opened(room: LogRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    room.close()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a clean start must not open this")

    with monkeypatch.context() as strict:
        strict.setattr(AbstractIndex, "__init__", refuse)
        strict.setattr(FileRecords, "_opened", refuse)
        strict.setattr(file_records, "_pread", refuse)
        log = room.open()
        assert (log.log_end_offset, log.recovery_point, log.high_watermark) == (40, 40, 40)
        assert log.recovery_report.was_clean
        assert log.recovery_report.is_uneventful
    check_whole(room)


def test_a_clean_restart_changes_no_file(room: LogRoom) -> None:
    room.close()
    before = {name: room.path(name).read_bytes() for name in room.files()}
    room.open()
    room.close()
    assert {name: room.path(name).read_bytes() for name in room.files()} == before


def test_a_log_may_be_closed_without_syncing_when_the_caller_syncs_the_file_system(room: LogRoom) -> None:
    room.leader_epoch = 1
    end = room.log.close(sync=False)
    room.stored = StoredState(room.log.offsets, end)
    room.open()
    assert room.log.recovery_report.was_clean
    assert room.log.recovery_report.is_uneventful
    check_whole(room)


def test_a_new_log_is_empty_and_begins_at_zero(quick_path: Path) -> None:
    room = LogRoom(quick_path)
    assert (room.log.log_start_offset, room.log.log_end_offset, len(room.log.local.segments)) == (0, 0, 1)
    assert room.log.recovery_report.is_uneventful
    assert room.files() == [f"{0:020d}.log", "row-gaps"]


@pytest.mark.parametrize("kind", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "zeros"])
@pytest.mark.parametrize("was_clean", [True, False])
def test_side_files_are_rebuilt_whatever_happened_to_them(
    room: LogRoom, kind: str, damage: str, was_clean: bool
) -> None:
    room.close()
    if not was_clean:
        room.stored = room.stored._replace(clean_end=None)
    for name in room.files(kind):
        path = room.path(name)
        if damage == "missing":
            path.unlink()
        else:
            size = path.stat().st_size
            path.write_bytes({"empty": b"", "garbage": b"\xa5" * (size + 3), "zeros": bytes(size)}[damage])
    room.open()
    if kind == ".snapshot":
        assert ("producer snapshot at 40" in str(room.log.recovery_report)) == was_clean
    check_whole(room)
    room.restart()
    check_whole(room)


def test_a_log_that_changed_after_its_clean_stop_is_checked(room: LogRoom) -> None:
    end = room.close()
    active = room.segment_path(int(room.files(".log")[-1][:20]))
    with active.open("ab") as file:
        file.write(b"appended by a stranger")
    room.open()
    report = room.log.recovery_report
    assert not report.was_clean
    assert f"the clean stop left {end.active_segment_bytes}" in str(report)
    assert report.cut_bytes == len(b"appended by a stranger")
    check_whole(room)


def test_a_marker_for_another_log_is_not_believed(room: LogRoom) -> None:
    room.close()
    room.stored = StoredState(LogOffsets(7, 0, 7), CleanEnd(7, room.log.local.active.size_bytes))
    room.open()
    assert not room.log.recovery_report.was_clean
    check_whole(room)


def test_the_start_offset_survives_and_lost_data_below_it_sets_the_log_anew(room: LogRoom) -> None:
    room.log.bounds.raise_log_start(33)
    room.crash()
    assert (room.log.log_start_offset, room.log.log_end_offset) == (33, 40)
    assert read_values(room.log) == [b"%d" % n for n in range(33, 40)]
    path = room.segment_path(0)
    path.write_bytes(b"x" * path.stat().st_size)
    room.crash(recovery_point=0)
    assert (room.log.log_start_offset, room.log.log_end_offset, len(room.log.local.segments)) == (33, 33, 1)
    assert room.append(b"new").first_offset == 33
    assert len([name for name in room.files() if name.endswith(".log.cut")]) > 5


def test_foreign_files_and_directories_are_left_alone(room: LogRoom) -> None:
    room.close()
    room.path("notes.txt").write_text("mine")
    room.path("notes.swap").write_text("mine too")
    room.path("00000000000000000099.index").write_text("belongs to nothing")
    room.path("sub").mkdir()
    room.open()
    assert room.path("notes.txt").read_text() == "mine"
    assert room.path("notes.swap").exists()
    assert not room.path("00000000000000000099.index").exists()
    assert room.path("sub").is_dir()
    check_whole(room)


def test_the_file_of_leader_epochs_is_cut_to_the_log(room: LogRoom) -> None:
    room.close()
    room.path("leader-epoch-checkpoint").write_bytes(b"0\n3\n0 0\n1 21\n9 400\n")
    room.stored = room.stored._replace(clean_end=None)
    room.open()
    assert room.log.epochs.entries == ((0, 0), (1, 21))


def test_epochs_that_there_never_were_are_damage(room: LogRoom) -> None:
    room.close()
    room.path("leader-epoch-checkpoint").write_bytes(b"0\n2\n0 0\n7 21\n")
    room.open()
    assert "at most epoch 1 expected, 7 found" in str(room.log.recovery_report)
    check_whole(room)


def adopt(quick_path: Path, name: str, recovery_point: int) -> LogRoom:
    room = LogRoom(quick_path, LogConfig(segment_bytes=1 << 20, retention_ms=UNLIMITED))
    room.log.delete()
    shutil.copytree(SAMPLE / name, room.directory)
    room.stored = StoredState(LogOffsets(recovery_point, 0, recovery_point), None)
    room.open()
    return room


@pytest.mark.parametrize("recovery_point", [0, 14_000])
def test_a_partition_that_kafka_wrote_is_served_and_goes_on(quick_path: Path, recovery_point: int) -> None:
    room = adopt(quick_path, "flights-0", recovery_point)
    log = room.log
    assert log.recovery_report.is_uneventful
    assert (log.log_start_offset, log.log_end_offset, len(log.local.segments)) == (5_468, 14_000, 2)
    assert (log.epochs.latest_epoch, log.producers.max_producer_id) == (0, 3)
    flights = read_values(log)
    assert len(flights) == 14_000 - 5_468
    assert flights[0].startswith(b"{")  # type: ignore[union-attr]
    entry = log.producers.get(3)
    assert entry is not None
    assert (entry.next_sequence, entry.batches[-1].last_offset) == (2000, 13_999)
    assert room.append(b"next", producer=(3, 0, 2000)).first_offset == 14_000
    room.flush()
    assert len(read_values(room.restart())) == 14_001 - 5_468


@pytest.mark.parametrize("recovery_point", [0, 375])
def test_a_partition_with_transactions_that_kafka_wrote_is_stable_to_its_end(
    quick_path: Path, recovery_point: int
) -> None:
    room = adopt(quick_path, "transfers-0", recovery_point)
    log = room.log
    assert log.recovery_report.is_uneventful
    assert log.log_end_offset == log.high_watermark == log.bounds.last_stable_offset == 375
    assert room.files(".txnindex") == [f"{0:020d}.txnindex"]
    assert {entry.producer_id: entry.coordinator_epoch for entry in log.producers.entries} == {4: 0, 5: 0, 6: 0}
    assert len(read_values(log)) == 375


def test_a_replayed_log_knows_transactions_as_its_snapshot_does(quick_path: Path) -> None:
    room = adopt(quick_path, "transfers-0", 0)
    from_snapshot = {entry.producer_id: entry.batches[-1][:3] for entry in room.log.producers.entries}
    room.log.close()
    for name in room.files(".snapshot"):
        room.path(name).unlink()
    room.open()
    replayed = {entry.producer_id: entry.batches[-1][:3] for entry in room.log.producers.entries}
    assert replayed == from_snapshot
    assert room.log.producers.transactions.first_unstable_offset(room.log.high_watermark) is None


def test_an_open_transaction_in_an_adopted_log_bounds_what_is_stable(quick_path: Path) -> None:
    room = adopt(quick_path, "transfers-0", 0)
    room.log.close()
    written = batches_of(room.segment_path(0))
    data = bytearray(next(batch for batch in written if read_header(batch).is_transactional))
    data[0:8] = (375).to_bytes(8, "big")
    with room.segment_path(0).open("ab") as file:
        file.write(data)
    room.open()
    assert (room.log.log_end_offset, room.log.bounds.last_stable_offset) == (375 + read_header(data).record_count, 375)
    assert read_values(room.log, 370, bound="committed") == read_values(room.log, 370, bound="log_end")[:5]


def batches_of(path: Path) -> list[bytes]:
    content, position, found = path.read_bytes(), 0, []
    while position < len(content):
        size = read_header(content, position).size_bytes
        found.append(content[position : position + size])
        position += size
    return found
