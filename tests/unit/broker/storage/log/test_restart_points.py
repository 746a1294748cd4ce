"""Restart points: a start after a crash reads nothing below one, and knows what it would have read there."""

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from present import present
from truncating import truncate_to
from unit.broker.storage.log_files import overwrite
from unit.broker.storage.log_room import QUICK, START_MS, LogRoom, read_batches, read_values
from unit.broker.storage.restart_room import BATCH, ONE_SEGMENT, fill, take_point
from unit.broker.storage.time_lookups import record_at
from warmlog_broker.storage.config import UNLIMITED, LogConfig
from warmlog_broker.storage.directory.data_dir import StoredState
from warmlog_broker.storage.directory.partition_files import RESTART_POINT_NAME, pack_restart_point, read_restart_point
from warmlog_broker.storage.log import flusher
from warmlog_broker.storage.log.log import Log
from warmlog_protocol.errors import CorruptBatch


@pytest.fixture(autouse=True)
def _any_log_is_worth_a_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher, "IDLE_BATCHES", 1)


@pytest.fixture
def room(quick_path: Path) -> LogRoom:
    return LogRoom(quick_path, ONE_SEGMENT)


def expect(room: LogRoom, count: int) -> None:
    """The log holds `count` values, found by offset and by time, knows its producer, and goes on."""
    assert room.log.log_end_offset == count
    assert [read_batches(room.log, n, max_bytes=1, bound="log_end")[0].values() for n in range(count)] == [
        [b"value-%d" % n] for n in range(count)
    ]
    for n in range(count):
        found = present(record_at(room.log, START_MS + n))
        assert found.offset == n
    assert room.append(b"value-%d" % (count - 1), producer=(1, 0, count - 1)).is_duplicate
    fill(room, count, count + 5)
    room.flush()
    assert len(read_values(room.restart())) == count + 5
    assert room.log.recovery_report.is_uneventful


@pytest.mark.parametrize("count", [0, 3])
def test_a_start_after_a_crash_writes_nothing_into_a_log_that_holds_little(
    room: LogRoom, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(flusher, "IDLE_BATCHES", count + 1)
    fill(room, 0, count)
    room.flush()
    for name in room.files("index"):
        room.path(name).unlink()
    room.set_config(index_interval_bytes=4096)  # no batch gets an entry
    before = {name: room.path(name).stat().st_mtime_ns for name in room.files()}
    room.crash()
    assert {name: room.path(name).stat().st_mtime_ns for name in room.files()} == before
    assert room.log.recovery_report.checked_batches == count
    if count:
        expect(room, count)


def test_nothing_below_the_point_is_read_before_the_log_is_served(room: LogRoom) -> None:
    fill(room, 0, 8)
    point = take_point(room)
    assert (point.offset, point.segment, point.position) == (8, 0, 8 * BATCH)
    fill(room, 8, 10)
    room.crash()
    report = room.log.recovery_report
    assert (report.was_clean, report.checked_batches) == (False, 2)
    assert report.is_uneventful
    expect(room, 10)


def test_an_idle_log_is_not_read_at_all_and_nothing_is_written(room: LogRoom) -> None:
    fill(room, 0, 8)
    take_point(room)
    room.crash()
    before = {name: room.path(name).read_bytes() for name in room.files()}
    for _ in range(3):
        room.crash()
        assert room.log.recovery_report.checked_batches == 0
    after = {name: room.path(name).read_bytes() for name in room.files()}
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == set()
    expect(room, 8)


def test_damage_below_the_point_is_found_by_the_check_in_the_background(room: LogRoom) -> None:
    fill(room, 0, 8)
    take_point(room)
    overwrite(room.segment_path(0), 3 * BATCH + 70, b"x")
    fill(room, 8, 10)
    room.crash()
    log = room.log
    assert log.recovery_report.is_uneventful
    unchecked = present(log.local.unchecked)
    with pytest.raises(CorruptBatch):  # by the reader's own check of the CRC
        _ = [batch.values() for batch in read_batches(log, 3)]
    read_bytes: list[int] = []
    (damage,) = unchecked.check(read_bytes.append)
    assert (damage.position, damage.end_position, damage.first_offset, damage.next_offset) == (
        3 * BATCH,
        4 * BATCH,
        3,
        4,
    )
    assert sum(read_bytes) == 7 * BATCH
    assert log.local.note_checked(unchecked, [damage])
    assert log.local.unchecked is None
    with pytest.raises(CorruptBatch, match=f"{3 * BATCH} to {4 * BATCH}"):
        log.reader.read(3, 1000)
    assert read_values(log, 4) == [b"value-%d" % n for n in range(4, 10)]


def test_the_check_finds_what_is_missing_up_to_the_point(room: LogRoom) -> None:
    fill(room, 0, 8)
    take_point(room)
    fill(room, 8, 9)
    room.crash()
    overwrite(room.segment_path(0), 5 * BATCH, bytes(3 * BATCH))
    unchecked = present(room.log.local.unchecked)
    (damage,) = unchecked.check(lambda _: None)
    assert (damage.first_offset, damage.next_offset, damage.position) == (5, 8, 5 * BATCH)


def test_the_check_finds_nothing_in_a_sound_log_with_large_offsets(room: LogRoom) -> None:
    """A segment holds offsets up to 2^31 - 1 after its base offset, not after 0."""
    room.log.local.roll(room.now_ms, 2**32)
    fill(room, 0, 8)
    take_point(room)
    room.crash()
    assert present(room.log.local.unchecked).check(lambda _: None) == []


def test_what_was_cut_since_is_not_reported(room: LogRoom) -> None:
    fill(room, 0, 8)
    take_point(room)
    overwrite(room.segment_path(0), 3 * BATCH + 70, b"x")
    room.crash()
    unchecked = present(room.log.local.unchecked)
    damage = unchecked.check(lambda _: None)
    truncate_to(room.log, 2, room.now_ms)
    assert not room.log.local.note_checked(unchecked, damage)
    assert room.log.local.damage == ()


def test_a_torn_batch_above_the_point_is_cut(room: LogRoom) -> None:
    fill(room, 0, 8)
    take_point(room)
    fill(room, 8, 11)
    overwrite(room.segment_path(0), 10 * BATCH - 3, b"xxx")
    room.stored = room.stored._replace(offsets=room.log.offsets, clean_end=None)
    room.open()
    assert room.log.recovery_report.checked_batches == 1
    assert len(room.log.recovery_report.kept_aside) == 1
    expect(room, 9)


def test_zeros_after_the_point_are_a_preallocation(quick_path: Path) -> None:
    room = LogRoom(quick_path, LogConfig(segment_bytes=100_000, preallocate=True, retention_ms=UNLIMITED))
    fill(room, 0, 8)
    take_point(room)
    room.crash()
    assert room.log.recovery_report.checked_batches == 0
    assert room.log.recovery_report.cut_bytes == 100_000 - 8 * BATCH
    expect(room, 8)


def test_without_a_checkpoint_that_covers_it_the_point_is_not_used(room: LogRoom) -> None:
    fill(room, 0, 8)
    take_point(room)
    room.crash(recovery_point=7)
    assert room.log.recovery_report.checked_batches == 8
    expect(room, 8)


def test_epochs_that_the_file_lacks_before_the_point_are_collected_from_the_batches(room: LogRoom) -> None:
    fill(room, 0, 4)
    room.flush()
    earlier = room.path("leader-epoch-checkpoint").read_bytes()
    room.leader_epoch = 1
    fill(room, 4, 8)
    take_point(room)
    room.path("leader-epoch-checkpoint").write_bytes(earlier)
    room.crash()
    assert room.log.recovery_report.checked_batches == 0
    assert room.log.epochs.entries == ((0, 0), (1, 4))


def test_a_point_is_written_only_once_a_checkpoint_covers_it(room: LogRoom) -> None:
    fill(room, 0, 8)
    first = take_point(room)
    fill(room, 8, 12)
    room.flush()
    room.log.flusher.wants_restart_point()
    assert room.log.flusher.wants_restart_point()
    room.flush()
    assert not room.log.flusher.checkpointed(11)
    assert room.log.flusher.prepare() is None
    assert read_restart_point(room.directory) == first
    assert f"{8:020d}.snapshot" in room.files()
    assert room.log.flusher.checkpointed(12)
    room.flush()
    assert room.files(".snapshot") == [f"{12:020d}.snapshot"]


def lose(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    os.truncate(path, 0)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def fill_with_garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [lose, empty, halve, fill_with_garbage, zero])
@pytest.mark.parametrize("kind", [".index", ".timeindex", ".snapshot", RESTART_POINT_NAME, "leader-epoch-checkpoint"])
@pytest.mark.parametrize("unflushed", [0, 4])
def test_what_a_power_cut_did_to_side_files_is_noticed(
    room: LogRoom, damage: Callable[[Path], None], kind: str, unflushed: int
) -> None:
    fill(room, 0, 40)
    take_point(room)
    fill(room, 40, 40 + unflushed)
    room.log.local.active.indexes.write_out()
    for name in room.files(kind):
        damage(room.path(name))
    room.crash()
    assert room.log.recovery_report.damage == []
    assert room.log.recovery_report.cut_bytes == 0
    expect(room, 40 + unflushed)


def test_entries_after_the_point_that_did_not_reach_the_disk_are_there_again(room: LogRoom) -> None:
    fill(room, 0, 40)
    point = take_point(room)
    fill(room, 40, 200)
    room.log.local.active.indexes.write_out()
    whole = room.segment_path(0, ".index").read_bytes()
    for kind, kept in ((".index", point.index_entries * 8), (".timeindex", point.timeindex_entries * 12)):
        overwrite(room.segment_path(0, kind), kept, random.Random(1).randbytes(800))
    room.crash()
    found = present(room.log.local.active.indexes.for_offsets())
    found.write_out()
    assert room.segment_path(0, ".index").read_bytes() == whole[: found.size_bytes]
    expect(room, 200)


@pytest.mark.parametrize("change", [{"position": 1}, {"position": -1}, {"position": BATCH}, {"offset": -1}])
def test_a_point_to_which_no_batches_lead_is_not_used(room: LogRoom, change: dict[str, int]) -> None:
    fill(room, 0, 8)
    point = take_point(room)
    fill(room, 8, 10)
    room.flush()
    wrong = point._replace(**{name: getattr(point, name) + by for name, by in change.items()})
    room.path(f"{wrong.offset:020d}.snapshot").write_bytes(room.path(f"{8:020d}.snapshot").read_bytes())
    room.path(RESTART_POINT_NAME).write_bytes(pack_restart_point(wrong))
    room.crash()
    assert room.log.recovery_report.checked_batches == 10
    assert room.log.recovery_report.is_uneventful
    expect(room, 10)


def test_a_damaged_base_offset_right_after_the_point_is_damage_there(room: LogRoom) -> None:
    fill(room, 0, 8)
    take_point(room)
    fill(room, 8, 10)
    room.flush()
    overwrite(room.segment_path(0), 8 * BATCH, (9).to_bytes(8, "big"))
    room.crash()
    (damage,) = room.log.recovery_report.damage
    assert (damage.first_offset, damage.next_offset) == (8, 9)
    assert room.log.log_end_offset == 10


def test_what_is_torn_right_after_the_point_is_cut_and_nothing_before_it_is_read(room: LogRoom) -> None:
    fill(room, 0, 8)
    take_point(room)
    fill(room, 8, 10)
    overwrite(room.segment_path(0), 8 * BATCH + 5, b"torn")
    room.stored = room.stored._replace(offsets=room.log.offsets, clean_end=None)
    room.open()
    assert room.log.recovery_report.checked_batches == 0
    assert len(room.log.recovery_report.kept_aside) == 1
    expect(room, 8)


def test_a_truncation_removes_the_point(room: LogRoom) -> None:
    fill(room, 0, 8)
    take_point(room)
    truncate_to(room.log, 4, room.now_ms)
    assert read_restart_point(room.directory) is None
    for n in range(4, 9):
        room.append(b"other-%d" % n)
    room.flush()
    room.crash()
    assert room.log.log_end_offset == 9
    assert read_values(room.log, 4) == [b"other-%d" % n for n in range(4, 9)]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.EROFS])
def test_a_full_or_read_only_disk_leaves_the_point_out_and_the_flush_succeeds(
    room: LogRoom, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fill(room, 0, 8)
    point = take_point(room)
    fill(room, 8, 16)
    room.flush()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as full:
        full.setattr("warmlog_broker.storage.producer.snapshots.write_file", refuse)
        room.log.flusher.wants_restart_point()
        assert room.log.flusher.wants_restart_point()
        room.flush()
    assert not room.log.flusher.checkpointed(room.log.recovery_point)
    assert read_restart_point(room.directory) == point
    room.crash()
    expect(room, 16)


def test_much_that_was_written_gets_a_point_without_a_pause(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher, "RESTART_BATCHES", 5)
    monkeypatch.setattr(flusher, "RESTART_BATCHES_A_PRODUCER", 1)
    room = LogRoom(quick_path, ONE_SEGMENT)
    for n in range(40):
        fill(room, n, n + 1)
        room.flush()
        room.log.flusher.checkpointed(room.log.recovery_point)
    point = present(read_restart_point(room.directory))
    assert point.offset >= 30
    room.crash()
    assert room.log.recovery_report.checked_batches == 40 - point.offset
    expect(room, 40)


def state_of(log: Log) -> tuple[object, ...]:
    """What a log knows besides its records, as far as a start finds it."""
    producers = {
        entry.producer_id: (entry.epoch, entry.next_sequence, entry.transaction_first_offset, entry.coordinator_epoch)
        for entry in log.producers.entries
    }
    aborted = [
        list(segment.transactions) if segment.transactions.file_exists() else [] for segment in log.local.segments
    ]
    stable = log.bounds.last_stable_offset
    largest = [segment.max_timestamp for segment in log.local.segments]
    return log.log_end_offset, producers, aborted, log.epochs.entries, stable, largest


Step = tuple[str, int]


def steps() -> st.SearchStrategy[list[Step]]:
    """Many of them with a restart point, which takes several steps in order."""
    point: list[Step] = [(kind, 0) for kind in ("flush", "look", "look", "flush", "checkpoint", "flush")]
    kinds = st.sampled_from(["append", "append", "append", "transaction", "abort", "commit", "flush", "checkpoint"])
    one = st.tuples(kinds, st.integers(0, 2)).map(lambda step: [step])
    return st.lists(one | st.just(point), max_size=60).map(lambda parts: [step for part in parts for step in part])


class Work:
    """What is written to a log, step by step, and which recovery point a checkpoint has."""

    def __init__(self, room: LogRoom) -> None:
        self.room = room
        self.recovery_point = 0
        self._sequences = [0, 0, 0]

    def do(self, step: str, producer: int) -> None:
        room = self.room
        room.now_ms += 1
        entry = room.log.producers.get(10 + producer)
        is_open = entry is not None and entry.transaction_first_offset >= 0
        if step == "append":
            room.append(b"value" * producer, producer=(producer, 0, self._sequences[producer]))
            self._sequences[producer] += 1
        elif step == "transaction":
            sequence = entry.next_sequence if entry is not None and is_open else 0
            room.append_in_transaction(b"t", producer=(10 + producer, 0, sequence))
        elif step in ("abort", "commit") and is_open:
            room.end_transaction(10 + producer, commits=step == "commit")
        elif step == "flush":
            room.flush()
        elif step == "look":
            room.log.flusher.wants_restart_point()
        elif step == "checkpoint":
            self.recovery_point = room.log.recovery_point
            room.log.flusher.checkpointed(self.recovery_point)


def opened_beside(room: LogRoom, recovery_point: int) -> LogRoom:
    """A copy of a log that has crashed, opened without its restart point."""
    copy = LogRoom.__new__(LogRoom)
    copy.__dict__ |= room.__dict__ | {"directory": room.directory.parent / "whole" / room.directory.name}
    shutil.copytree(room.directory, copy.directory)
    (copy.directory / RESTART_POINT_NAME).unlink(missing_ok=True)
    copy.stored = StoredState(room.log.offsets._replace(recovery_point=recovery_point), None)
    copy.open()
    return copy


@settings(max_examples=100, deadline=None)
@given(steps(), st.booleans(), st.integers(0, 400))
def test_a_start_from_a_point_knows_what_one_from_the_beginning_knows(
    planned: list[Step], is_index_written: bool, torn_bytes: int
) -> None:
    with TemporaryDirectory(dir=QUICK) as name:
        room = LogRoom(Path(name), LogConfig(segment_bytes=4000, index_interval_bytes=150, retention_ms=UNLIMITED))
        work = Work(room)
        for step, producer in planned:
            work.do(step, producer)
        point = read_restart_point(room.directory)
        if point is not None:
            assert f"{point.offset:020d}.snapshot" in room.files()
            assert point.offset <= work.recovery_point
        if is_index_written:
            room.log.local.active.indexes.write_out()
        if torn_bytes:
            with room.log.local.active.path.open("ab") as file:
                file.write(random.Random(torn_bytes).randbytes(torn_bytes))
        high_watermark = room.log.high_watermark
        whole = opened_beside(room, work.recovery_point)
        room.crash(recovery_point=work.recovery_point)
        for log in (room.log, whole.log):
            log.bounds.raise_high_watermark(high_watermark)
            for segment in log.local.segments:
                log.local.load_transaction_index(segment)
        assert state_of(room.log) == state_of(whole.log)
        assert room.log.recovery_report.checked_batches <= whole.log.recovery_report.checked_batches
        assert read_values(room.log) == read_values(whole.log)
        room.restart()
        assert room.log.recovery_report.is_uneventful
