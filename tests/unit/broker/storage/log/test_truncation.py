"""Cutting a log back, and emptying it: what is left, what readers see, and what a crash in the middle leaves."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest

from present import present
from truncating import truncate_fully, truncate_to
from unit.broker.storage.crash_points import crash_at
from unit.broker.storage.log_room import START_MS, LogRoom, read_batches, read_values
from unit.broker.storage.time_lookups import record_at
from warmlog_broker.storage.directory.data_dir import LogOffsets, StoredState
from warmlog_broker.storage.directory.partition_files import (
    REMOVED_BELOW_NAME,
    TRUNCATION_NAME,
    Truncation,
    read_truncation,
    write_truncation,
)
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.segment.file_records import DamagedLog
from warmlog_protocol.errors import CorruptBatch, StorageError

NOW_MS = START_MS


def numbered(count: int, first: int = 0) -> list[bytes | None]:
    return [b"%d" % n for n in range(first, first + count)]


def filled(room: LogRoom, count: int, first: int = 0) -> None:
    """Appends batches of one numbered record, and flushes."""
    for n in range(first, first + count):
        room.append(b"%d" % n)
    room.flush()


class TestTruncateTo:
    def test_ul_38_the_log_end_and_what_lies_behind_it_changes_nothing(self, room: LogRoom) -> None:
        filled(room, 10)
        size = room.log.local.segments.size_bytes
        assert not truncate_to(room.log, 10, NOW_MS)
        assert not truncate_to(room.log, 11, NOW_MS)
        assert (room.log.log_end_offset, room.log.local.segments.size_bytes) == (10, size)
        assert TRUNCATION_NAME not in room.files()

    def test_a_negative_offset_is_refused(self, room: LogRoom) -> None:
        with pytest.raises(ValueError, match="-1"):
            truncate_to(room.log, -1, NOW_MS)

    def test_ll_11_later_segments_go_and_the_one_that_holds_the_offset_is_active(self, room: LogRoom) -> None:
        for n in range(12):
            if n in (3, 6, 9):
                room.log.local.roll(NOW_MS)
            room.append(b"%d" % n)
        room.log.local.roll(NOW_MS)
        assert len(room.log.local.segments) == 5
        truncate_to(room.log, 7, NOW_MS)
        assert len(room.log.local.segments) == 3
        assert room.log.local.active.base_offset == 6
        assert room.log.log_end_offset == 7
        assert len(read_batches(room.log, 6, bound="log_end")) == 1
        assert len(room.files(".log.deleted")) == 2
        assert room.append(b"7").first_offset == 7

    def test_an_older_segment_that_becomes_active_again_has_room_for_entries(self, room: LogRoom) -> None:
        filled(room, 10)
        truncate_to(room.log, 1, NOW_MS)
        assert not room.log.local.active.indexes.are_full()
        filled(room, 9, first=1)
        assert read_values(room.log) == numbered(10)
        found = present(record_at(room.log, NOW_MS))
        assert found.offset == 0

    def test_ul_16_an_epoch_without_batches_goes_though_no_batch_does(self, room: LogRoom) -> None:
        truncate_fully(room.log, 27, NOW_MS)
        room.leader_epoch = 19
        filled(room, 2)
        room.log.begin_epoch(20)
        assert room.log.epochs.entries == ((19, 27), (20, 29))
        truncate_to(room.log, 29, NOW_MS)
        assert room.log.epochs.entries == ((19, 27),)
        room.log.begin_epoch(24)
        truncate_to(room.log, 30, NOW_MS)
        assert (room.log.epochs.entries, room.log.log_end_offset) == (((19, 27),), 29)

    def test_ps_04_producers_are_what_they_were_at_the_offset(self, room: LogRoom) -> None:
        for sequence in range(6):
            room.append(b"%d" % sequence, producer=(7, 0, sequence))
            if sequence in (1, 3):
                room.log.local.roll(NOW_MS)
        room.flush()
        assert room.files(".snapshot") == [f"{2:020d}.snapshot", f"{4:020d}.snapshot"]
        truncate_to(room.log, 3, NOW_MS)
        assert room.files(".snapshot") == [f"{2:020d}.snapshot"]
        assert room.log.producers.end_offset == 3
        entry = present(room.log.producers.get(7))
        assert entry.next_sequence == 3
        assert room.append(b"3", producer=(7, 0, 3)).first_offset == 3
        truncate_to(room.log, 1, NOW_MS)
        assert room.files(".snapshot") == []
        assert room.append(b"1", producer=(7, 0, 1)).first_offset == 1
        truncate_to(room.log, 0, NOW_MS)
        assert len(room.log.producers) == 0

    def test_a_segment_that_begins_where_the_log_is_cut_stays_and_no_producers_are_read_before_it(
        self, room: LogRoom
    ) -> None:
        """The segment before it may have millions of batches."""
        for sequence in range(4):
            room.append(b"%d" % sequence, producer=(7, 0, sequence))
            if sequence == 1:
                room.log.local.roll(NOW_MS)
        room.flush()
        with patch("warmlog_broker.storage.producer.replay.replay") as replay:
            truncate_to(room.log, 2, NOW_MS)
        replay.assert_not_called()
        assert room.log.local.segments.base_offsets == [0, 2]
        assert room.append(b"2", producer=(7, 0, 2)).first_offset == 2

    @pytest.mark.parametrize("offset", [3, 0])
    def test_its_syncs_may_run_in_a_thread_and_nothing_counts_as_cut_before_they_have(
        self, room: LogRoom, offset: int
    ) -> None:
        filled(room, 4)
        room.append(b"unflushed")
        truncation, directory = room.log.truncation, room.log.local.directory
        cut = present(truncation.begin(offset)) if offset else truncation.begin_fully(offset)
        before = present(room.log.flusher.prepare())
        with ThreadPoolExecutor(1) as thread:
            thread.submit(cut.write_down).result()
            assert (room.log.log_end_offset, truncation.pending) == (5, None)
            truncation.carry_out(cut, NOW_MS)
            assert present(read_truncation(directory)) == present(truncation.pending)
            assert not present(truncation.pending).is_done
            truncation.checkpointed(room.log.offsets)
            assert TRUNCATION_NAME in room.files()
            before.run()
            room.log.flusher.mark_flushed(before)
            assert room.log.recovery_point == offset
            thread.submit(cut.sync).result()
        truncation.end(cut)
        assert present(truncation.pending).is_done
        assert (room.log.log_end_offset, room.log.recovery_point) == (offset, offset)
        truncation.checkpointed(room.log.offsets)
        assert TRUNCATION_NAME not in room.files()
        filled(room, 2, first=offset)
        assert read_values(room.log) == numbered(offset + 2)

    def test_a_damaged_log_is_refused_and_nothing_has_happened(self, room: LogRoom) -> None:
        filled(room, 2)
        position = room.log.local.active.size_bytes
        filled(room, 1, first=2)
        with room.segment_path(0).open("r+b") as file:
            file.seek(position)
            file.write(b"\xff" * 20)
        with pytest.raises(CorruptBatch):
            truncate_to(room.log, 2, NOW_MS)
        assert (room.log.log_end_offset, room.log.local.failure) == (3, "")
        assert TRUNCATION_NAME not in room.files()

    def test_a_flush_that_was_under_way_moves_nothing(self, room: LogRoom) -> None:
        room.leader_epoch = 1
        filled(room, 4)
        room.leader_epoch = 2
        for n in range(4, 9):
            room.append(b"%d" % n)
        plan = present(room.log.flusher.prepare())
        truncate_to(room.log, 2, NOW_MS)
        plan.run()
        assert room.log.flusher.mark_flushed(plan) == 2
        assert room.log.recovery_point == 2
        room.leader_epoch = 1
        room.append(b"2")
        room.flush()
        room.crash(recovery_point=3)
        assert room.log.epochs.entries == ((1, 0),)
        assert read_values(room.log) == numbered(3)

    def test_a_slice_behind_the_cut_is_damage_even_when_other_batches_lie_there_now(self, room: LogRoom) -> None:
        room.append(b"0")
        size = room.log.local.segments.size_bytes
        room.append(b"1")
        kept, cut, both = (
            room.log.reader.read(0, size, bound="log_end").slices[0],
            room.log.reader.read(1, size, bound="log_end").slices[0],
            room.log.reader.read(0, 2 * size, bound="log_end").slices[0],
        )
        truncate_to(room.log, 1, NOW_MS)
        room.append(b"x")
        assert len(kept.pread()) == size
        for part in (cut, both):
            with pytest.raises(DamagedLog, match="truncated"):
                part.pread()
            with pytest.raises(DamagedLog, match="truncated"):
                part.fileno()

    def test_a_slice_of_a_segment_that_was_taken_out_stays_readable(self, room: LogRoom) -> None:
        filled(room, 10)
        part = room.log.reader.read(9, 10**6).slices[0]
        before = part.pread()
        truncate_to(room.log, 1, NOW_MS)
        assert part.pread() == before


class TestTruncateFully:
    def test_ul_38_one_empty_segment_begins_at_the_offset(self, room: LogRoom) -> None:
        filled(room, 10)
        truncate_fully(room.log, 1, NOW_MS)
        log = room.log
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset, log.local.segments.size_bytes) == (
            1,
            1,
            1,
            0,
        )
        assert len(log.local.segments) == 1
        assert log.epochs.entries == ()

    def test_ps_07_no_snapshot_stays_and_producers_begin_there(self, room: LogRoom) -> None:
        room.append(b"0", producer=(7, 0, 0))
        room.log.local.roll(NOW_MS)
        room.append(b"1", producer=(7, 0, 1))
        truncate_fully(room.log, 29, NOW_MS)
        assert room.files(".snapshot") == []
        assert room.log.producers.end_offset == 29
        assert len(room.log.producers) == 0

    def test_the_log_start_may_lie_within_the_batch_to_come(self, room: LogRoom) -> None:
        truncate_fully(room.log, 5, NOW_MS, log_start_offset=6)
        room.log.truncation.checkpointed(room.log.offsets)
        room.crash()
        assert (room.log.log_start_offset, room.log.log_end_offset) == (6, 5)
        room.append(b"5", b"6", b"7")
        room.flush()
        assert read_values(room.log) == [b"6", b"7"]
        room.log.truncation.checkpointed(room.log.offsets)
        assert TRUNCATION_NAME not in room.files()
        room.crash()
        assert read_values(room.log) == [b"6", b"7"]

    @pytest.mark.parametrize(("offset", "start"), [(5, 3), (-1, 0)])
    def test_a_log_start_before_the_offset_is_refused_and_so_is_a_negative_one(
        self, room: LogRoom, offset: int, start: int
    ) -> None:
        with pytest.raises(ValueError, match="cannot begin"):
            truncate_fully(room.log, offset, NOW_MS, log_start_offset=start)


class TestCheckpoints:
    """The data directory's checkpoints may be from before: `stale` is what they said then."""

    def test_a_stale_high_watermark_shows_nothing_that_is_not_committed(self, room: LogRoom) -> None:
        filled(room, 10)
        stale = room.log.offsets
        truncate_to(room.log, 4, NOW_MS)
        assert Truncation(4, 0).cap(StoredState(stale, None)) == (LogOffsets(4, 0, 4), None)

    def test_the_file_goes_once_checkpoints_know(self, room: LogRoom) -> None:
        filled(room, 10)
        stale = room.log.offsets
        truncate_to(room.log, 4, NOW_MS)
        room.log.truncation.checkpointed(stale)
        assert TRUNCATION_NAME in room.files()
        room.log.truncation.checkpointed(room.log.offsets)
        assert TRUNCATION_NAME not in room.files()
        room.crash()
        assert read_values(room.log) == numbered(4)

    def test_the_file_goes_along_with_a_partition_that_moves(self, room: LogRoom) -> None:
        filled(room, 10)
        truncate_to(room.log, 4, NOW_MS)
        target = room.directory.with_name("moved")
        shutil.copytree(room.directory, target)
        moved = Log.take_over(room.log, target, NOW_MS)
        assert (target / TRUNCATION_NAME).exists()
        moved.truncation.checkpointed(moved.offsets)
        assert not (target / TRUNCATION_NAME).exists()

    def test_a_file_that_cannot_be_understood_keeps_the_log_closed(self, room: LogRoom) -> None:
        filled(room, 3)
        room.path(TRUNCATION_NAME).write_text("version: 0\nstate: cut\n")
        with pytest.raises(StorageError, match="expected version 0"):
            room.crash()

    def test_a_flipped_bit_that_makes_a_blank_of_a_digit_gives_no_other_offset(self, quick_path: Path) -> None:
        write_truncation(quick_path, Truncation(4710, 4000))
        path = quick_path / TRUNCATION_NAME
        content = path.read_bytes()
        for position in (at for at, byte in enumerate(content) if byte == ord("0")):
            path.write_bytes(content[:position] + b" " + content[position + 1 :])
            with pytest.raises(StorageError, match="expected version 0"):
                read_truncation(quick_path)

    def test_the_file_reads_as_it_was_written(self, quick_path: Path) -> None:
        assert read_truncation(quick_path) is None
        for truncation in (Truncation(5, 3), Truncation(5, 7, is_full=True, is_done=True)):
            write_truncation(quick_path, truncation)
            assert read_truncation(quick_path) == truncation


def cut_back(room: LogRoom) -> None:
    truncate_to(room.log, 5, NOW_MS)


def begin_anew(room: LogRoom) -> None:
    truncate_fully(room.log, 20, NOW_MS)


def begin_anew_further_back(room: LogRoom) -> None:
    truncate_fully(room.log, 2, NOW_MS)


@pytest.mark.parametrize(
    ("truncate", "end", "left"),
    [(cut_back, 5, numbered(5)), (begin_anew, 20, []), (begin_anew_further_back, 2, [])],
)
def test_a_crash_at_any_step_leaves_the_log_as_it_was_or_as_it_is_to_be(
    quick_path: Path, truncate: Callable[[LogRoom], None], end: int, left: list[bytes | None]
) -> None:
    step, outcomes = 0, set()
    while True:
        root = quick_path / str(step)
        root.mkdir()
        room = LogRoom(root)
        for n in range(12):
            room.append(b"%d" % n, producer=(7, 0, n))
        room.flush()
        room.stored = StoredState(room.log.offsets, None)
        with crash_at(step, "open", "pwrite") as point:
            truncate(room)
        room.open()
        values = read_values(room.log)
        is_cut = room.log.log_end_offset == end
        outcomes.add(is_cut)
        assert (values, room.log.log_end_offset) == ((left, end) if is_cut else (numbered(12), 12)), (step, point.steps)
        assert room.log.recovery_report.damage == []
        assert is_cut or point.has_died
        first = room.append(b"next", producer=(7, 0, room.log.log_end_offset if left or not is_cut else 0)).first_offset
        assert first == (end if is_cut else 12)
        room.flush()
        room.open()
        assert read_values(room.log) == [*values, b"next"], (step, point.steps)
        if not point.has_died:
            break
        step += 1
    assert outcomes == {True, False}
    assert step > 5


def test_a_disk_that_refuses_in_the_middle_takes_the_log_offline_and_the_next_start_finishes(room: LogRoom) -> None:
    filled(room, 10)
    room.stored = StoredState(room.log.offsets, None)
    with patch("os.ftruncate", side_effect=OSError(5, "Input/output error")), pytest.raises(StorageError):
        truncate_to(room.log, 4, NOW_MS)
    assert "truncation failed" in room.log.local.failure
    room.open()
    assert read_values(room.log) == numbered(4)


class TestFilledByAnother:
    def test_what_the_other_log_has_removed_is_known_after_a_restart(self, room: LogRoom) -> None:
        filled(room, 3)
        truncation = room.log.truncation
        cut = truncation.begin_fully(1, removed_below=7)
        cut.write_down()
        truncation.carry_out(cut, NOW_MS)
        cut.sync()
        truncation.end(cut)
        assert room.log.compaction.removed_below == 7
        assert room.crash().compaction.removed_below == 7
        truncate_fully(room.log, 2, NOW_MS)
        assert room.restart().compaction.removed_below == 7, "it never goes down"

    def test_a_malformed_file_is_refused_by_name(self, room: LogRoom) -> None:
        room.close()
        (room.directory / REMOVED_BELOW_NAME).write_text("version: 0\noffset: -1\n")
        with pytest.raises(StorageError, match=f"{REMOVED_BELOW_NAME}: expected version 0 and an offset"):
            room.open()
