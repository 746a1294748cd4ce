"""The offset index as Kafka's own tests have it (OffsetIndexTest): base offset 45, room for 30 entries."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmlog_broker.storage.index.abstract_index import CorruptIndex, IndexOffsetOverflow, InvalidIndexOffset
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.io.open_files import OpenFiles


@pytest.fixture
def index(tmp_path: Path) -> Iterator[OffsetIndex]:
    with OffsetIndex(tmp_path / "index", 45, open_files=OpenFiles(), max_index_bytes=30 * 8) as index:
        yield index


def opened(path: Path, base_offset: int = 45) -> OffsetIndex:
    return OffsetIndex(path, base_offset, open_files=OpenFiles())


def test_the_bytes_are_kafkas(index: OffsetIndex) -> None:
    index.append(51, 0)
    index.append(52, 69)
    index.close()
    assert index.path.read_bytes().hex() == "00000006000000000000000700000045"


def test_entries_are_read_by_number(index: OffsetIndex) -> None:
    with pytest.raises(ValueError, match="no entry 0"):
        index.entry(0)
    for slot in range(30):
        index.append(46 + slot, slot)
    assert [index.entry(slot) for slot in range(30)] == [(46 + slot, slot) for slot in range(30)] == list(index)
    for slot in (30, -1):
        with pytest.raises(ValueError, match="no entry"):
            index.entry(slot)


@pytest.mark.parametrize("offset", [50, 51])
def test_an_offset_that_does_not_increase_is_refused(index: OffsetIndex, offset: int) -> None:
    index.append(51, 0)
    with pytest.raises(InvalidIndexOffset):
        index.append(offset, 1)
    assert index.entries == 1


def test_the_upper_bound_of_a_fetch_is_the_first_entry_at_or_behind_its_end(index: OffsetIndex) -> None:
    for offset, position in ((45, 0), (46, 10), (47, 23), (48, 37)):
        index.append(offset, position)
    assert index.fetch_upper_bound(0, 10) == (46, 10)
    assert index.fetch_upper_bound(0, 22) == index.fetch_upper_bound(0, 23) == (47, 23)
    assert index.fetch_upper_bound(10, 24) == (48, 37)
    assert index.fetch_upper_bound(37, 1) is None
    assert index.fetch_upper_bound(0, 200) is None
    assert index.fetch_upper_bound(10, 200) is None


def test_a_full_index_refuses_entries(index: OffsetIndex) -> None:
    for slot in range(30):
        index.append(46 + slot, slot)
    with pytest.raises(ValueError, match="full"):
        index.append(100, 100)


def test_a_closed_index_is_trimmed_and_therefore_full_when_it_is_opened_again(index: OffsetIndex) -> None:
    index.append(51, 0)
    index.append(52, 1)
    index.close()
    assert index.path.stat().st_size == 16
    with opened(index.path) as again:
        assert again.lookup(51) == (51, 0)
        assert again.lookup(52) == (52, 1)
        assert (again.last_offset, again.entries, again.is_full) == (52, 2, True)
        with pytest.raises(ValueError, match="full"):
            again.append(53, 2)
        again.resize(240)
        again.append(53, 2)
        assert again.lookup(60) == (53, 2)


def test_truncating_all_keeps_the_room(index: OffsetIndex) -> None:
    index.append(50, 1)
    index.truncate()
    assert (index.entries, index.file_bytes, index.last_offset) == (0, 240, 45)
    for slot in range(30):
        index.append(46 + slot, slot)


def test_a_last_entry_at_the_base_offset_is_sane(tmp_path: Path) -> None:
    with OffsetIndex(tmp_path / "index", 20, open_files=OpenFiles(), max_index_bytes=80) as index:
        index.append(20, 0)
        index.sanity_check()
    with opened(index.path, 20) as again:
        again.sanity_check()
        assert list(again) == [(20, 0)]


@pytest.mark.parametrize(
    "content",
    [
        bytes(240),
        bytes.fromhex("0000000600000000 000000"),
        bytes.fromhex("fffffff600000001"),
        bytes.fromhex("0000000600000010 0000000600000020"),
        bytes.fromhex("0000000600000010 0000000500000020"),
        bytes.fromhex("0000000600000020 0000000700000010"),
        bytes.fromhex("00000006ffffffff"),
    ],
    ids=["zeros", "broken entry", "below base", "same offset", "offset back", "position back", "negative position"],
)
def test_what_cannot_have_been_written_is_corrupt(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.write_bytes(content)
    with opened(path) as index, pytest.raises(CorruptIndex, match="index"):
        index.sanity_check()


@pytest.mark.parametrize(("base", "offset"), [(0, -(2**31)), (0, 2**31), (1, 0), (100, 10), (2**31, 0), (2**31, 2**32)])
def test_offsets_that_do_not_fit_into_an_entry_are_refused(base: int, offset: int, tmp_path: Path) -> None:
    with OffsetIndex(tmp_path / "index", base, open_files=OpenFiles(), max_index_bytes=80) as index:
        with pytest.raises(IndexOffsetOverflow):
            index.append(offset, 0)
        index.append(base + 2**31 - 1, 0)


def test_garbage_never_breaks_a_lookup(tmp_path: Path) -> None:
    chance = random.Random(3)
    for number in range(30):
        path = tmp_path / f"{number}"
        path.write_bytes(chance.randbytes(chance.randrange(1, 20_000)))
        with OffsetIndex(path, 45, open_files=OpenFiles(), is_writable=False) as index:
            for target in (0, 45, 46, 10**6, 2**31, 2**40, chance.randrange(2**31)):
                index.lookup(target)
                index.fetch_upper_bound(target, 5)
