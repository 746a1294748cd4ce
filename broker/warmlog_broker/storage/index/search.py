"""Binary search in an index: the classic one, and the one that looks at the warm section first (KAFKA-6432).

An index may be large and its lookups lie nearly all at its end. The classic search halves from the start: each lookup
goes through the middle, three quarters, seven eighths… Which pages these are changes whenever the index has grown by a
page, and then the first lookup waits for pages that nobody has used for long. With 13 pages a lookup of the last entry
visits pages 0, 6, 9, 11 and 12; with 14 pages it is 0, 7, 10, 12 and 13, of which 7 and 10 have gone cold.

The warm/cold search looks into the last 8,192 bytes first, the warm section, and into the rest only when the target
lies before them. 8,192 bytes are at most three pages of 4 KiB, and a lookup at the end touches all three, by the
first, the last and the middle slot of the section, so they stay in the page cache. They cover some 4 MB of log.

Both are Kafka's, with one difference that changes no result: the last entry is looked at before the halving begins, as
that is what consumers that keep up look for. The warm/cold search reads at most 12 slots at the end of an index of any
size. These functions see an index through `probe`, which reads one slot, so that who wants to know what they touch
counts the calls; AbstractIndex has the lower bound once more, without calls, and reads the same slots.
"""

from collections.abc import Callable
from typing import NamedTuple

WARM_BYTES = 8192

Probe = Callable[[int], int]
"""Reads the number in a slot. Numbers never decrease from one slot to the next."""


class Bounds(NamedTuple):
    """Where a target lies."""

    lower: int
    """The slot of the last number that is the target or less; -1 when there is none."""
    upper: int
    """The slot of the first number that is the target or greater; -1 when there is none.

    As in Kafka, an exact hit on slot 0 is not seen (no probe compares it for equality): slot 1 is given instead, or -1
    when there is no other. It serves as an upper bound, for which later is safe.
    """


def classic_search(probe: Probe, entries: int, target: int) -> Bounds:
    """The bounds of `target` among `entries` slots, by halving all of them."""
    if entries == 0:
        return Bounds(-1, -1)
    if probe(0) > target:
        return Bounds(-1, 0)
    return _halve(probe, 0, entries - 1, entries, target)


def warm_cold_search(probe: Probe, entries: int, warm_entries: int, target: int) -> Bounds:
    """The bounds of `target` among `entries` slots: first the last `warm_entries` of them, then the rest."""
    if entries == 0:
        return Bounds(-1, -1)
    last = entries - 1
    first_warm = max(0, last - warm_entries)
    if probe(first_warm) < target:
        number = probe(last)
        if number > target:
            return _halve(probe, first_warm, last - 1, entries, target)
        probe((first_warm + last) // 2)  # for its page
        return Bounds(last, last if number == target else -1)
    if probe(0) > target:
        return Bounds(-1, 0)
    return _halve(probe, 0, first_warm, entries, target)


def _halve(probe: Probe, low: int, high: int, entries: int, target: int) -> Bounds:
    """Slot `low` is known not to be above the target; no slot above `high` is the lower bound, but `high` may be."""
    while low < high:
        middle = (low + high + 1) // 2  # rounded up, or it would never end
        number = probe(middle)
        if number > target:
            high = middle - 1
        elif number < target:
            low = middle
        else:
            return Bounds(middle, middle)
    return Bounds(low, -1 if low == entries - 1 else low + 1)
