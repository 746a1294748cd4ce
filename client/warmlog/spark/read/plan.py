"""Which ranges each Spark task reads: plain functions, no I/O.

A task costs 40 to 100 ms however little it reads, and one that reads too much leaves cores idle at the end. So large
ranges are cut to about 256 MiB or 2 M records, and small ones are merged. Cuts are at the borders of stored batches, if
the broker has sent them: a batch across a cut would be fetched and decoded twice. If a bound of the user's needs more
pieces than there are borders, cuts go by the number of offsets.

A plan is made once for a `load()`; a task that Spark reruns reads the same offsets again. Tasks are in the order of
topic, partition and offset.
"""

import heapq
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from warmlog.ranges.offset_range import OffsetRange, Piece, SizedRange
from warmlog.spark.options.read_options import TASK_RECORDS, PlanLimits

MERGED_SHARE = 4
"""Ranges are merged up to a quarter of a task's size: that takes longer to read than the task costs, and leaves enough
tasks for several cores."""

Task = tuple[OffsetRange, ...]


class _Part(NamedTuple):
    """What one task reads of a range, and how much of a whole task that is."""

    range: OffsetRange
    load: float


def plan_tasks(ranges: Sequence[SizedRange], limits: PlanLimits = PlanLimits()) -> list[Task]:  # noqa: B008 - frozen
    """Return tasks that together read every offset of `ranges` once.

    There are at least `min_partitions`, or one for each offset if there are fewer offsets.
    """
    ranges = [sized for sized in ranges if sized.range.span > 0]
    wanted = limits.min_partitions or 0
    whole = [_Part(sized.range, _load(sized.size_bytes, sized.range.span, limits)) for sized in ranges]
    counts = _raised(whole, [_count(sized, limits) for sized in ranges], wanted)
    parts = [part for sized, count in zip(ranges, counts, strict=True) for part in _cut(sized, count, limits)]
    counts = _raised(parts, [1] * len(parts), wanted)
    parts = [piece for part, count in zip(parts, counts, strict=True) for piece in _cut_evenly(part, count)]
    return list(_merge(parts, limits))


def _raised(parts: Sequence[_Part], counts: list[int], wanted: int) -> list[int]:
    """Return into how many pieces to cut each of `parts` so that there are `wanted`: what has the largest, further."""
    counts = list(counts)
    shares = [(-part.load / counts[i], i) for i, part in enumerate(parts) if counts[i] < part.range.span]
    heapq.heapify(shares)
    for _ in range(wanted - sum(counts)):
        if not shares:
            break
        _, i = heapq.heappop(shares)
        counts[i] += 1
        if counts[i] < parts[i].range.span:
            heapq.heappush(shares, (-parts[i].load / counts[i], i))
    return counts


def _count(sized: SizedRange, limits: PlanLimits) -> int:
    """Return into how many pieces to cut a range for its size; for its bytes at most one for each border."""
    by_bytes = min(math.ceil(sized.size_bytes / limits.max_bytes), len(sized.pieces))
    return min(sized.range.span, max(1, by_bytes, math.ceil(sized.range.span / limits.target_records)))


def _load(size_bytes: int, span: int, limits: PlanLimits) -> float:
    """Return the size of a range as a number of tasks."""
    return max(size_bytes / limits.max_bytes, span / limits.target_records)


def _cut(sized: SizedRange, count: int, limits: PlanLimits) -> Iterator[_Part]:
    """Cut a range into about `count` parts: at borders, or evenly by offsets if sizes are unknown."""
    whole, total_bytes = sized.range, sized.size_bytes
    if total_bytes == 0:
        borders = [Piece(end, 0) for end in _even_borders(whole, count)[1:-1]]
    else:
        borders = _borders(sized, count)
    cuts = [Piece(whole.start, 0), *borders, Piece(whole.end, total_bytes)]
    most = limits.max_records or 2 * TASK_RECORDS
    for (start, before_bytes), (end, until_bytes) in pairwise(cuts):
        part = _Part(whole._replace(start=start, end=end), _load(until_bytes - before_bytes, end - start, limits))
        yield from _cut_evenly(part, math.ceil((end - start) / most))


def _borders(sized: SizedRange, count: int) -> list[Piece]:
    """Return at most `count` - 1 borders that cut the range's bytes most evenly, each with the bytes before it."""
    borders = []
    so_far_bytes = 0
    for piece in sized.pieces[:-1]:
        so_far_bytes += piece.size_bytes
        borders.append(Piece(piece.end, so_far_bytes))
    chosen: set[Piece] = set()
    for i in range(1, count):
        ideal_bytes = sized.size_bytes * i // count
        index = bisect_left(borders, ideal_bytes, key=lambda border: border.size_bytes)
        nearest = borders[max(index - 1, 0) : index + 1]
        if nearest:
            chosen.add(min(nearest, key=lambda border: abs(border.size_bytes - ideal_bytes)))
    return sorted(chosen)


def _cut_evenly(part: _Part, count: int) -> Iterator[_Part]:
    for start, end in pairwise(_even_borders(part.range, count)):
        yield _Part(part.range._replace(start=start, end=end), part.load / count)


def _even_borders(planned: OffsetRange, count: int) -> list[int]:
    """Return `count` + 1 offsets from start to end, as evenly spaced as possible."""
    return [planned.start + planned.span * i // count for i in range(count + 1)]


def _merge(parts: Sequence[_Part], limits: PlanLimits) -> Iterator[Task]:
    """Merge small parts, as long as enough tasks remain."""
    mergeable = len(parts) - (limits.min_partitions or 1)
    task: list[OffsetRange] = []
    load, span = 0.0, 0
    for part in parts:
        fits = load + part.load <= 1 / MERGED_SHARE and span + part.range.span <= limits.target_records
        if task and not (fits and mergeable > 0):
            yield tuple(task)
            task, load, span = [], 0.0, 0
        elif task:
            mergeable -= 1
        task.append(part.range)
        load += part.load
        span += part.range.span
    if task:
        yield tuple(task)
