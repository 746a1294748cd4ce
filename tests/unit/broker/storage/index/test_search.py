"""The warm/cold search against bisection (reference 2.2), and what it touches; the classic search beside it."""

from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.broker.storage.index.index_files import AnyIndexClass, entry_of, fill, looked_up, no_entry, write_file
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.search import SlotBounds, classic_search, warm_cold_search
from warmlog_broker.storage.index.time_index import TimeIndex
from warmlog_broker.storage.io.open_files import OpenFiles

WARM = {OffsetIndex: 1024, TimeIndex: 682}
BOTH = pytest.mark.parametrize("index_class", [OffsetIndex, TimeIndex])


def sizes(warm: int) -> list[int]:
    return [*range(14), warm, warm + 1, warm + 2, warm + 3, 3 * warm]


def bounds_by_bisection(stored: list[int], target: int) -> SlotBounds:
    """The true floor and ceiling, except that an exact hit on slot 0 is not seen by the ceiling."""
    lower = bisect_right(stored, target) - 1
    if stored and target == stored[0]:
        return SlotBounds(lower, 1 if len(stored) > 1 else -1)
    upper = bisect_left(stored, target)
    return SlotBounds(lower, upper if upper < len(stored) else -1)


def targets(stored: list[int], warm: int) -> list[int]:
    """Every number when there are few, and those around the ends and around the border of the warm section."""
    if not stored:
        return [-1, 0, 5]
    borders = {0, 1, len(stored) - 1, len(stored) // 2}
    borders.update(range(max(0, len(stored) - warm - 4), max(0, len(stored) - warm + 3)))
    slots = range(len(stored)) if len(stored) < 20 else sorted(slot for slot in borders if slot < len(stored))
    return sorted({stored[slot] + step for slot in slots for step in (-1, 0, 1)} | {-5, stored[-1] + 1000})


@pytest.mark.parametrize("warm", [1024, 682])
def test_both_searches_match_bisection_for_every_size_around_the_warm_section(warm: int) -> None:
    for size in sizes(warm):
        stored = [3 * slot + 2 for slot in range(size)]
        for target in targets(stored, warm):
            expected = bounds_by_bisection(stored, target)
            assert warm_cold_search(stored.__getitem__, size, warm, target) == expected, f"{target} in {size}"
            assert classic_search(stored.__getitem__, size, target) == expected, f"{target} in {size}"


@BOTH
def test_an_index_gives_both_bounds_of_both_fields_for_every_size_around_the_warm_section(
    index_class: AnyIndexClass, tmp_path: Path
) -> None:
    for size in sizes(WARM[index_class]):
        pairs = [(3 * slot + 2, 5 * slot + 7) for slot in range(size)]
        with fill(tmp_path / f"{size}", index_class, pairs) as index:
            for field, stored in ((index.key, [k for k, _ in pairs]), (index.value, [v for _, v in pairs])):
                for target in targets(stored, WARM[index_class]):
                    found = index._bounds(target, field)
                    assert found == bounds_by_bisection(stored, target), f"{target} in {size} entries"


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.one_of(
        st.lists(st.integers(1, 2000), max_size=80),
        st.builds(lambda n, gap: [gap] * n, st.integers(1000, 3200), st.integers(1, 9)),
    ),
    shift=st.integers(-3, 3),
    part=st.floats(0, 1),
    index_class=st.sampled_from([OffsetIndex, TimeIndex]),
    is_written=st.booleans(),
)
def test_a_lookup_finds_what_bisection_finds(
    gaps: list[int],
    shift: int,
    part: float,
    index_class: AnyIndexClass,
    is_written: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    stored: list[int] = []
    for gap in gaps:
        stored.append((stored[-1] if stored else 0) + gap)
    target = (stored[int(part * (len(stored) - 1))] if stored else 0) + shift
    path = tmp_path_factory.mktemp("index") / "index"
    with fill(path, index_class, [(key, slot) for slot, key in enumerate(stored)]) as index:
        if is_written:
            index.write_out()
        bounds = bounds_by_bisection(stored, target)
        assert index._bounds(target, index.key) == bounds
        lower = bounds.lower
        expected = no_entry(index) if lower < 0 else entry_of(index, stored[lower], lower)
        assert looked_up(index, target) == expected


def slots_of_lookups(index: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The slots that `_floor` reads from now on, the one that is touched for its page and the result's left out."""
    slots: list[int] = []

    def unpack(buffer: Any, position: int) -> tuple[int, int]:
        slots.append(position // index.entry_bytes)
        key, value = index.layout.unpack_from(buffer, position)
        return key, value

    monkeypatch.setattr(index, "_unpack", unpack)
    return slots


@BOTH
@pytest.mark.parametrize("entries", [1, 2, 500, 1025, 1026, 5000])
def test_a_lookup_reads_the_slots_that_the_search_reads(
    index_class: AnyIndexClass, entries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WS: AbstractIndex has the search written out, without calls; this holds it to the one that others can read."""
    write_file(tmp_path / "index", index_class, [(2 * slot + 2, slot + 1) for slot in range(entries)])
    with index_class(tmp_path / "index", 1000, open_files=OpenFiles()) as index:
        read = slots_of_lookups(index, monkeypatch)
        step = max(1, entries // 300)
        for target in range(0, 2 * entries + 5, step):
            probed: list[int] = []

            def probe(slot: int, probed: list[int] = probed) -> int:
                probed.append(slot)
                return 2 * slot + 2

            lower, _ = warm_cold_search(probe, entries, index.warm_entries, target)
            read.clear()
            looked_up(index, target)
            if 2 * max(1, entries - index.warm_entries) < target >= 2 * entries:
                assert read == probed[:-1]  # the last is the one for its page
            else:
                assert read in (probed, [*probed, lower])


@BOTH
@pytest.mark.parametrize("entries", [1025, 3 * 1024, 100_000])
def test_a_lookup_at_the_end_reads_at_most_twelve_slots_of_three_pages(
    index_class: AnyIndexClass, entries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(tmp_path / "index", index_class, [(slot, slot) for slot in range(1, entries + 1)])
    with index_class(tmp_path / "index", 1000, open_files=OpenFiles()) as index:
        read = slots_of_lookups(index, monkeypatch)
        for key in range(entries - index.warm_entries + 2, entries + 1):
            read.clear()
            assert looked_up(index, key) == entry_of(index, key, key)
            assert len(set(read)) <= 12
            assert len({slot * index.entry_bytes // 4096 for slot in read}) <= 3


@pytest.mark.parametrize("entries", [1025, 5000, 1_310_720, 2**31 // 8])
def test_the_search_reads_at_most_twelve_slots_of_three_pages_however_large_the_index_is(entries: int) -> None:
    for last_slots in range(0, 1024, 7):
        probed: list[int] = []

        def probe(slot: int, probed: list[int] = probed) -> int:
            probed.append(slot)
            return slot

        target = entries - 1 - last_slots
        assert warm_cold_search(probe, entries, 1024, target).lower == target
        assert len(probed) <= 12
        assert len({slot * 8 // 4096 for slot in probed}) <= 3


def test_every_lookup_of_the_last_entry_touches_every_page_of_the_warm_section() -> None:
    for entries in range(1500, 1500 + 600):
        probed: list[int] = []

        def probe(slot: int, probed: list[int] = probed) -> int:
            probed.append(slot)
            return slot

        warm_cold_search(probe, entries, 1024, entries - 1)
        warm_pages = range((entries - 1 - 1024) * 8 // 4096, (entries - 1) * 8 // 4096 + 1)
        assert {slot * 8 // 4096 for slot in probed} == set(warm_pages)


@pytest.mark.parametrize(("pages", "visited"), [(13, [0, 6, 9, 11, 12]), (14, [0, 7, 10, 12, 13])])
def test_the_classic_search_visits_other_pages_after_the_index_has_grown_by_one(pages: int, visited: list[int]) -> None:
    entries, touched = pages * 512, []

    def probe(slot: int) -> int:
        touched.append(slot * 8 // 4096)
        return slot

    classic_search(probe, entries, entries - 1)
    assert list(dict.fromkeys(touched)) == visited


def test_the_warm_section_is_the_last_8192_bytes() -> None:
    assert OffsetIndex.warm_entries == WARM[OffsetIndex]
    assert TimeIndex.warm_entries == WARM[TimeIndex]
