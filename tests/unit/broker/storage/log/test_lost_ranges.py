"""Reads where offsets are missing: lost, with the offset at which to go on, or a gap that compaction may have left."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from truncating import truncate_to
from unit.broker.storage.log_room import LogRoom, make_batch, read_batches
from warmlog_broker.storage.config import UNLIMITED, LogConfig
from warmlog_broker.storage.directory.data_dir import StoredState
from warmlog_broker.storage.log.local_log import ReadBound
from warmlog_broker.storage.segment.file_records import DamagedLog

BATCH = len(make_batch(b"v"))
FIVE_A_SEGMENT = LogConfig(segment_bytes=5 * BATCH, index_interval_bytes=BATCH, retention_ms=UNLIMITED)
COMPACTED = replace(FIVE_A_SEGMENT, cleanup_policy="compact")
BOUNDS: tuple[ReadBound, ...] = ("log_end", "high_watermark", "committed")


@pytest.fixture
def room(quick_path: Path) -> LogRoom:
    """Batches of one record: segments at 0, 5, 10 and an empty one at 15."""
    return filled(LogRoom(quick_path, FIVE_A_SEGMENT))


@pytest.fixture
def compacted(quick_path: Path) -> LogRoom:
    """The same on a topic whose policy says compact."""
    return filled(LogRoom(quick_path, COMPACTED))


def filled(room: LogRoom) -> LogRoom:
    for n in range(15):
        room.append(b"v", timestamp_ms=room.now_ms + n)
    room.log.local.roll(room.now_ms)
    room.flush()
    return room


def reopen(room: LogRoom, *, is_start_known: bool = False) -> None:
    room.open(is_start_known=is_start_known)


def steps(room: LogRoom, start: int = 0, bound: ReadBound = "high_watermark") -> Iterator[tuple[str, int, int]]:
    """What a reader goes through from `start` to the bound: "read", "lost" or "gap", and the offsets."""
    position, end = start, room.log.bounds.end_of(bound).offset
    while position < end:
        try:
            data = room.log.reader.read(position, 1, bound=bound)
        except DamagedLog as error:
            yield "lost", position, error.next_offset
            position = error.next_offset
            continue
        if data.slices:
            (batch,) = read_batches(room.log, position, max_bytes=1, bound=bound)
            yield "read", batch.base_offset, batch.next_offset
            position = batch.next_offset
        else:
            yield "gap", position, data.next_offset
            position = data.next_offset


def passed(room: LogRoom, start: int = 0, bound: ReadBound = "high_watermark") -> list[tuple[str, int, int]]:
    """`steps`, with reads that follow one another joined."""
    joined: list[tuple[str, int, int]] = []
    for what, first, end in steps(room, start, bound):
        if joined and joined[-1][0] == what == "read" and joined[-1][2] == first:
            joined[-1] = (what, joined[-1][1], end)
        else:
            joined.append((what, first, end))
    return joined


class TestOffsetsAreDense:
    @pytest.mark.parametrize("base_offset", [0, 5, 10])
    @pytest.mark.parametrize("bound", BOUNDS)
    def test_an_empty_segment_is_lost_up_to_the_next_batch_or_to_the_end(
        self, room: LogRoom, base_offset: int, bound: ReadBound
    ) -> None:
        room.close()
        os.truncate(room.segment_path(base_offset), 0)
        reopen(room)
        lost = ("lost", base_offset, base_offset + 5)
        around = [("read", 0, base_offset), lost, ("read", base_offset + 5, 15)]
        assert passed(room, bound=bound) == [step for step in around if step[1] < step[2]]
        assert passed(room, base_offset + 3, bound)[0] == ("lost", base_offset + 3, base_offset + 5)

    @pytest.mark.parametrize("base_offset", [5, 10])
    def test_a_missing_segment_is_lost_and_so_is_a_missing_end_of_one(self, room: LogRoom, base_offset: int) -> None:
        room.close()
        room.segment_path(base_offset).unlink()
        os.truncate(room.segment_path(base_offset - 5), 3 * BATCH)
        reopen(room)
        expected = [("read", 0, base_offset - 2), ("lost", base_offset - 2, base_offset + 5)]
        assert passed(room)[:2] == expected

    def test_a_batch_that_was_cut_is_lost_with_all_up_to_the_next_segment(self, room: LogRoom) -> None:
        room.close()
        os.truncate(room.segment_path(10), 2 * BATCH + 70)
        os.truncate(room.segment_path(5), 3 * BATCH + 5)
        reopen(room)
        assert passed(room) == [("read", 0, 8), ("lost", 8, 10), ("read", 10, 12), ("lost", 12, 15)]

    def test_damage_within_a_segment_ends_at_its_next_intact_batch(self, room: LogRoom) -> None:
        room.close()
        path = room.segment_path(5)
        content = bytearray(path.read_bytes())
        content[BATCH + 16] = content[2 * BATCH + 16] = 9
        path.write_bytes(content)
        reopen(room)
        assert passed(room) == [("read", 0, 6), ("lost", 6, 8), ("read", 8, 15)]

    def test_nothing_beyond_the_bound_is_told(self, room: LogRoom) -> None:
        room.append(b"more")
        room.close()
        os.truncate(room.segment_path(10), 0)
        reopen(room)
        room.log.bounds.high_watermark = room.log.bounds.high_watermark._replace(
            offset=12, segment_base_offset=-1, position=-1
        )
        assert passed(room) == [("read", 0, 10), ("lost", 10, 12)]
        room.log.bounds.raise_high_watermark(16)
        assert passed(room, 12) == [("lost", 12, 15), ("read", 15, 16)]

    def test_a_last_stable_offset_in_what_is_lost_bounds_reads_as_any_other(self, room: LogRoom) -> None:
        room.append_in_transaction(b"t", producer=(7, 0, 0))
        room.log.local.roll(room.now_ms)
        room.append(b"v")
        room.flush()
        os.truncate(room.segment_path(15), 0)
        room.log.local.segments.get(15).records.size_bytes = 0  # type: ignore[union-attr]
        assert room.log.bounds.end_of("committed") == (15, 16, 0)
        assert passed(room, bound="committed") == [("read", 0, 15)]
        assert passed(room) == [("read", 0, 15), ("lost", 15, 16), ("read", 16, 17)]


class TestCompactionMayBeTheReason:
    def test_a_hole_before_a_batch_is_passed_over(self, compacted: LogRoom) -> None:
        compacted.close()
        os.truncate(compacted.segment_path(5), 2 * BATCH)
        reopen(compacted)
        assert passed(compacted) == [("read", 0, 7), ("read", 10, 15)]

    @pytest.mark.parametrize("bound", BOUNDS)
    def test_a_hole_before_the_end_is_none_of_its_gaps_as_it_keeps_the_last_batch(
        self, compacted: LogRoom, bound: ReadBound
    ) -> None:
        compacted.close()
        os.truncate(compacted.segment_path(10), 2 * BATCH)
        reopen(compacted)
        assert passed(compacted, bound=bound) == [("read", 0, 12), ("lost", 12, 15)]

    @pytest.mark.parametrize("bound", BOUNDS)
    @pytest.mark.parametrize("left", [0, 1, 2])
    def test_a_hole_before_the_end_may_be_a_gap_of_kafkas(self, quick_path: Path, bound: ReadBound, left: int) -> None:
        room = LogRoom(quick_path, replace(COMPACTED, segment_bytes=1 << 20))
        for _ in range(3):
            for _ in range(5):
                room.append(b"v", rows=True)
            room.log.local.roll(room.now_ms)
        room.flush()
        room.close()
        os.truncate(room.segment_path(10), left * len(make_batch(b"v", rows=True)))
        reopen(room)
        assert passed(room, bound=bound) == [("read", 0, 10 + left), ("gap", 10 + left, 15)]

    def test_a_hole_before_the_high_watermark_is_passed_up_to_that(self, compacted: LogRoom) -> None:
        compacted.close()
        os.truncate(compacted.segment_path(5), BATCH)
        reopen(compacted)
        compacted.log.bounds.high_watermark = compacted.log.bounds.high_watermark._replace(
            offset=8, segment_base_offset=-1, position=-1
        )
        assert compacted.log.bounds.end_of("high_watermark") == (8, 10, 0)
        assert passed(compacted) == [("read", 0, 6), ("gap", 6, 8)]

    def test_damage_is_damage_and_a_gap_after_it_is_none(self, compacted: LogRoom) -> None:
        compacted.close()
        path = compacted.segment_path(5)
        content = bytearray(path.read_bytes())
        content[BATCH + 16] = 9
        path.write_bytes(content[: 3 * BATCH] + content[4 * BATCH :])
        reopen(compacted)
        assert passed(compacted) == [("read", 0, 6), ("lost", 6, 7), ("read", 7, 8), ("read", 9, 15)]
        assert passed(compacted, 8) == [("read", 9, 15)]

    def test_what_recovery_found_lost_is_told(self, compacted: LogRoom) -> None:
        for n in range(3):
            compacted.append(b"v", timestamp_ms=compacted.now_ms + n)
        compacted.flush()
        os.truncate(compacted.segment_path(15), BATCH)
        compacted.crash()
        assert passed(compacted) == [("read", 0, 16), ("lost", 16, 18)]


class TestTheLogStart:
    @pytest.mark.parametrize("policy", ["delete", "compact"])
    @pytest.mark.parametrize("is_clean", [True, False])
    def test_first_segments_that_are_missing_are_lost_if_the_start_is_known(
        self, room: LogRoom, policy: str, is_clean: bool
    ) -> None:
        room.set_config(cleanup_policy=policy)
        room.close()
        for base_offset in (0, 5):
            room.segment_path(base_offset).unlink()
        if not is_clean:
            room.stored = StoredState(room.stored.offsets, None)
        for _ in range(2):
            reopen(room, is_start_known=True)
            assert "the log starts at 0 and its first segment at 10" in str(room.log.recovery_report)
            assert room.log.log_start_offset == 0
            assert passed(room) == [("lost", 0, 10), ("read", 10, 15)]
            assert room.log.bounds.raise_log_start(3)
            assert passed(room, 3) == [("lost", 3, 10), ("read", 10, 15)]
            room.log.fail("as after a crash")
        reopen(room)
        assert passed(room, room.log.log_start_offset) == [("read", 10, 15)]

    def test_a_first_segment_under_a_later_name_is_read_all_the_same(self, room: LogRoom) -> None:
        room.close()
        room.segment_path(0).rename(room.segment_path(3))
        reopen(room, is_start_known=True)
        assert passed(room) == [("read", 0, 15)]

    def test_what_is_gone_without_a_trace_is_lost_as_well(self, room: LogRoom) -> None:
        room.close()
        for base_offset in (0, 5, 10, 15):
            room.segment_path(base_offset).unlink()
        reopen(room, is_start_known=True)
        assert (room.log.log_start_offset, room.log.log_end_offset) == (0, 15)
        assert passed(room) == [("lost", 0, 15)]
        assert room.append(b"next").first_offset == 15

    def test_what_retention_removed_before_a_crash_is_not_lost(self, room: LogRoom) -> None:
        before = room.log.offsets
        room.set_config(retention_bytes=BATCH)
        assert room.log.retention.raise_log_start(room.now_ms) == 10
        assert (room.log.log_start_offset, len(room.log.local.segments)) == (10, 4)
        assert room.log.retention.delete_old_segments(room.now_ms, below=5) == 1
        assert room.log.retention.delete_old_segments(room.now_ms) == 1
        assert room.log.retention.raise_log_start(room.now_ms) is None
        room.stored = StoredState(before, None)
        reopen(room, is_start_known=True)
        assert room.log.log_start_offset == 10, "a disk that was too full for a checkpoint"
        assert room.log.recovery_report.is_uneventful

    def test_retention_goes_on_from_a_lost_start(self, room: LogRoom) -> None:
        room.close()
        room.segment_path(0).unlink()
        reopen(room, is_start_known=True)
        room.set_config(retention_bytes=0)
        assert room.log.retention.raise_log_start(room.now_ms) == 15
        assert room.log.retention.delete_old_segments(room.now_ms) == 2
        assert room.log.log_start_offset == 15


def test_batches_after_a_hole_below_the_recovery_point_stay_readable(quick_path: Path) -> None:
    room = LogRoom(quick_path, LogConfig(retention_ms=UNLIMITED))
    room.fill(10)
    path = room.segment_path(0)
    content = path.read_bytes()
    path.write_bytes(content[: 3 * BATCH] + content[5 * BATCH :])
    room.crash()
    (found,) = room.log.recovery_report.damage
    assert (found.position, found.end_position, found.first_offset, found.next_offset) == (3 * BATCH, 3 * BATCH, 3, 5)
    for _ in range(2):
        assert passed(room) == [("read", 0, 3), ("lost", 3, 5), ("read", 5, 10)]
        room.crash()


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("base_offset", [5, 15])
def test_a_file_that_was_renamed_does_not_move_the_end_of_the_log(room: LogRoom, policy: str, base_offset: int) -> None:
    room.set_config(cleanup_policy=policy)
    room.append(b"v")
    room.flush()
    room.segment_path(base_offset).rename(room.segment_path(9000))
    room.crash()
    assert room.log.log_end_offset == 16
    is_told = policy == "delete" or base_offset == 15
    hole = [("lost", base_offset, min(base_offset + 5, 16))] * is_told
    assert passed(room) == [
        step for step in [("read", 0, base_offset), *hole, ("read", base_offset + 5, 16)] if step[1] < 16
    ]
    assert room.files(".cut") == [f"{9000:020d}.log.cut"]


def test_a_truncated_log_forgets_what_was_damaged_behind_its_end(room: LogRoom) -> None:
    room.append(b"v")
    room.append(b"v")
    room.flush()
    os.truncate(room.segment_path(15), 0)
    room.crash()
    assert passed(room) == [("read", 0, 15), ("lost", 15, 17)]
    truncate_to(room.log, 12, room.now_ms)
    for _ in range(8):
        room.append(b"v")
    room.flush()
    assert passed(room) == [("read", 0, 20)]
