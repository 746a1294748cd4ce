"""Whether a row of samples drifts. Pure.

Slopes are Theil and Sen's: the median of the slopes between all pairs of samples, which a few outliers do not move.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

MAX_POINTS = 400
"""More samples than this are thinned: pairs grow with the square."""
TEN_MINUTES_S = 600.0
LEAST_SAMPLES = 6
"""Fewer say nothing about three unknowns."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row of the report: what was measured, against which bar."""

    name: str
    figure: str
    bar: str
    is_good: bool

    def __str__(self) -> str:
        return f"{'ok  ' if self.is_good else 'MISS'} {self.name}: {self.figure} (bar: {self.bar})"


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much a figure may grow: a share of itself in ten minutes, and always `floor`, which is noise."""

    unit: str
    share_in_ten_minutes: float
    floor: float


MEMORY = Allowance("MiB", 0.01, 2.0)
DESCRIPTORS = Allowance("descriptors", 0.0, 2.0)
MAPS = Allowance("maps", 0.0, 4.0)
THREADS = Allowance("threads", 0.0, 1.0)


def slope(times_s: Sequence[float], values: Sequence[float]) -> float:
    """The median slope over all pairs, in units of `values` a second; 0 for less than two samples."""
    step = -(-len(times_s) // MAX_POINTS) or 1
    points = list(zip(times_s, values, strict=True))[::step]
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for index, earlier in enumerate(points)
        for later in points[index + 1 :]
        if later[0] > earlier[0]
    ]
    return median(slopes) if slopes else 0.0


def growth(name: str, times_s: Sequence[float], values: Sequence[float], allowance: Allowance) -> Verdict:
    """Whether `values` have grown by no more than is allowed over the time of the samples."""
    a_second = slope(times_s, values)
    lasted_s = times_s[-1] - times_s[0] if times_s else 0.0
    middle = median(values) if values else 0.0
    grown = a_second * lasted_s
    allowed = max(allowance.floor, allowance.share_in_ten_minutes * middle * lasted_s / TEN_MINUTES_S)
    return Verdict(
        name,
        f"{middle:.4g} {allowance.unit}, {a_second * 3600:+.3g} an hour, {grown:+.3g} over {lasted_s / 60:.1f} min",
        f"at most {allowed:+.3g}",
        grown <= allowed,
    )


def drift(name: str, values: Sequence[float], *, unit: str, allowed: float) -> Verdict:
    """Whether the median of the last third is above that of the first by no more than the share `allowed`."""
    third = max(1, len(values) // 3)
    if not values:
        return Verdict(name, "no samples", f"{allowed:+.0%}", is_good=False)
    first, last = median(values[:third]), median(values[-third:])
    change = last / first - 1 if first else 0.0
    figure = f"first third {first:.3g} {unit}, last third {last:.3g} {unit}, {change:+.1%}"
    return Verdict(name, figure, f"{allowed:+.0%}", change <= allowed)


def drift_at_equal_speed(
    name: str, times_s: Sequence[float], values: Sequence[float], speeds: Sequence[float], *, allowed: float
) -> Verdict:
    """Whether `values` would have risen by no more than `allowed` from the first third to the last on a steady machine.

    A latency under load rises by much more than the machine slows down, so it is not enough to divide. What the speed
    explains and what time explains are told apart by least squares: log(value) = a + b log(speed) + c time.
    """
    third = max(1, len(values) // 3)
    if len(values) < LEAST_SAMPLES:
        return Verdict(name, f"{len(values)} samples", f"{allowed:+.0%}", is_good=False)
    known = np.column_stack([np.ones(len(values)), np.log(speeds), np.asarray(times_s)])
    (_, _, a_second), *_ = np.linalg.lstsq(known, np.log(values), rcond=None)
    apart_s = median(times_s[-third:]) - median(times_s[:third])
    change = math.expm1(a_second * apart_s)
    slower = median(speeds[-third:]) / median(speeds[:third]) - 1
    return Verdict(name, f"{change:+.1%}, the machine's speed {slower:+.1%}", f"{allowed:+.0%}", change <= allowed)


def at_most(name: str, value: float, limit: float, unit: str) -> Verdict:
    """Whether `value` is no more than `limit`."""
    return Verdict(name, f"{value:.4g} {unit}", f"at most {limit:.4g}", value <= limit)


def at_least(name: str, value: float, limit: float) -> Verdict:
    """Whether the share `value` is no less than `limit`."""
    return Verdict(name, f"{value:.1%}", f"at least {limit:.0%}", value >= limit)
