"""Compaction of a log: what goes, what stays, and that everything that stays is what it was."""

import os
from itertools import count
from pathlib import Path

import pytest

from unit.broker.storage.cleaner.compaction_room import CompactionRoom, pair
from unit.broker.storage.log_files import overwrite
from unit.broker.storage.log_room import START_MS, read_batches
from unit.broker.storage.time_lookups import latest_record
from warmlog_broker.storage.cleaner.offset_map import ENTRY_BYTES
from warmlog_broker.storage.cleaner.throttle import CleaningAborted
from warmlog_broker.storage.segment.file_records import DamagedLog
from warmlog_broker.storage.segment.segment_files import run_deletions
from warmlog_protocol.batch.int_column import PIECE_VALUES
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.errors import CorruptBatch, DuplicateSequence

# --- what stays -----------------------------------------------------------------------------------------------------


def test_of_each_key_the_last_record_stays_where_it_was(room: CompactionRoom) -> None:
    """CL-01"""
    for first in (0, 10, 20):
        room.put_each(pair(first + key % 5, key) for key in range(10))
    room.put_each(pair(key, 100) for key in (1, 3, 11, 13, 24))
    before = {key: (offset, time_ms, value) for offset, time_ms, key, value in room.records()}
    dirty_bytes = room.log.compaction.range(room.now_ms).dirty_bytes
    stats = room.compact()
    after = room.records()
    assert {key: (offset, time_ms, value) for offset, time_ms, key, value in after} == before
    assert len(after) == len(before)
    assert stats.read_bytes == dirty_bytes
    assert stats.kept_records == len(before)
    assert stats.read_records == 35


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("codec", list(Codec))
def test_batches_keep_format_codec_and_place(room: CompactionRoom, rows: bool, codec: Codec) -> None:
    room.put(pair(1, 1), pair(2, 1), pair(1, 2), pair(3, 1), rows=rows, codec=codec)
    room.put(pair(3, 2), pair(1, 3), rows=rows, codec=codec)
    room.roll()
    room.compact()
    first, second = read_batches(room.log, 0)
    assert (first.offsets(), first.last_offset, first.keys(), first.values()) == ([1], 3, [b"k2"], [b"v1"])
    assert (second.offsets(), second.record_count) == ([4, 5], 2)
    assert {batch.header.magic for batch in (first, second)} == {2 if rows else 3}
    assert {batch.header.codec for batch in (first, second)} == {codec}


@pytest.mark.parametrize("rows", [False, True])
def test_a_batch_that_grows_over_the_limit_ends_the_compaction(room: CompactionRoom, rows: bool) -> None:
    room.set_config(segment_bytes=1_000_000)
    room.put((b"k", bytes(2_000_000)), (b"l", b"v"), rows=rows, codec=Codec.ZSTD)
    room.put_each([pair(1, 1)])
    room.roll()
    with pytest.raises(CorruptBatch, match="limit"):
        room.begin(max_decompressed_bytes=1_000_000).build_map()
    room.log.compaction.end(None)
    room.compact()
    assert [value for _, _, _, value in room.records()] == [bytes(2_000_000), b"v", b"v1"]


def test_more_records_than_are_looked_at_at_a_time(room: CompactionRoom) -> None:
    count = 2 * PIECE_VALUES + 5
    room.set_config(segment_bytes=10_000_000)
    room.put(*[pair(number % 1000, number) for number in range(count)])
    room.put_each([pair(1000, 0)])
    room.roll()
    room.compact()
    assert room.offsets() == [*range(count - 1000, count), count]
    assert room.state() == {b"k%d" % (number % 1000): b"v%d" % number for number in range(count)} | {b"k1000": b"v0"}


def test_records_without_a_key_go(room: CompactionRoom) -> None:
    """They can be there: the topic may have become a compacted one later."""
    room.put((None, b"a"), pair(1, 1), (None, b"b"))
    room.append(b"no keys at all", b"none")
    room.put_each([pair(2, 1)])
    room.put((None, b"in the active segment"))
    stats = room.compact()
    assert room.offsets() == [1, 5, 6]
    assert (stats.dropped_without_key, stats.kept_records, stats.read_records) == (4, 2, 6)


def test_only_records_that_go_for_lack_of_a_key_are_counted_as_such(room: CompactionRoom) -> None:
    room.put(pair(1, 1), pair(2, 1))
    room.put_each([pair(1, 2), pair(3)])
    room.put_in_transaction((None, b"aborted"), producer=(7, 0, 0))
    room.end_transaction(7, commits=False)
    room.roll()
    assert room.compact().dropped_without_key == 0
    assert room.offsets() == [1, 2, 3]


@pytest.mark.parametrize("rows", [False, True])
def test_each_record_without_a_key_is_counted_once(room: CompactionRoom, rows: bool) -> None:
    room.put_each([pair(1, 1)])
    room.put((None, b"a"), pair(2, 1), (None, b""), (None, None), rows=rows)
    room.roll()
    assert room.compact().dropped_without_key == 3
    room.put_each([pair(1, 2)])
    assert room.compact().dropped_without_key == 0
    assert room.offsets() == [2, 5]


def test_a_log_whose_keys_are_all_deleted_keeps_the_last_batch_as_a_header(room: CompactionRoom) -> None:
    """CL-18"""
    room.put_each(pair(key, 1) for key in range(4))
    room.put_each(pair(key) for key in range(4))
    room.compact()
    assert room.offsets() == [4, 5, 6, 7]
    room.now_ms += 1000
    room.put_each([pair(9, 1)])
    room.compact()
    assert room.state() == {b"k9": b"v1"}
    room.put_each([pair(9)])
    room.compact()
    room.now_ms += 1000
    room.put_each([pair(9)])
    room.forget_compaction()
    room.compact()
    room.now_ms += 1000
    room.forget_compaction()
    room.compact()
    assert room.records() == []
    assert room.last_offsets_of_batches() == [room.log.log_end_offset - 1]


def test_an_old_tombstone_stays_until_its_horizon_and_not_longer(room: CompactionRoom) -> None:
    """CL-19: it is the first pass that sets the horizon, whatever the record's own time is."""
    room.put(pair(1, 1))
    room.put(pair(1), timestamp_ms=1)
    room.put(pair(2, 1))
    room.roll()
    room.compact()
    assert room.offsets() == [1, 2]
    assert read_batches(room.log, 0)[0].columns.delete_horizon_ms == START_MS + 1000
    assert read_batches(room.log, 0)[0].timestamps_ms() == [1]
    room.now_ms += 999
    room.put_each([pair(3, 1)])
    room.compact()
    assert room.offsets() == [1, 2, 3]
    room.now_ms += 1
    room.put_each([pair(4, 1)])
    room.compact()
    assert room.offsets() == [2, 3, 4]


def test_what_does_not_change_is_not_written_again(room: CompactionRoom) -> None:
    room.set_config(segment_bytes=100)
    room.put_each(pair(key, 1) for key in range(3))
    inodes = [room.segment_path(base).stat().st_ino for base in (0, 1, 2)]
    assert room.compact().replaced_segments == 0
    assert [room.segment_path(base).stat().st_ino for base in (0, 1, 2)] == inodes
    assert room.files(".cleaned") == []


def test_new_files_have_the_time_of_the_old_ones(room: CompactionRoom) -> None:
    room.put_each([pair(1, 1), pair(1, 2)])
    room.put_each([pair(1, 3), pair(1, 4)])
    os.utime(room.segment_path(0), (1_600_000_000, 1_600_000_000))
    os.utime(room.segment_path(2), (1_600_000_500, 1_600_000_500))
    room.compact()
    assert room.files(".log") == [room.segment_path(0).name, room.segment_path(4).name]
    assert room.segment_path(0).stat().st_mtime == 1_600_000_500


# --- what may be touched --------------------------------------------------------------------------------------------


def test_the_active_segment_and_what_is_not_flushed_are_left_alone(room: CompactionRoom) -> None:
    room.put_each([pair(1, 1), pair(1, 2)])
    room.put(pair(1, 3))
    room.log.local.roll(room.now_ms)
    assert room.log.recovery_point == 2
    room.put(pair(1, 4))
    room.compact()
    assert (room.offsets(), room.clean_below) == ([1, 2, 3], 2)
    room.flush()
    room.compact()
    assert (room.offsets(), room.clean_below) == ([2, 3], 3)


def test_segments_that_are_too_young_are_left_alone(room: CompactionRoom) -> None:
    room.set_config(min_compaction_lag_ms=500)
    room.put_each([pair(1, 1), pair(1, 2)])
    room.now_ms += 400
    room.put_each([pair(1, 3), pair(1, 4)])
    room.now_ms += 150
    room.compact()
    assert (room.offsets(), room.clean_below) == ([1, 2, 3], 2)
    room.now_ms += 400
    room.compact()
    assert (room.offsets(), room.clean_below) == ([3], 4)


def test_a_max_lag_closes_segments_that_nobody_writes_to(room: CompactionRoom) -> None:
    room.set_config(max_compaction_lag_ms=5000)
    room.put(pair(1, 1), pair(1, 2))
    room.flush()
    room.now_ms += 5000
    assert not room.log.local.roll_if_overdue(room.now_ms)
    room.now_ms += 1
    assert room.log.local.roll_if_overdue(room.now_ms)
    room.flush()
    found = room.log.compaction.range(room.now_ms)
    assert found.is_overdue
    assert found.is_due(min_dirty_ratio=1.0)


def test_offsets_that_are_missing_between_segments_are_stepped_over(room: CompactionRoom) -> None:
    """CL-20"""
    room.put_each([pair(1, 1), pair(2, 1)])
    room.log.local.roll(room.now_ms, expected_next_offset=50)
    room.put_each([pair(1, 2)])
    room.compact()
    assert (room.offsets(), room.clean_below) == ([1, 50], 51)


def test_what_lies_below_the_log_start_is_not_dirty(room: CompactionRoom) -> None:
    room.put_each(pair(key, 1) for key in range(10))
    room.put_each(pair(key, 2) for key in range(10))
    room.log.bounds.raise_log_start(4)
    room.compact()
    assert room.offsets() == list(range(10, 20))


# --- a map that is full ---------------------------------------------------------------------------------------------


def test_a_full_map_ends_the_pass_and_the_next_one_goes_on(room: CompactionRoom) -> None:
    room.set_config(segment_bytes=10_000)
    room.put_each(pair(key % 12, key) for key in range(36))
    expected = room.state()
    steps = []
    for _ in range(6):
        room.compact(memory_bytes=8 * ENTRY_BYTES)
        steps.append(room.clean_below)
        assert room.state() == expected
    assert steps[0] == 8
    assert steps == sorted(steps)
    assert steps[-1] == 36
    assert room.offsets() == list(range(24, 36))


def test_a_single_batch_larger_than_the_map_is_taken_nevertheless(room: CompactionRoom) -> None:
    room.put(*(pair(key, 1) for key in range(10)))
    room.put(*(pair(key, 2) for key in range(5)))
    room.roll()
    room.compact(memory_bytes=ENTRY_BYTES)
    assert room.clean_below == 10
    room.compact(memory_bytes=ENTRY_BYTES)
    assert room.offsets() == [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]


# --- groups ---------------------------------------------------------------------------------------------------------


def test_small_segments_become_one_and_snapshots_go_with_them(room: CompactionRoom) -> None:
    """CL-14, RT-14"""
    for base in (0, 2, 4):
        room.put_each([pair(base, 1), pair(99, base)])
    assert room.files(".snapshot") == [room.segment_path(base, ".snapshot").name for base in (2, 4, 6)]
    room.compact()
    assert room.files(".log") == [room.segment_path(base).name for base in (0, 6)]
    assert room.files(".snapshot") == [room.segment_path(6, ".snapshot").name]
    assert room.offsets() == [0, 2, 4, 5]


def test_segments_that_were_emptied_go_in_the_next_pass(room: CompactionRoom) -> None:
    """CL-14"""
    room.set_config(segment_bytes=250)
    for value in range(4):
        room.put_each(pair(key, value) for key in range(2))
    room.compact()
    assert (len(room.log.local.segments), room.offsets()) == (5, [6, 7])
    room.put_each([pair(9, 9)])
    room.compact()
    assert (len(room.log.local.segments), room.offsets()) == (3, [6, 7, 8])


# --- producers ------------------------------------------------------------------------------------------------------


def test_duplicates_are_still_recognised_and_each_producers_last_batch_stays(room: CompactionRoom) -> None:
    """CL-04"""
    batches = {1: [pair(1, 1), pair(2, 1), pair(3, 1)], 2: [pair(3, 2), pair(1, 2), pair(4, 2)]}
    for producer, pairs in batches.items():
        room.put(*pairs, producer=(producer, 0, 0))
    room.put(pair(1, 3), pair(4, 3), producer=(3, 0, 0))
    room.roll()
    room.compact()
    assert room.offsets() == [1, 3, 6, 7]
    assert room.last_offsets_of_batches() == [2, 5, 7]
    room.restart()
    for producer, pairs in batches.items():
        info = room.put(*pairs, producer=(producer, 0, 0))
        assert (info.is_duplicate, info.first_offset) == (True, 3 * producer - 3)
    assert room.put(pair(1, 3), pair(4, 3), producer=(3, 0, 0)).first_offset == 6
    room.put_each([pair(2, 9)])
    room.compact()
    assert room.last_offsets_of_batches() == [2, 5, 7, 8]
    assert room.offsets() == [3, 6, 7, 8]


def test_the_last_sequence_survives_even_where_the_data_does_not(room: CompactionRoom) -> None:
    """CL-11"""
    for sequence in (0, 1):
        room.put(pair(1, sequence), producer=(7, 0, sequence))
    room.put(pair(1, 2))
    room.roll()
    room.compact()
    assert (room.offsets(), room.last_offsets_of_batches()) == ([2], [1, 2])
    for name in room.files(".snapshot"):
        room.path(name).unlink()
    room.crash()
    assert room.put(pair(5, 5), producer=(7, 0, 1)).is_duplicate
    assert room.put(pair(5, 5), producer=(7, 0, 2)).first_offset == 3


@pytest.mark.parametrize("unflushed", [1, 5])
def test_the_last_flushed_sequence_survives_although_later_batches_are_lost(
    room: CompactionRoom, unflushed: int
) -> None:
    """The power goes after a compaction, and before the flush of what was appended meanwhile."""
    room.put(pair(9, 0), producer=(7, 0, 0))
    room.put(pair(1, 1), producer=(7, 0, 1))
    room.put(pair(1, 2))
    room.roll()
    for sequence in range(2, 2 + unflushed):
        room.put(pair(1, sequence), producer=(7, 0, sequence))
    room.compact()
    for name in room.files(".snapshot"):
        room.path(name).unlink()
    os.truncate(room.segment_path(3), 0)
    room.crash()
    assert room.put(pair(1, 1), producer=(7, 0, 1)).is_duplicate
    assert room.put(pair(1, 2), producer=(7, 0, 2)).first_offset == 3


def test_a_repeated_batch_that_was_compacted_away_is_a_duplicate_and_not_a_gap(room: CompactionRoom) -> None:
    for sequence in range(8):
        room.put(pair(1, sequence), producer=(7, 0, sequence))
    room.roll()
    room.compact()
    room.restart()
    assert room.offsets() == [7]
    with pytest.raises(DuplicateSequence):
        room.put(pair(1, 0), producer=(7, 0, 0))


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_a_large_batch_is_compacted_like_any_other(room: CompactionRoom) -> None:
    """CL-08"""
    room.set_config(segment_bytes=20_000_000, max_message_bytes=20_000_000)
    room.put((b"big", os.urandom(9_000_000)), pair(1, 1))
    room.put_each([(b"big", b"small"), pair(2, 1)])
    room.compact()
    assert room.offsets() == [1, 2, 3]


@pytest.mark.parametrize("position", [8, 16, 70])
def test_a_damaged_batch_ends_the_compaction_and_nothing_has_changed(room: CompactionRoom, position: int) -> None:
    """CL-08: the caller takes the log out of compaction then."""
    room.put_each([pair(1, 1), pair(1, 2)])
    overwrite(room.segment_path(0), position, b"\xff\xff")
    cleaning = room.begin()
    with pytest.raises(DamagedLog):
        cleaning.build_map()
    assert room.files(".cleaned") == []


def test_a_file_that_is_cut_short_ends_the_compaction(room: CompactionRoom) -> None:
    """CL-08"""
    room.put_each([pair(1, 1), pair(1, 2)])
    cleaning = room.begin()
    cleaning.build_map()
    os.truncate(room.segment_path(0), 100)
    with pytest.raises(DamagedLog):
        room.finish(cleaning)
    assert room.files(".cleaned") == []


def test_a_compaction_that_is_called_off_leaves_nothing_behind(room: CompactionRoom) -> None:
    """CL-17"""
    room.put_each([pair(1, 1), pair(1, 2)])
    room.put_each([pair(1, 3), pair(1, 4)])
    cleaning = room.begin()
    cleaning.build_map()
    (group,) = cleaning.groups()
    room.log.compaction.stop()
    with pytest.raises(CleaningAborted):
        cleaning.rewrite(group)
    assert room.files(".cleaned") == []
    assert room.offsets() == [0, 1, 2, 3]


def test_a_log_that_is_closed_deleted_failed_or_compacted_no_more_calls_it_off(quick_path: Path) -> None:
    """LM-16"""
    for number, end in enumerate(
        (
            lambda room: room.close(),
            lambda room: room.log.delete(),
            lambda room: room.log.fail("the disk"),
            lambda room: room.set_config(cleanup_policy="delete"),
        )
    ):
        root = quick_path / str(number)
        root.mkdir()
        room = CompactionRoom(root)
        room.put_each([pair(1, 1), pair(1, 2)])
        cleaning = room.begin()
        end(room)
        with pytest.raises(CleaningAborted):
            cleaning.build_map()


def test_segments_that_retention_has_removed_meanwhile_call_it_off(room: CompactionRoom) -> None:
    """CL-02"""
    room.set_config(cleanup_policy="compact,delete", segment_bytes=400)
    for value in range(4):
        room.put_each(pair(key, value) for key in range(3))
    cleaning = room.begin()
    cleaning.build_map()
    first = cleaning.rewrite(cleaning.groups()[0])
    room.set_config(retention_bytes=0)
    room.log.retention.delete_old_segments(room.now_ms)
    with pytest.raises(CleaningAborted):
        room.log.compaction.take(first)
    assert room.files(".cleaned") == []
    names = [name for name in room.files() if ".log" in name]
    assert len(names) == len({name[:20] for name in names})


def test_retention_during_a_swap_completes_it_first(room: CompactionRoom) -> None:
    """CL-02"""
    room.set_config(cleanup_policy="compact,delete")
    room.put_each([pair(1, 1), pair(1, 2)])
    room.put_each([pair(1, 3), pair(2, 3)])
    room.put(pair(3, 1))
    room.flush()
    cleaning = room.begin()
    cleaning.build_map()
    rewritten = cleaning.rewrite(cleaning.groups()[0])
    room.log.compaction.take(rewritten)
    room.log.bounds.raise_log_start(4)
    assert room.log.retention.delete_old_segments(room.now_ms) == 1
    assert room.log.local.replacement is None
    assert room.offsets() == [4]
    assert room.files(".swap") == []


def test_a_reader_that_holds_the_old_files_goes_on_reading_them(room: CompactionRoom) -> None:
    room.put_each([pair(1, 1), pair(1, 2)])
    data = room.log.reader.read(0, 1 << 20)
    before = data.slices[0].pread()
    room.compact()
    room.set_config(file_delete_delay_ms=0)
    run_deletions(room.log.local.take_due_deletions(0))
    assert room.files(".deleted") == []
    assert data.slices[0].pread() == before
    assert room.offsets() == [1]


def test_reading_goes_on_at_the_high_watermark_after_its_segment_was_replaced(room: CompactionRoom) -> None:
    room.put_each([pair(1, number) for number in range(10)])
    assert room.log.high_watermark == 10
    room.compact()
    assert [batch.last_offset for batch in read_batches(room.log, 0)] == [9]
    assert read_batches(room.log, 10) == []
    room.put(pair(1, 99))
    room.flush()
    assert [batch.base_offset for batch in read_batches(room.log, 0)] == [9]
    assert [batch.base_offset for batch in read_batches(room.log, 10)] == [10]


def test_gaps_are_no_damage_after_a_crash_even_if_the_policy_has_changed(room: CompactionRoom) -> None:
    room.put_each(pair(key % 3, key) for key in range(9))
    room.put(pair(7, 7))
    room.flush()
    room.compact()
    expected = room.records()
    room.config = room.config.__class__(segment_bytes=1024)
    room.crash()
    assert room.log.recovery_report.damage == []
    assert room.records() == expected
    room.crash(recovery_point=0)
    assert room.records() == expected
    for offset in range(10):
        assert read_batches(room.log, offset)[0].last_offset >= offset


def test_segments_that_compaction_has_emptied_do_not_end_the_log(room: CompactionRoom) -> None:
    """The crash comes before their offsets are checkpointed."""
    for number in range(4):
        room.put_each([(b"same", b"%d" % number * 700)])
    room.put(pair(7, 7))
    room.flush()
    room.compact()
    expected, end = room.records(), room.log.log_end_offset
    assert [segment.size_bytes > 0 for segment in room.log.local.segments] == [False, False, False, True, True]
    room.crash(recovery_point=0)
    assert room.log.recovery_report.is_uneventful
    assert (room.records(), room.log.log_end_offset) == (expected, end)


def test_more_and_more_passes_change_nothing(room: CompactionRoom) -> None:
    numbers = count()
    for _ in range(5):
        room.put_each(pair(next(numbers) % 7, next(numbers)) for _ in range(9))
        room.compact()
    expected = room.records()
    for _ in range(3):
        room.forget_compaction()
        room.compact()
        assert room.records() == expected


def test_gaps_of_a_compaction_that_was_called_off_are_no_damage_after_a_restart(room: CompactionRoom) -> None:
    """The checkpoint knows of no compaction then, and the topic's settings of none any more."""
    for number in range(12):
        room.put_each(pair(key % 2, number) for key in range(4))
    cleaning = room.begin()
    cleaning.build_map()
    replacement = room.log.compaction.take(cleaning.rewrite(cleaning.groups()[0]))
    while not replacement.advance():
        replacement.sync()
    room.set_config(cleanup_policy="delete")
    room.log.compaction.end()
    left = room.records()
    assert len(left) < 48
    assert room.clean_below == 0
    assert not room.log.reader.are_offsets_dense_from(0)
    room.restart()
    assert room.records() == left
    assert not room.log.reader.are_offsets_dense_from(0)
    room.crash(recovery_point=0)
    assert room.records() == left
    assert room.log.recovery_report.is_uneventful


def test_the_largest_timestamp_of_a_compacted_log_is_that_of_a_record_that_is_left(room: CompactionRoom) -> None:
    room.put(pair(1, 1), timestamp_ms=room.now_ms + 9, producer=(7, 0, 0))
    room.put(pair(1, 2), timestamp_ms=room.now_ms + 2)
    room.roll()
    room.compact()
    assert (room.last_offsets_of_batches(), room.offsets()) == ([0, 1], [1])
    assert latest_record(room.log) == (room.now_ms + 2, 1, 0)
