"""The time index as Kafka's own tests have it (TimeIndexTest): base offset 45, room for 30 entries, 29 in use."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.broker.storage.log_files import overwrite
from warmlog_broker.storage.index.abstract_index import CorruptIndex, IndexOffsetOverflow, InvalidIndexOffset
from warmlog_broker.storage.index.time_index import TimeIndex
from warmlog_broker.storage.io.open_files import OpenFiles


@pytest.fixture
def index(tmp_path: Path) -> Iterator[TimeIndex]:
    with TimeIndex(tmp_path / "index", 45, open_files=OpenFiles(), max_index_bytes=30 * 12) as index:
        yield index


def fill(index: TimeIndex, entries: int = 29) -> TimeIndex:
    for number in range(1, entries + 1):
        index.maybe_append(10 * number, 45 + 10 * number)
    return index


def opened(path: Path) -> TimeIndex:
    return TimeIndex(path, 45, open_files=OpenFiles())


def test_the_bytes_are_kafkas(index: TimeIndex) -> None:
    index.maybe_append(1_700_000_000_000, 51)
    index.close()
    assert index.path.read_bytes().hex() == "0000018bcfe5680000000006"


def test_entries_are_read_by_number(index: TimeIndex) -> None:
    fill(index)
    assert [index.entry(slot) for slot in range(4)] == [(10, 55), (20, 65), (30, 75), (40, 85)]
    assert len(list(index)) == 29
    with pytest.raises(ValueError, match="no entry 29"):
        index.entry(29)


def test_one_slot_is_kept_free_for_the_last_entry(index: TimeIndex) -> None:
    fill(index)
    assert index.is_full
    assert index.max_entries == 30
    with pytest.raises(ValueError, match="full"):
        index.maybe_append(10_000, 1000)
    index.maybe_append(10_000, 1000, is_last=True)
    assert index.entries == 30
    with pytest.raises(ValueError, match="full"):
        index.maybe_append(10_001, 1001, is_last=True)


def test_an_offset_that_goes_back_is_refused_and_one_that_stays_is_not(index: TimeIndex) -> None:
    fill(index)
    with pytest.raises(InvalidIndexOffset, match="280"):
        index.maybe_append(10_000, 280, is_last=True)
    index.maybe_append(10_000, 335, is_last=True)
    assert index.last_entry == (10_000, 335)


def test_a_timestamp_that_goes_back_is_refused_and_one_that_stays_is_ignored(index: TimeIndex) -> None:
    fill(index, 5)
    with pytest.raises(ValueError, match="before"):
        index.maybe_append(49, 200)
    index.maybe_append(50, 200)
    assert (index.entries, index.last_entry) == (5, (50, 95))


def test_no_timestamp_makes_no_entry(index: TimeIndex) -> None:
    index.maybe_append(-1, 50)
    assert index.entries == 0
    index.maybe_append(0, 50)
    assert list(index) == [(0, 50)]


def test_offsets_that_do_not_fit_are_refused(index: TimeIndex) -> None:
    with pytest.raises(IndexOffsetOverflow):
        index.maybe_append(1, 45 + 2**31)
    assert index.entries == 0


def test_truncating_all_leaves_room_to_fill_it_again(index: TimeIndex) -> None:
    fill(index)
    index.truncate()
    assert (index.entries, index.last_entry) == (0, (-1, 45))
    fill(index)
    assert index.entries == 29


@pytest.mark.parametrize(("offset", "entries"), [(1000, 29), (336, 29), (335, 28), (334, 28), (56, 1), (55, 0), (0, 0)])
def test_truncation_drops_the_offset_and_all_behind_it(index: TimeIndex, offset: int, entries: int) -> None:
    fill(index)
    index.truncate_to(offset)
    assert index.entries == entries
    assert index.last_entry == ((10 * entries, 45 + 10 * entries) if entries else (-1, 45))


def test_truncation_drops_all_entries_of_one_offset(index: TimeIndex) -> None:
    for timestamp_ms in range(8):
        index.maybe_append(timestamp_ms, 60 if timestamp_ms else 50)
    index.truncate_to(60)
    assert list(index) == [(0, 50)]


def test_a_closed_index_is_sane_when_it_is_opened_again(index: TimeIndex) -> None:
    fill(index, 5)
    index.sanity_check()
    index.close()
    assert index.path.stat().st_size == 60
    with opened(index.path) as again:
        again.sanity_check()
        assert again.last_entry == (50, 95)


@pytest.mark.parametrize(
    ("position", "data"),
    [(56, b"\xff\xff\xff\xff"), (48, bytes(8)), (48, (10).to_bytes(8, "big")), (0, b"\xff" * 8), (8, b"\x7f\0\0\0")],
    ids=["last offset below base", "last time 0", "last time below first", "first time negative", "offset goes back"],
)
def test_a_damaged_entry_at_either_end_is_corrupt(index: TimeIndex, position: int, data: bytes) -> None:
    fill(index, 5)
    index.close()
    overwrite(index.path, position, data)
    with opened(index.path) as again, pytest.raises(CorruptIndex):
        again.sanity_check()
