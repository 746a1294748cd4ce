"""Retention in a log: segments go, files follow later, and what is left is whole."""

import os
from pathlib import Path

import pytest

from unit.broker.storage.log_room import START_MS, LogRoom, make_batch, read_values
from warmlog_broker.runtime.clock import TrustedClock
from warmlog_broker.storage.config import UNLIMITED, LogConfig
from warmlog_broker.storage.segment.segment_files import run_deletions

BATCH = len(make_batch(b"v"))
FIVE_A_SEGMENT = LogConfig(segment_bytes=5 * BATCH, retention_ms=UNLIMITED, file_delete_delay_ms=1000)


@pytest.fixture
def room(quick_path: Path) -> LogRoom:
    return LogRoom(quick_path, FIVE_A_SEGMENT)


def test_expired_segments_go_and_one_empty_one_stays(room: LogRoom) -> None:
    room.fill(12)
    room.leader_epoch = 1
    room.fill(5)
    room.set_config(retention_ms=100)
    room.now_ms += 100
    assert room.log.retention.delete_old_segments(room.now_ms) == 0
    room.now_ms += 1
    assert room.log.retention.delete_old_segments(room.now_ms) == 4
    assert (len(room.log.local.segments), room.log.local.segments.size_bytes) == (1, 0)
    assert (room.log.log_start_offset, room.log.high_watermark, room.log.log_end_offset) == (17, 17, 17)
    assert room.log.epochs.entries == ((1, 17),)
    assert room.log.retention.delete_old_segments(room.now_ms) == 0
    assert room.append(b"next").first_offset == 17
    assert read_values(room.log) == [b"next"]


def test_nothing_above_the_high_watermark_goes(room: LogRoom) -> None:
    for _ in range(15):
        room.append()
    room.set_config(retention_ms=0)
    room.now_ms += 1
    assert room.log.retention.delete_old_segments(room.now_ms) == 0
    room.log.bounds.raise_high_watermark(7)
    assert room.log.retention.delete_old_segments(room.now_ms) == 1
    assert room.log.log_start_offset == 5


def test_files_are_renamed_at_once_and_unlinked_after_the_delay(room: LogRoom) -> None:
    room.fill(12)
    room.log.bounds.raise_log_start(12)
    room.log.retention.delete_old_segments(room.now_ms)
    deleted = [name for name in room.files(".deleted") if ".log." in name]
    assert deleted == [f"{0:020d}.log.deleted", f"{5:020d}.log.deleted"]
    assert f"{5:020d}.snapshot.deleted" in room.files(".deleted")
    assert room.log.local.has_deletions
    assert room.log.local.take_due_deletions(500) == []
    assert room.log.local.take_due_deletions(1499) == []
    run_deletions(room.log.local.take_due_deletions(1500))
    assert room.files(".deleted") == []
    assert not room.log.local.has_deletions


def test_what_was_not_unlinked_before_a_crash_is_unlinked_at_the_start(room: LogRoom) -> None:
    room.fill(12)
    room.log.bounds.raise_log_start(10)
    room.log.retention.delete_old_segments(room.now_ms)
    room.path("00000000000000000003.log.cleaned").touch()
    room.crash()
    assert room.files(".deleted") == room.files(".cleaned") == []
    assert (room.log.log_start_offset, room.log.log_end_offset) == (10, 12)


def test_segments_that_were_rolled_and_removed_need_no_flush(room: LogRoom) -> None:
    for _ in range(12):
        room.append()
    room.log.bounds.raise_high_watermark(12)
    room.log.bounds.raise_log_start(12)
    plan = room.log.flusher.prepare()
    assert plan is not None
    room.log.retention.delete_old_segments(room.now_ms)
    room.set_config(file_delete_delay_ms=0)
    run_deletions(room.log.local.take_due_deletions(0))
    assert room.files(".deleted") == []
    plan.run()
    assert room.log.flusher.mark_flushed(plan) == 12
    room.append()
    assert room.flush() == 13
    assert len(room.log.local.unsynced._segments) == 0


def test_records_without_timestamps_age_by_when_their_file_was_written(room: LogRoom) -> None:
    for _ in range(6):
        room.append_bytes(make_batch(b"v", timestamp_ms=-1))
    room.flush()
    room.set_config(retention_ms=1000)
    written_ms = int(room.segment_path(0).stat().st_mtime * 1000)
    assert room.log.retention.delete_old_segments(written_ms) == 0
    assert room.log.retention.delete_old_segments(written_ms + 3_600_000) == 2


def test_one_run_goes_on_by_time_where_the_log_start_has_ended(quick_path: Path) -> None:
    """RT-08, KAFKA-12177"""
    room = LogRoom(quick_path, LogConfig(segment_bytes=1024, retention_ms=900))
    for later_ms in (100, 0, 100):
        room.append(b"v", timestamp_ms=START_MS + later_ms)
        room.log.local.roll(room.now_ms)
    room.append(b"active", timestamp_ms=START_MS + 800)
    room.flush()
    room.now_ms += 901
    assert room.log.retention.delete_old_segments(room.now_ms) == 0
    room.log.bounds.raise_log_start(1)
    assert room.log.retention.delete_old_segments(room.now_ms) == 2
    assert room.log.retention.delete_old_segments(room.now_ms) == 0
    assert read_values(room.log) == [b"v", b"active"]


def test_a_record_from_the_future_goes_when_its_file_is_old_enough(room: LogRoom) -> None:
    """KAFKA-14991"""
    room.set_config(message_timestamp_after_max_ms=2**62)
    room.append(b"far ahead", timestamp_ms=START_MS + 10**12)
    room.log.local.roll(room.now_ms)
    room.fill(3)
    os.utime(room.segment_path(0), ns=(0, START_MS * 10**6))
    room.set_config(retention_ms=1000)
    room.now_ms += 1000
    assert room.log.retention.delete_old_segments(room.now_ms) == 0
    room.now_ms += 1
    room.append(b"young")
    room.flush()
    assert room.log.retention.delete_old_segments(room.now_ms) == 1
    assert room.log.log_start_offset == 1


def test_a_jump_of_years_deletes_nothing_until_the_clock_is_believed(room: LogRoom) -> None:
    """And a clock that is set back deletes nothing either."""
    year_ms, hour_ms = 365 * 86_400_000, 3_600_000
    room.fill(15)
    room.set_config(retention_ms=7 * 86_400_000)
    clock = TrustedClock(START_MS, wall_ms=START_MS, elapsed_ms=0, settle_ms=hour_ms)
    for wall_ms, elapsed_ms, deleted in (
        (START_MS + year_ms, 1000, 0),
        (START_MS + year_ms + hour_ms, hour_ms, 0),
        (START_MS - year_ms, hour_ms + 1000, 0),
        (START_MS + 2 * hour_ms, 2 * hour_ms, 0),
        (START_MS + year_ms, 2 * hour_ms + 1, 0),
        (START_MS + year_ms + hour_ms, 3 * hour_ms + 1, 3),
    ):
        assert room.log.retention.delete_old_segments(clock.now_ms(wall_ms, elapsed_ms)) == deleted
