"""When a log begins a new segment, as Kafka's own tests have it (the keys are theirs)."""

from itertools import pairwise
from pathlib import Path

import pytest

from truncating import truncate_to
from unit.broker.storage.log_files import batch_of
from unit.broker.storage.log_room import START_MS, LogRoom, make_batch, read_values
from warmlog_broker.storage.config import UNLIMITED, LogConfig

SEGMENT_MS = 3_600_000
NO_TIME = -1
BATCH = len(make_batch(b"v"))


def test_ul_10_without_timestamps_each_append_after_the_time_begins_a_segment_but_the_first(quick_path: Path) -> None:
    room = LogRoom(quick_path, LogConfig(segment_ms=SEGMENT_MS, retention_ms=UNLIMITED))
    room.now_ms += SEGMENT_MS + 1
    counts = []
    for _ in range(4):
        room.append(b"v", timestamp_ms=NO_TIME)
        counts.append(len(room.log.local.segments))
        room.now_ms += SEGMENT_MS + 1
    assert counts == [1, 2, 3, 4]


def test_ul_11_with_timestamps_it_is_they_that_grow_old_and_not_the_clock(quick_path: Path) -> None:
    config = LogConfig(segment_ms=SEGMENT_MS, retention_ms=UNLIMITED, message_timestamp_after_max_ms=10**15)
    room = LogRoom(quick_path, config)
    room.append(b"v", timestamp_ms=NO_TIME)
    ahead_ms = room.now_ms + SEGMENT_MS + 1
    room.append(b"v", timestamp_ms=ahead_ms)
    assert len(room.log.local.segments) == 1
    room.now_ms += SEGMENT_MS + 1
    room.append(b"v", timestamp_ms=ahead_ms)
    assert len(room.log.local.segments) == 2
    room.now_ms += SEGMENT_MS + 1
    room.append(b"v", timestamp_ms=ahead_ms)
    assert len(room.log.local.segments) == 2
    room.append(b"v", timestamp_ms=ahead_ms + SEGMENT_MS)
    assert len(room.log.local.segments) == 2
    room.append(b"v", timestamp_ms=ahead_ms + SEGMENT_MS + 1)
    assert len(room.log.local.segments) == 3
    room.now_ms += 10 * SEGMENT_MS
    room.log.follower.append(b"", now_ms=room.now_ms)
    assert len(room.log.local.segments) == 3


@pytest.mark.parametrize("is_follower", [False, True])
def test_a_compacted_log_rolls_by_its_largest_compaction_lag_as_leader_and_as_follower(
    quick_path: Path, is_follower: bool
) -> None:
    lag_ms = 1000
    config = LogConfig(cleanup_policy="compact", segment_ms=SEGMENT_MS, max_compaction_lag_ms=lag_ms)
    room = LogRoom(quick_path, config)
    counts = []
    for offset, age_ms in enumerate((0, lag_ms, lag_ms + 1)):
        if is_follower:
            batch = batch_of(["v"], offset=offset, timestamps_ms=START_MS + age_ms)
            room.log.follower.append(batch, now_ms=room.now_ms)
        else:
            room.append(b"v", timestamp_ms=START_MS + age_ms)
        counts.append(len(room.log.local.segments))
    assert counts == [1, 1, 2]


def test_jitter_is_never_more_than_the_time_after_which_a_compacted_log_rolls(quick_path: Path) -> None:
    config = LogConfig(
        cleanup_policy="compact", segment_ms=SEGMENT_MS, segment_jitter_ms=SEGMENT_MS, max_compaction_lag_ms=1000
    )
    room = LogRoom(quick_path, config)
    for _ in range(5):
        room.append(b"v")
    assert len(room.log.local.segments) == 1


@pytest.mark.parametrize(("segment_bytes", "held"), [(10 * BATCH, 10), (10 * (BATCH - 1), 9)])
def test_ul_13_a_segment_holds_the_batches_that_fit_and_no_more(
    quick_path: Path, segment_bytes: int, held: int
) -> None:
    room = LogRoom(quick_path, LogConfig(segment_bytes=segment_bytes, retention_ms=UNLIMITED))
    for _ in range(11):
        room.append(b"v")
    assert room.log.local.segments.base_offsets == [0, held]


def test_ul_14_a_full_index_begins_one_segment_and_no_more(quick_path: Path) -> None:
    room = LogRoom(quick_path, LogConfig(index_interval_bytes=1, segment_index_bytes=48, retention_ms=UNLIMITED))
    room.log.local.roll(room.now_ms)
    assert len(room.log.local.segments) == 1
    for n in range(30):
        room.append(b"%d" % n, timestamp_ms=START_MS + n)
    bases = room.log.local.segments.base_offsets
    assert len(bases) > 3
    assert all(b - a >= 3 for a, b in pairwise(bases))
    truncate_to(room.log, bases[-1], room.now_ms)
    room.append(b"%d" % bases[-1])
    assert room.log.local.segments.base_offsets == bases
    assert read_values(room.log) == [b"%d" % n for n in range(bases[-1] + 1)]


def test_ll_16_the_base_of_a_new_segment_is_the_log_end_whatever_lower_one_is_expected(quick_path: Path) -> None:
    room = LogRoom(quick_path)
    room.log.local.roll(room.now_ms, 0)
    assert room.log.local.segments.base_offsets == [0]
    room.append(b"v")
    assert room.log.local.roll(room.now_ms).base_offset == 1
    room.append(b"v")
    assert room.log.local.roll(room.now_ms, 1).base_offset == 2


@pytest.mark.parametrize("is_clean", [True, False])
def test_sg_20_a_preallocated_file_is_trimmed_at_a_roll_at_a_close_and_after_a_crash(
    quick_path: Path, is_clean: bool
) -> None:
    config = LogConfig(segment_bytes=100_000, preallocate=True, retention_ms=UNLIMITED)
    room = LogRoom(quick_path, config)
    room.fill(3)
    assert room.segment_path(0).stat().st_size == 100_000
    room.log.local.roll(room.now_ms)
    assert room.segment_path(0).stat().st_size == 3 * BATCH
    assert room.segment_path(3).stat().st_size == 100_000
    room.fill(2)
    if is_clean:
        room.close()
        assert room.segment_path(3).stat().st_size == 2 * BATCH
        room.open()
    else:
        room.crash()
    assert room.segment_path(3).stat().st_size == 2 * BATCH
    room.fill(1)
    assert len(read_values(room.log)) == 6


def test_a_segment_that_was_cut_while_preallocated_goes_on_where_it_ends(quick_path: Path) -> None:
    room = LogRoom(quick_path, LogConfig(segment_bytes=100_000, preallocate=True, retention_ms=UNLIMITED))
    room.fill(5)
    truncate_to(room.log, 2, room.now_ms)
    room.fill(1)
    assert room.segment_path(0).stat().st_size == 3 * BATCH
    room.crash()
    assert len(read_values(room.log)) == 3
