"""Index files that are missing, empty, stale or damaged: every lookup is right, and the files are as they were."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from present import present
from unit.broker.storage.log_files import append, append_batch, batch_of, open_segment, overwrite, read_offsets
from unit.broker.storage.time_lookups import record_in
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_indexes import LEAST_STALE_BYTES
from warmlog_protocol.errors import CorruptBatch

OFFSETS = range(100, 160)
INDEX, TIME_INDEX = f"{100:020d}.index", f"{100:020d}.timeindex"


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """The directory of a closed segment with batches of one record, offsets 100 to 159 at ten times that in ms."""
    segment = open_segment(tmp_path, 100, index_interval_bytes=300)
    append(segment, *OFFSETS)
    segment.close()
    return tmp_path


def opened(directory: Path, **settings: int) -> LogSegment:
    return open_segment(directory, 100, **({"index_interval_bytes": 300} | settings))


def expect_right_answers(segment: LogSegment) -> None:
    for offset in OFFSETS:
        assert read_offsets(segment, offset) == [offset]
        assert record_in(segment, 10 * offset - 5, 0) == (10 * offset, offset, 0)
    assert read_offsets(segment, OFFSETS[-1] + 1) is None
    assert record_in(segment, 10 * OFFSETS[-1] + 1, 0) is None
    assert segment.max_timestamp == (10 * OFFSETS[-1], OFFSETS[-1])


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def padded(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(240))


def shifted(path: Path) -> None:
    path.write_bytes(b"\x00" + path.read_bytes())


def shifted_by_an_entry(path: Path) -> None:
    path.write_bytes(path.read_bytes()[8 if path.name == INDEX else 12 :])


def random_bytes(path: Path) -> None:
    path.write_bytes(random.Random(5).randbytes(path.stat().st_size))


def beyond_the_log(path: Path) -> None:
    entry = 8 if path.name == INDEX else 12
    path.write_bytes(path.read_bytes()[:-entry] + b"\x00" + b"\x7f" * (entry - 1))


def last_position_wrong(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 8]))


def last_entry_missing(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: -8 if path.name == INDEX else -12])


DAMAGES = [
    remove,
    empty,
    zeros,
    padded,
    shifted,
    shifted_by_an_entry,
    random_bytes,
    beyond_the_log,
    last_position_wrong,
    last_entry_missing,
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [INDEX, TIME_INDEX])
def test_whatever_happened_to_an_index_the_answers_are_right(
    damage: Callable[[Path], None], name: str, closed: Path
) -> None:
    damage(closed / name)
    segment = opened(closed)
    expect_right_answers(segment)
    append(segment, 160)
    assert read_offsets(segment, 160) == [160]


@pytest.mark.parametrize("damage", [remove, zeros, padded, shifted, random_bytes, beyond_the_log])
@pytest.mark.parametrize("name", [INDEX, TIME_INDEX])
def test_a_damaged_index_is_rebuilt_as_it_was_with_a_warning(
    damage: Callable[[Path], None], name: str, closed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = {path.name: path.read_bytes() for path in closed.iterdir()}
    damage(closed / name)
    segment = opened(closed)
    expect_right_answers(segment)
    assert f"{segment.path}: rebuilding the indexes from the log" in caplog.text
    assert segment.unflushed() is None
    segment.close()
    assert {path.name: path.read_bytes() for path in closed.iterdir()} == expected


@pytest.mark.parametrize("entry", [0, 1, 6, 12, 13])
@pytest.mark.parametrize("wrong_position", [0, 1, 257, 89, 890, 5251, 10**9, -1])
def test_a_wrong_position_within_the_index_is_noticed_when_it_is_used(
    entry: int, wrong_position: int, closed: Path
) -> None:
    overwrite(closed / INDEX, 8 * entry + 4, wrong_position.to_bytes(4, "big", signed=True))
    segment = opened(closed)
    expect_right_answers(segment)


@pytest.mark.parametrize("entry", [0, 1, 6, 12, 13])
@pytest.mark.parametrize("wrong_offset", [0, 1, 3, 30, 58, 59, 200])
def test_a_wrong_offset_within_the_index_is_noticed_when_it_is_used(
    entry: int, wrong_offset: int, closed: Path
) -> None:
    overwrite(closed / INDEX, 8 * entry, wrong_offset.to_bytes(4, "big"))
    segment = opened(closed)
    expect_right_answers(segment)


@pytest.mark.parametrize("entry", [0, 1, 6, 12, 13])
@pytest.mark.parametrize("wrong_offset", [0, 1, 30, 59])
def test_a_wrong_offset_within_the_time_index_is_noticed_when_it_is_used(
    entry: int, wrong_offset: int, closed: Path
) -> None:
    overwrite(closed / TIME_INDEX, 12 * entry + 8, wrong_offset.to_bytes(4, "big"))
    segment = opened(closed)
    expect_right_answers(segment)


def test_healthy_indexes_are_not_rebuilt(closed: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in closed.iterdir()}
    for interval in (300, 50, 5000):
        segment = opened(closed, index_interval_bytes=interval)
        expect_right_answers(segment)
        segment.close()
    assert caplog.text == ""
    assert {path.name: path.stat().st_mtime_ns for path in closed.iterdir()} == before


def test_an_index_that_much_of_the_log_lies_behind_is_stale(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    segment = open_segment(tmp_path, 100, index_interval_bytes=4096, max_index_bytes=100_000)
    append(segment, *range(100, 120), value="x" * 100_000)
    segment.close()
    path = tmp_path / INDEX
    entries = path.read_bytes()
    path.write_bytes(entries[:32])
    assert segment.size_bytes - 4 * 100_000 > LEAST_STALE_BYTES
    again = opened(tmp_path, index_interval_bytes=4096, max_index_bytes=100_000)
    assert read_offsets(again, 119) == [119]
    assert "no entries after position" in caplog.text
    again.close()
    assert path.read_bytes() == entries


def test_index_files_beside_an_empty_log_are_not_believed(closed: Path) -> None:
    (closed / f"{100:020d}.log").write_bytes(b"")
    segment = opened(closed)
    assert read_offsets(segment, 100) is None
    assert segment.max_timestamp == (-1, 100)
    append(segment, *OFFSETS)
    expect_right_answers(segment)


def test_indexes_of_another_segment_are_not_believed(closed: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    segment = open_segment(other, 100, index_interval_bytes=300)
    append(segment, *range(100, 150), value="another length")
    segment.close()
    for name in (INDEX, TIME_INDEX):
        shutil.copy(other / name, closed / name)
    expect_right_answers(opened(closed))


def test_an_active_segment_goes_on_after_a_rebuild(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    segment = open_segment(tmp_path, 100, index_interval_bytes=300)
    append(segment, *OFFSETS)
    segment.indexes.offset.get().write_out()
    overwrite(tmp_path / INDEX, 8 * 5 + 4, bytes([0, 0, 1, 1]))
    expect_right_answers(segment)
    assert "rebuilding" in caplog.text
    append(segment, 160, 161, 162)
    segment.flush()
    assert segment.unflushed() is None
    segment.on_become_inactive()
    assert (tmp_path / TIME_INDEX).read_bytes()[-12:] == (1620).to_bytes(8, "big") + (62).to_bytes(4, "big")
    assert len((tmp_path / INDEX).read_bytes()) == 8 * segment.indexes.offset.get().entries
    assert [read_offsets(segment, offset) for offset in range(100, 163)] == [[offset] for offset in range(100, 163)]


def test_a_rebuild_may_need_more_entries_than_the_setting_allows_now(closed: Path) -> None:
    (closed / INDEX).unlink()
    segment = opened(closed, index_interval_bytes=0, max_index_bytes=120)
    expect_right_answers(segment)
    index = present(segment.indexes.for_offsets())
    assert index.entries == 59
    assert segment.indexes.are_full()


def test_damage_in_the_log_is_not_taken_for_damage_in_the_index(closed: Path, caplog: pytest.LogCaptureFixture) -> None:
    segment = opened(closed)
    index = present(segment.indexes.for_offsets())
    entry = index.entry(5)
    overwrite(segment.path, entry.position + 8, b"\xff\xff\xff\xff")
    for _ in range(2):
        with pytest.raises(CorruptBatch, match=f"{100:020d}.log: no valid batch at position {entry.position}"):
            read_offsets(segment, entry.offset)
    following = index.entry(6)
    for offset in OFFSETS:
        if not entry.offset <= offset < following.offset:
            assert read_offsets(segment, offset) == [offset]
    assert caplog.text == ""


def test_damage_between_index_entries_is_reported_with_its_position(closed: Path) -> None:
    segment = opened(closed)
    index = present(segment.indexes.for_offsets())
    size = segment.size_bytes // len(OFFSETS)
    damaged = index.entry(5).offset + 1
    position = (damaged - 100) * size
    overwrite(segment.path, position + 16, b"\x63")
    with pytest.raises(CorruptBatch, match=f"position {position}: .*magic 99"):
        read_offsets(segment, damaged)
    assert read_offsets(segment, damaged - 1) == [damaged - 1]
    assert read_offsets(segment, index.entry(6).offset) == [index.entry(6).offset]


def test_a_missing_index_of_a_damaged_log_leads_to_what_lies_behind_the_damage(
    closed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    size = opened(closed).size_bytes // len(OFFSETS)
    overwrite(closed / f"{100:020d}.log", 30 * size, b"\xff" * 40)
    (closed / INDEX).unlink()
    segment = opened(closed)
    for offset in OFFSETS:
        if offset != 130:
            assert read_offsets(segment, offset) == [offset]
    with pytest.raises(CorruptBatch, match=f"position {30 * size}"):
        read_offsets(segment, 130)
    assert f"no index entries for damage: {segment.path}: no valid batch at position {30 * size}" in caplog.text


def test_a_time_index_is_verified_without_timestamps_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    segment = open_segment(tmp_path, 100)
    for offset in range(100, 110):
        append_batch(segment, batch_of(["x"], offset=offset, timestamps_ms=-1))
    segment.close()
    again = opened(tmp_path)
    assert again.max_timestamp == (-1, 100)
    assert record_in(again, 0, 0) is None
    assert caplog.text == ""
