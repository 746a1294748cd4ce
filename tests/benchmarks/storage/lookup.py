"""A lookup in an offset index of 10 MiB, all of it in memory: at the end, in the warm section, before it."""

from pathlib import Path
from random import Random
from struct import pack

from benchmarks.storage.figures import Figure, timed
from warmlog_broker.storage.index.abstract_index import MAX_RECENT
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.search import warm_cold_search
from warmlog_broker.storage.io.open_files import OpenFiles

ENTRIES = 10 * 1024 * 1024 // 8
STEP = 3
"""From one offset in the index to the next."""


def write_index(path: Path, entries: int) -> None:
    """A closed offset index: offsets 3, 6, 9…"""
    numbers = [number for slot in range(entries) for number in (STEP * (slot + 1), slot)]
    path.write_bytes(pack(f">{len(numbers)}i", *numbers))


def measure(directory: Path, rounds: int, lookups: int) -> list[Figure]:
    """One figure for each part of the index that is looked into."""
    path = directory / "lookup.index"
    write_index(path, ENTRIES)
    chance = Random(1)
    last = STEP * ENTRIES
    added = MAX_RECENT
    end = last + STEP * added
    warm_offsets = STEP * OffsetIndex.warm_entries
    bar = "tail: under 3 µs"
    written = [(f"in an index that is written, {where}", targets) for where, targets in _tail(end, lookups, chance)]
    read = [(f"in an index that was opened, {where}", targets) for where, targets in _tail(last, lookups, chance)]
    figures = []
    with OffsetIndex(path, 0, open_files=OpenFiles()) as index:
        for name, offsets in read:
            figures.append(_figure(name, bar, index, offsets, rounds))
        anywhere = [chance.randrange(last - warm_offsets) for _ in range(lookups)]
        figures.append(_figure("before the warm section", "", index, anywhere, rounds))
        index.resize(8 * (ENTRIES + added))
        for offset in range(last + STEP, end + 1, STEP):
            index.append(offset, offset)
        for name, offsets in written:
            figures.append(_figure(name, bar, index, offsets, rounds))
    path.unlink()
    return figures


def _tail(last: int, lookups: int, chance: Random) -> list[tuple[str, list[int]]]:
    """What is looked for at the end of an index whose last offset is `last`."""
    warm_offsets = STEP * OffsetIndex.warm_entries
    return [
        ("the last entry", [last] * lookups),
        ("anywhere in the warm section", [last - chance.randrange(warm_offsets) for _ in range(lookups)]),
    ]


def _figure(name: str, bar: str, index: OffsetIndex, offsets: list[int], rounds: int) -> Figure:
    figure = Figure(f"lookup {name}", {"index_bytes": 8 * ENTRIES, "lookups": len(offsets)}, bar)
    figure.runs.extend(_run(index, offsets) for _ in range(rounds))
    return figure


def _run(index: OffsetIndex, offsets: list[int]) -> dict[str, float]:
    lookup = index.lookup

    def work() -> None:
        for offset in offsets:
            lookup(offset)

    def nothing() -> None:
        for _ in offsets:
            pass

    done, loop = timed(work), timed(nothing)
    slots: list[int] = []
    probe = index.probe(index.key)

    def watched(slot: int) -> int:
        slots.append(slot)
        return probe(slot)

    most_slots = most_pages = 0
    for offset in offsets[:200]:
        slots.clear()
        warm_cold_search(watched, index.written_bytes // 8, index.warm_entries, offset)
        most_slots = max(most_slots, len(slots))
        most_pages = max(most_pages, len({slot * 8 // 4096 for slot in slots}))
    return {
        "cpu_us": (done.cpu_s - loop.cpu_s) / len(offsets) * 1e6,
        "wall_us": (done.wall_s - loop.wall_s) / len(offsets) * 1e6,
        "most_slots": most_slots,
        "most_pages": most_pages,
    }
