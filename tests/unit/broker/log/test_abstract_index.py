"""The search of both indexes, warm section first, against bisection; and what happens to files and maps around it."""

import mmap
import os
from bisect import bisect_left, bisect_right
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.broker.log.log_files import no_file_grows_beyond
from warmlog_broker.log.abstract_index import AbstractIndex, CorruptIndex, Field, IndexOffsetOverflow
from warmlog_broker.log.offset_index import OffsetIndex
from warmlog_broker.log.open_files import ClosedFile, OpenFiles
from warmlog_broker.log.time_index import TimeIndex

BASE = 1000
WARM = {OffsetIndex: 1024, TimeIndex: 682}


def sizes(index_class: type[AbstractIndex]) -> list[int]:
    warm = WARM[index_class]
    return [*range(14), warm, warm + 1, warm + 2, warm + 3, 3 * warm]


def fill(path: Path, index_class: type[AbstractIndex], pairs: list[tuple[int, int]]) -> AbstractIndex:
    """An index with these raw (key, value) pairs."""
    room = max(len(pairs) + 2, 4) * index_class.entry_bytes
    index = index_class(path, BASE, open_files=OpenFiles(), max_index_bytes=room)
    for key, value in pairs:
        if isinstance(index, OffsetIndex):
            index.append(BASE + key, value)
        else:
            assert isinstance(index, TimeIndex)
            index.maybe_append(key, BASE + value)
    assert index.entries == len(pairs)
    return index


def ceiling_as_kafka_has_it(stored: list[int], target: int) -> int:
    """The true ceiling, except that an exact hit on slot 0 is not seen."""
    if not stored:
        return -1
    if target == stored[0]:
        return 1 if len(stored) > 1 else -1
    slot = bisect_left(stored, target)
    return slot if slot < len(stored) else -1


def targets(stored: list[int], warm: int) -> list[int]:
    """Every value when there are few, and those around the ends and around the border of the warm section."""
    if not stored:
        return [-1, 0, 5]
    borders = {0, 1, len(stored) - 1, len(stored) // 2}
    borders.update(range(max(0, len(stored) - warm - 4), max(0, len(stored) - warm + 3)))
    slots = range(len(stored)) if len(stored) < 20 else sorted(slot for slot in borders if slot < len(stored))
    return sorted({stored[slot] + step for slot in slots for step in (-1, 0, 1)} | {-5, stored[-1] + 1000})


@pytest.mark.parametrize("index_class", [OffsetIndex, TimeIndex])
def test_both_bounds_match_bisection_for_every_size_around_the_warm_section(
    index_class: type[AbstractIndex], tmp_path: Path
) -> None:
    for size in sizes(index_class):
        pairs = [(3 * slot + 2, 5 * slot + 7) for slot in range(size)]
        with fill(tmp_path / f"{size}", index_class, pairs) as index:
            for field, stored in ((index.key, [k for k, _ in pairs]), (index.value, [v for _, v in pairs])):
                for target in targets(stored, WARM[index_class]):
                    place = f"{target} in {size} entries"
                    assert index._lower_bound_slot(target, field) == bisect_right(stored, target) - 1, place
                    assert index._upper_bound_slot(target, field) == ceiling_as_kafka_has_it(stored, target), place


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.one_of(
        st.lists(st.integers(1, 2000), max_size=40),
        st.builds(lambda n, gap: [gap] * n, st.integers(1000, 3200), st.integers(1, 9)),
    ),
    shift=st.integers(-3, 3),
    part=st.floats(0, 1),
    index_class=st.sampled_from([OffsetIndex, TimeIndex]),
)
def test_a_lookup_finds_what_bisection_finds(
    gaps: list[int], shift: int, part: float, index_class: type[AbstractIndex], tmp_path_factory: pytest.TempPathFactory
) -> None:
    stored: list[int] = []
    for gap in gaps:
        stored.append((stored[-1] if stored else 0) + gap)
    target = (stored[int(part * (len(stored) - 1))] if stored else 0) + shift
    path = tmp_path_factory.mktemp("index") / "index"
    with fill(path, index_class, [(key, slot) for slot, key in enumerate(stored)]) as index:
        assert index._lower_bound_slot(target, index.key) == bisect_right(stored, target) - 1
        assert index._upper_bound_slot(target, index.key) == ceiling_as_kafka_has_it(stored, target)


@pytest.mark.parametrize(("entries", "most_probes"), [(1025, 12), (3 * 1024, 12), (100_000, 12)])
def test_a_lookup_at_the_end_reads_at_most_twelve_slots_of_three_pages(
    entries: int, most_probes: int, tmp_path: Path
) -> None:
    path = tmp_path / "index"
    path.write_bytes(b"".join(slot.to_bytes(4, "big") + slot.to_bytes(4, "big") for slot in range(1, entries + 1)))
    index = OffsetIndex(path, 0, open_files=OpenFiles())
    touched: list[int] = []

    def unpack(buffer: mmap.mmap, position: int) -> tuple[int]:
        touched.append(position)
        return index.key.unpack(buffer, position)

    for offset in range(entries - 800, entries + 1):
        touched.clear()
        assert index._lower_bound_slot(offset, Field(unpack, 0)) == offset - 1
        assert len(touched) <= most_probes
        assert len({position // 4096 for position in touched}) <= 3


def test_the_warm_section_is_the_last_8192_bytes() -> None:
    assert OffsetIndex.warm_entries == WARM[OffsetIndex]
    assert TimeIndex.warm_entries == WARM[TimeIndex]


def test_lookups_stop_at_the_entries_and_never_see_the_zeros_behind_them(tmp_path: Path) -> None:
    with fill(tmp_path / "index", OffsetIndex, [(5, 10), (9, 20)]) as index:
        index.resize(8192)
        assert isinstance(index, OffsetIndex)
        assert index.lookup(BASE + 10**6) == (BASE + 9, 20)
        assert list(index) == [(BASE + 5, 10), (BASE + 9, 20)]


@pytest.mark.parametrize("index_class", [OffsetIndex, TimeIndex])
@pytest.mark.parametrize("entries", [0, 1, 2, 3, 500])
def test_a_crashed_index_is_readable_for_tools_but_does_not_pass_as_sane(
    index_class: type[AbstractIndex], entries: int, tmp_path: Path
) -> None:
    path = tmp_path / "index"
    index = fill(path, index_class, [(slot + 1, slot) for slot in range(entries)])
    index.resize(10_000)
    index.close_handles()

    found = index_class(path, BASE, open_files=OpenFiles(), is_writable=False)
    assert found.entries == entries
    assert found.is_padded
    with pytest.raises(CorruptIndex, match="zeros"):
        found.sanity_check()
    found.close()
    assert path.stat().st_size == 10_000 - 10_000 % index_class.entry_bytes


def test_dropped_entries_are_zeroed_so_that_a_crash_does_not_bring_them_back(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = fill(path, OffsetIndex, [(slot + 1, slot) for slot in range(10)])
    index.truncate_to(BASE + 4)
    assert path.read_bytes()[3 * 8 :].strip(b"\0") == b""
    assert index.entries == 3
    index.close_handles()


@pytest.mark.parametrize("index_class", [OffsetIndex, TimeIndex])
def test_opening_read_only_creates_and_changes_nothing(index_class: type[AbstractIndex], tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(FileNotFoundError):
        index_class(missing, BASE, open_files=OpenFiles(), is_writable=False)
    assert not missing.exists()

    path = tmp_path / "index"
    fill(path, index_class, [(1, 2), (3, 4)]).close()
    path.chmod(0o444)
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    with index_class(path, BASE, open_files=OpenFiles(), is_writable=False) as index:
        assert index.entries == 2
        for change in (index.truncate, lambda: index.resize(1200), lambda: index.truncate_to(0)):
            with pytest.raises(PermissionError):
                change()
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_a_file_that_may_not_be_written_is_opened_without_asking_to(tmp_path: Path) -> None:
    path = tmp_path / "index"
    fill(path, OffsetIndex, [(1, 2)]).close()
    path.chmod(0o444)
    with OffsetIndex(path, BASE, open_files=OpenFiles(), is_writable=False) as index:
        flags = int(Path(f"/proc/self/fdinfo/{index.open_file().fd}").read_text().split("flags:")[1].split()[0], 8)
        assert flags & os.O_ACCMODE == os.O_RDONLY


def test_room_is_made_when_the_file_is_created_rounded_down_to_whole_entries(tmp_path: Path) -> None:
    for index_class, expected in ((OffsetIndex, 10_485_760), (TimeIndex, 10_485_756)):
        path = tmp_path / index_class.__name__
        with index_class(path, 0, open_files=OpenFiles(), max_index_bytes=10_485_760) as index:
            assert (index.file_bytes, path.stat().st_size, index.entries) == (expected, expected, 0)
            assert path.stat().st_blocks == 0
        assert path.stat().st_size == 0


def test_an_index_needs_room_for_an_entry(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="7 bytes"):
        OffsetIndex(tmp_path / "index", 0, open_files=OpenFiles(), max_index_bytes=7)


def test_resizing_keeps_the_entries_and_refuses_to_cut_them(tmp_path: Path) -> None:
    with fill(tmp_path / "index", OffsetIndex, [(slot + 1, slot) for slot in range(8)]) as index:
        assert isinstance(index, OffsetIndex)
        assert index.resize(80) is False
        for size_bytes in (8001, 64, 100_000, 65):
            assert index.resize(size_bytes) is True
            assert index.lookup(BASE + 8) == (BASE + 8, 7)
            assert index.max_entries == size_bytes // 8
        with pytest.raises(ValueError, match="do not fit"):
            index.resize(63)


def test_shrinking_unmaps_first_and_growing_shows_what_is_written_later(tmp_path: Path) -> None:
    """Were the old map kept, touching its lost pages would kill this process with SIGBUS."""
    index = fill(tmp_path / "index", OffsetIndex, [(1, 1)])
    assert isinstance(index, OffsetIndex)
    index.resize(1 << 20)
    assert index.lookup(BASE + 1).position == 1
    old_map = index._map
    assert old_map is not None
    index.trim()
    assert old_map.closed
    assert index.lookup(BASE + 1).position == 1
    index.resize(1 << 20)
    for offset in range(2, 2000):
        index.append(BASE + offset, offset)
        assert index.lookup(BASE + offset).position == offset
    index.close()


def test_closing_twice_is_harmless_and_use_after_it_a_clear_error(tmp_path: Path) -> None:
    for pairs in ([], [(1, 2)]):
        index = fill(tmp_path / f"{len(pairs)}", OffsetIndex, pairs)
        assert isinstance(index, OffsetIndex)
        index.close()
        index.close()
        index.close_handles()
        for use in (
            lambda index=index: index.lookup(BASE + 1),
            lambda index=index: index.entry(0),
            lambda index=index: index.append(BASE + 9, 9),
            lambda index=index: index.truncate_to(BASE),
            lambda index=index: index.resize(800),
            index.truncate,
            index.open_file,
        ):
            with pytest.raises(ClosedFile, match="was closed"):
                use()


def test_deleting_unmaps_and_says_whether_there_was_a_file(tmp_path: Path) -> None:
    index = fill(tmp_path / "index", OffsetIndex, [(1, 2)])
    assert index.delete() is True
    assert index.delete() is False
    assert not index.path.exists()


def test_renaming_moves_the_file_and_goes_on_working(tmp_path: Path) -> None:
    index = fill(tmp_path / "index", OffsetIndex, [(1, 2)])
    assert isinstance(index, OffsetIndex)
    index.rename_to(tmp_path / "other")
    index.let_go()
    assert index.lookup(BASE + 1) == (BASE + 1, 2)
    index.append(BASE + 2, 3)
    assert not (tmp_path / "index").exists()
    index.close()
    assert (tmp_path / "other").stat().st_size == 16


def test_an_index_that_had_to_let_go_opens_itself_again(tmp_path: Path) -> None:
    open_files = OpenFiles(limit=2)
    indexes = [OffsetIndex(tmp_path / f"{n}", 0, open_files=open_files, max_index_bytes=800) for n in range(5)]
    for offset in range(1, 60):
        for number, index in enumerate(indexes):
            index.append(offset, 10 * offset + number)
            assert index.lookup(offset) == (offset, 10 * offset + number)
            assert open_files.open_count <= 2
    for index in indexes:
        index.close()
    assert open_files.open_count == 0


def test_a_full_disk_is_an_error_and_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    index = fill(tmp_path / "index", OffsetIndex, [(slot + 1, slot) for slot in range(8)])
    assert isinstance(index, OffsetIndex)
    index.resize(800)
    for limit in (64, 68):
        with no_file_grows_beyond(limit), pytest.raises(OSError):  # noqa: PT011 - EFBIG, or a short write
            index.append(BASE + 9, 9)
        assert index.entries == 8
        assert index.lookup(BASE + 100) == (BASE + 8, 7)
    index.append(BASE + 9, 9)
    assert index.lookup(BASE + 100) == (BASE + 9, 9)
    index.close()


def test_a_file_cut_by_somebody_else_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    index = fill(tmp_path / "index", OffsetIndex, [(1, 2)])
    assert isinstance(index, OffsetIndex)
    index.let_go()
    os.truncate(index.path, 0)
    with pytest.raises(CorruptIndex, match="shorter"):
        index.lookup(BASE + 1)


@pytest.mark.parametrize(("base", "offset"), [(0, -(2**31)), (0, 2**31), (1, 0), (100, 10), (2**31, 0), (2**31, 2**32)])
def test_offsets_that_do_not_fit_into_an_entry_are_refused(base: int, offset: int, tmp_path: Path) -> None:
    with OffsetIndex(tmp_path / "index", base, open_files=OpenFiles(), max_index_bytes=80) as index:
        assert not index.can_append_offset(offset)
        with pytest.raises(IndexOffsetOverflow):
            index.append(offset, 0)
        assert index.can_append_offset(base + 2**31 - 1)
        index.append(base + 2**31 - 1, 0)


def test_descriptors_and_maps_are_released_at_once(tmp_path: Path) -> None:
    def open_descriptors() -> int:
        links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return sum(tmp_path in link.parents for link in links)

    with OffsetIndex(tmp_path / "open", 0, open_files=OpenFiles(10), max_index_bytes=80):
        assert open_descriptors() > 0
    for number in range(20):
        index = fill(tmp_path / f"{number}", OffsetIndex, [(1, 1)])
        index._lower_bound_slot(1, index.key)
        index.close()
    assert open_descriptors() == 0
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
