"""What a read gives at each bound, and at all borders: log start, last stable offset, high watermark, log end.

Names begin with the key of Kafka's own test if there is one.
"""

from pathlib import Path

import pytest

from truncating import truncate_fully
from unit.broker.storage.log_room import LogRoom, make_batch, read_batches
from warmlog_broker.storage.config import UNLIMITED, LogConfig
from warmlog_broker.storage.log.local_log import ReadBound
from warmlog_broker.storage.log.reader import FetchData
from warmlog_broker.storage.segment.segments import LogOffsetMetadata
from warmlog_protocol.errors import OffsetOutOfRange

BATCH = len(make_batch(b"v"))
ONE_SEGMENT = LogConfig(retention_ms=UNLIMITED)


@pytest.fixture
def room(quick_path: Path) -> LogRoom:
    return LogRoom(quick_path, ONE_SEGMENT)


def offsets(room: LogRoom, offset: int, bound: ReadBound = "high_watermark", max_bytes: int = 10_000) -> list[int]:
    return [n for batch in read_batches(room.log, offset, max_bytes=max_bytes, bound=bound) for n in batch.offsets()]


@pytest.mark.parametrize("bound", ["high_watermark", "committed"])
def test_a_read_at_the_bound_and_between_it_and_the_log_end_is_empty_with_the_place(
    room: LogRoom, bound: ReadBound
) -> None:
    for _ in range(4):
        room.append(b"v")
    room.log.bounds.raise_high_watermark(2)
    assert offsets(room, 1, bound) == [1]
    assert room.log.reader.read(2, 10_000, bound=bound) == FetchData(LogOffsetMetadata(2, 0, 2 * BATCH), [], 0, False)
    assert room.log.reader.read(3, 10_000, bound=bound) == FetchData(LogOffsetMetadata(3, 0, 3 * BATCH), [], 0, False)
    assert room.log.reader.read(4, 10_000, bound=bound) == FetchData(LogOffsetMetadata(4, 0, 4 * BATCH), [], 0, False)
    with pytest.raises(OffsetOutOfRange):
        room.log.reader.read(5, 10_000, bound=bound)


def test_a_bound_within_the_bytes_asked_for_cuts_them(room: LogRoom) -> None:
    for _ in range(4):
        room.append(b"v")
    room.log.bounds.raise_high_watermark(3)
    assert room.log.reader.read(1, 10_000).size_bytes == 2 * BATCH
    assert room.log.reader.read(1, 10_000, bound="log_end").size_bytes == 3 * BATCH


def test_committed_ends_before_the_first_open_transaction(room: LogRoom) -> None:
    room.append(b"0")
    room.append_in_transaction(b"1", producer=(7, 0, 0))
    room.append(b"2")
    room.flush()
    assert offsets(room, 0, "committed") == [0]
    assert room.log.bounds.end_of("committed") == LogOffsetMetadata(1, 0, BATCH)
    assert room.log.reader.read(1, 10_000, bound="committed") == FetchData(LogOffsetMetadata(1, 0, BATCH), [], 0, False)
    assert offsets(room, 0) == [0, 1, 2]


def test_ll_10_places_in_and_behind_segments(room: LogRoom) -> None:
    for n in range(5):
        if n in (2, 4):
            room.log.local.roll(room.now_ms)
        room.append(b"v")
    segments = room.log.local.segments
    assert segments.base_offsets == [0, 2, 4]

    def read(offset: int, end: LogOffsetMetadata) -> tuple[LogOffsetMetadata, int]:
        data = room.log.reader.read_up_to(end, offset, 100, min_one_batch=True)
        return data.start, data.size_bytes

    assert read(3, LogOffsetMetadata(4, 4, 0)) == ((3, 2, BATCH), BATCH)
    assert read(4, LogOffsetMetadata(4, 4, 0)) == ((4, 4, 0), 0)
    assert read(3, LogOffsetMetadata(4)) == ((3, 2, BATCH), 0)
    assert read(3, LogOffsetMetadata(4, 0, 40)) == ((3, 2, BATCH), 0)
    assert room.log.reader.read(4, 100, bound="log_end").start == (4, 4, 0)
    assert room.log.reader.read(5, 100, bound="log_end").start == (5, 4, BATCH)


def test_ul_22_one_behind_the_end_is_out_of_range_and_the_end_is_not(room: LogRoom) -> None:
    truncate_fully(room.log, 1024, room.now_ms)
    room.append(b"v")
    assert room.log.reader.read(1025, 1000, bound="log_end").size_bytes == 0
    for offset in (0, 1023, 1026):
        with pytest.raises(OffsetOutOfRange, match="not between 1024 and 1025"):
            room.log.reader.read(offset, 1000, bound="log_end")


def test_ul_44_the_high_watermark_stays_between_what_it_was_and_the_log_end(room: LogRoom) -> None:
    room.append(*[b"v"] * 100)
    assert [room.log.bounds.raise_high_watermark(offset) for offset in (99, 99, 100, 100, 101, 50)] == [
        *[99, 99],
        *[100] * 4,
    ]


def test_ul_47_the_place_of_the_high_watermark_is_known_wherever_it_came_from(room: LogRoom) -> None:
    for _ in range(4):
        room.append(b"v")
    room.log.bounds.raise_high_watermark(2)
    assert room.log.bounds.end_of("high_watermark") == (2, 0, 2 * BATCH)
    room.flush()
    assert room.log.bounds.end_of("high_watermark") == (4, 0, 4 * BATCH)
    room.log.local.roll(room.now_ms)
    assert room.log.bounds.end_of("high_watermark") == (4, 4, 0)
    room.append(b"v")
    assert room.log.bounds.end_of("high_watermark") == (4, 4, 0)
    room.restart()
    assert room.log.bounds.end_of("high_watermark") == (5, 4, BATCH)


def test_an_empty_log_has_all_its_bounds_at_its_start(room: LogRoom) -> None:
    bounds: tuple[ReadBound, ...] = ("log_end", "high_watermark", "committed")
    for bound in bounds:
        assert room.log.bounds.end_of(bound) == (0, 0, 0)
        assert room.log.reader.read(0, 100, bound=bound) == FetchData(LogOffsetMetadata(0, 0, 0), [], 0, False)
