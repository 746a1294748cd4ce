"""The part of a lookup by time that opens batches: in any thread, within memory, on files that may change."""

import sys
import threading
from pathlib import Path

import pytest

from truncating import truncate_to
from unit.broker.storage.log_room import START_MS, LogRoom
from unit.broker.storage.time_lookups import latest_record, record_at
from warmlog_broker.storage.segment.segment_lookup import TimeSearch, TimestampAndOffset
from warmlog_protocol.batch import NeedsMemory, encode_batch
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.errors import CorruptBatch

LIMIT_BYTES = 10_000_000
LATE_MS = START_MS + 5


@pytest.fixture
def room(quick_path: Path) -> LogRoom:
    room = LogRoom(quick_path)
    room.set_config(segment_bytes=2_000_000, segment_index_bytes=4000)
    return room


def search_of(room: LogRoom, timestamp_ms: int, from_offset: int = 0) -> TimeSearch:
    step = room.log.reader.search_time(timestamp_ms, from_offset)
    assert step is not None
    return step[0]


def run(search: TimeSearch, memory_bytes: int = sys.maxsize, limit_bytes: int = LIMIT_BYTES) -> object:
    return search.run(limit_bytes, lambda: None, memory_bytes)


def append_large(room: LogRoom, codec: Codec = Codec.ZSTD) -> int:
    """A batch that becomes 800 KB, of which the second record is late; returns that record's offset."""
    batch = encode_batch([bytes(400_000)] * 2, timestamps_ms=[START_MS, LATE_MS], codec=codec)
    return room.append_bytes(batch).last_offset


def test_the_index_leads_to_the_place_and_the_search_opens_the_batch(room: LogRoom) -> None:
    for number in range(500):
        room.append(b"x" * 50, timestamp_ms=START_MS + number)
    search = search_of(room, START_MS + 400)
    assert 0 < search.slice.position < room.log.local.segments.size_bytes
    assert run(search) == (START_MS + 400, 400, 0)


def test_a_batch_that_takes_more_memory_than_is_allowed_is_not_opened(room: LogRoom) -> None:
    offset = append_large(room)
    search = search_of(room, LATE_MS)
    with pytest.raises(NeedsMemory) as raised:
        run(search, 500_000)
    assert 800_000 < raised.value.size_bytes < 1_000_000
    assert run(search, raised.value.size_bytes) == (LATE_MS, offset, 0)


def test_nor_is_one_read_that_is_too_large_itself(room: LogRoom) -> None:
    offset = append_large(room, Codec.NONE)
    search = search_of(room, LATE_MS)
    with pytest.raises(NeedsMemory) as raised:
        run(search, 500_000)
    assert run(search, raised.value.size_bytes + 1000) == (LATE_MS, offset, 0)


def test_a_batch_that_grows_over_the_limit_is_an_error(room: LogRoom) -> None:
    append_large(room)
    with pytest.raises(CorruptBatch, match="over the limit of 100000"):
        run(search_of(room, LATE_MS), limit_bytes=100_000)


def test_it_may_run_in_another_thread_while_the_log_goes_on(room: LogRoom) -> None:
    offset = append_large(room)
    search = search_of(room, LATE_MS)
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(run(search)))
    room.log.local.roll(room.now_ms)
    for _ in range(100):
        room.append(b"more")
    thread.start()
    thread.join()
    assert found == [(LATE_MS, offset, 0)]


def test_it_reads_the_file_that_it_was_made_for_though_the_log_is_deleted(room: LogRoom) -> None:
    offset = append_large(room)
    search = search_of(room, LATE_MS)
    room.flush()
    room.log.delete()
    assert run(search) == (LATE_MS, offset, 0)


def test_a_cut_on_the_way_is_noticed(room: LogRoom) -> None:
    room.append(b"a")
    append_large(room)
    room.append(b"c", timestamp_ms=LATE_MS)
    search = search_of(room, LATE_MS)
    room.flush()
    truncate_to(room.log, 1, room.now_ms)
    assert search.slice.is_cut
    with pytest.raises(CorruptBatch):
        run(search)
    room.append(b"b", timestamp_ms=LATE_MS)
    assert not search_of(room, LATE_MS).slice.is_cut
    assert record_at(room.log, LATE_MS) == (LATE_MS, 1, 0)


def test_what_lies_about_its_time_is_passed_over_segment_by_segment(room: LogRoom) -> None:
    """If the log start is within a batch, what made it late may be below."""
    for _ in range(3):
        room.append_bytes(encode_batch([b"late", b"early"], timestamps_ms=[LATE_MS, START_MS]))
        room.log.local.roll(room.now_ms)
    room.flush()
    room.log.retention.delete_records(1)
    first, next_offset = room.log.reader.search_time(LATE_MS) or (None, 0)
    assert first is not None
    assert (run(first), next_offset) == (None, 2)
    assert record_at(room.log, LATE_MS) == TimestampAndOffset(LATE_MS, 2, 0)
    assert room.log.reader.search_time(LATE_MS, 5) is None or run(search_of(room, LATE_MS, 5)) is None
    assert room.log.reader.search_time(LATE_MS, 99) is None


def test_an_emptied_batch_has_no_record_at_any_time(room: LogRoom) -> None:
    room.append(b"a", timestamp_ms=START_MS)
    assert latest_record(room.log) == (START_MS, 0, 0)
    assert room.log.reader.search_time(START_MS + 1) is None
    assert room.log.reader.search_largest("log_end", [0], None) is None


@pytest.mark.parametrize("rolls", [False, True])
def test_the_largest_timestamp_is_of_a_record_that_may_be_read(room: LogRoom, rolls: bool) -> None:
    """Whatever is before the log start, in the same batch, segment or another one, or after what may be read."""
    room.append_bytes(encode_batch([b"0", b"1", b"2"], timestamps_ms=[START_MS + 90, START_MS + 80, START_MS + 70]))
    for number in range(3, 8):
        if rolls:
            room.log.local.roll(room.now_ms)
        room.append(b"x", timestamp_ms=START_MS + 60 + number % 3)
    room.flush()
    expected = [90, 80, 70, 62, 62, 62, 61, 61]
    first = [0, 1, 2, 5, 5, 5, 7, 7]
    for start in range(8):
        room.log.retention.delete_records(start)
        assert latest_record(room.log) == (START_MS + expected[start], first[start], 0), start
    room.append(b"not committed", timestamp_ms=START_MS + 99)
    assert latest_record(room.log, "high_watermark") == (START_MS + 61, 7, 0)
    assert latest_record(room.log) == (START_MS + 99, 8, 0)
    room.flush()
    room.log.retention.delete_records(9)
    assert latest_record(room.log) is None
