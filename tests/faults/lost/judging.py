"""Whether what was read of a damaged partition is all that can be read, and the rest was told."""

from collections.abc import Iterable, Mapping
from itertools import pairwise

Told = list[tuple[int, int]]


def problems(
    written: Mapping[int, bytes],
    there_before: Iterable[int],
    records: list[tuple[int, bytes]],
    told: Told,
    *,
    may_have_gaps: bool,
) -> list[str]:
    """What is wrong; empty when nothing is.

    `written` are all records that there ever were, by offset; `there_before` are the offsets of those that could be
    read before the damage. With `may_have_gaps` compaction may be the reason why an offset is missing.
    """
    offsets = [offset for offset, _ in records]
    found = []
    if wrong := [offset for offset, value in records if written.get(offset) != value]:
        found.append(f"offsets {wrong} have other values")
    if offsets != sorted(set(offsets)):
        found.append(f"offsets {offsets} do not rise")
    if any(first >= end for first, end in told) or any(end > first for (_, end), (first, _) in pairwise(told)):
        found.append(f"ranges {told} are not disjoint and in order")
    if never := [(first, end) for first, end in told if first < min(written) or end > max(written) + 1]:
        found.append(f"ranges {never} go beyond what was written")
    if both := [offset for offset in offsets if _is_in(told, offset)]:
        found.append(f"offsets {both} were read and told as unreadable")
    missing = sorted(set(there_before) - set(offsets))
    if not may_have_gaps and (silent := [offset for offset in missing if not _is_in(told, offset)]):
        found.append(f"offsets {silent} are missing, and nothing was said")
    return found


def _is_in(told: Told, offset: int) -> bool:
    return any(first <= offset < end for first, end in told)
