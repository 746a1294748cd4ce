"""Binary search in an index: the classic one, and one that looks at the warm section first (KAFKA-6432).

An index may be large, and nearly all lookups are at its end. The classic search reads the middle, three quarters, seven
eighths… These are other pages whenever the index has grown by a page, so the first lookup waits for pages that have not
been used for long. With 13 pages a lookup of the last entry reads pages 0, 6, 9, 11 and 12; with 14 pages 0, 7, 10, 12
and 13, of which 7 and 10 have gone cold.

The warm/cold search looks into the last 8,192 bytes first, the warm section, and into the rest only if the target is
before them. That is at most three pages of 4 KiB, and a lookup at the end reads the first, the middle and the last slot
of the section, so all three stay in the page cache. They cover some 4 MB of log.

Both are Kafka's, but the last entry is looked at before the halving begins, since consumers that keep up look for it.
The result is the same. The warm/cold search reads at most 12 slots at the end of an index of any size. These functions
read slots through `probe`, so that a caller can count them; AbstractIndex repeats the lower bound inline and reads the
same slots.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

WARM_BYTES = 8192

Probe = Callable[[int], int]
"""Reads the number in a slot. Numbers never decrease from one slot to the next."""


class SlotBounds(NamedTuple):
    """The slots next to a target."""

    lower: int
    """The slot of the last number that is the target or less; -1 if there is none."""
    upper: int
    """The slot of the first number that is the target or greater; -1 if there is none.

    As in Kafka, an exact hit on slot 0 is not seen (no probe compares it for equality): the result is slot 1, or -1 if
    there is no other. It serves as an upper bound, for which later is safe.
    """


def classic_search(probe: Probe, entries: int, target: int) -> SlotBounds:
    """The bounds of `target` among `entries` slots, by halving all of them."""
    if entries == 0:
        return SlotBounds(-1, -1)
    if probe(0) > target:
        return SlotBounds(-1, 0)
    return _halve(probe, 0, entries - 1, entries, target)


def warm_cold_search(probe: Probe, entries: int, warm_entries: int, target: int) -> SlotBounds:
    """The bounds of `target` among `entries` slots: first the last `warm_entries` of them, then the rest."""
    if entries == 0:
        return SlotBounds(-1, -1)
    last = entries - 1
    first_warm = max(0, last - warm_entries)
    if probe(first_warm) < target:
        number = probe(last)
        if number > target:
            return _halve(probe, first_warm, last - 1, entries, target)
        probe((first_warm + last) // 2)  # to keep its page warm
        return SlotBounds(last, last if number == target else -1)
    if probe(0) > target:
        return SlotBounds(-1, 0)
    return _halve(probe, 0, first_warm, entries, target)


def trace_searches(probe: Probe, entries: int, warm_entries: int, target: int) -> Iterator[tuple[str, list[int], int]]:
    """Run both searches, and yield of each its name, the slots that it read in their order, and the lower bound."""
    searches: dict[str, Callable[[Probe], SlotBounds]] = {
        "classic": lambda watched: classic_search(watched, entries, target),
        "warm/cold": lambda watched: warm_cold_search(watched, entries, warm_entries, target),
    }
    for name, search in searches.items():
        slots: list[int] = []

        def watched(slot: int, slots: list[int] = slots) -> int:
            slots.append(slot)
            return probe(slot)

        found = search(watched)
        yield name, slots, found.lower


def _halve(probe: Probe, low: int, high: int, entries: int, target: int) -> SlotBounds:
    """Slot `low` is known not to be above the target; no slot above `high` is the lower bound, but `high` may be."""
    while low < high:
        middle = (low + high + 1) // 2  # rounded up, or it would never end
        number = probe(middle)
        if number > target:
            high = middle - 1
        elif number < target:
            low = middle
        else:
            return SlotBounds(middle, middle)
    return SlotBounds(low, -1 if low == entries - 1 else low + 1)
