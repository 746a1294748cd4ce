"""The rate that stays the same share of what the machine can do, while others take more or less of it. Pure.

On a shared machine the same work takes half as much again in one minute as in another: at a fixed rate that is 70 % of
the peak now and all of it later, and latencies tell of the neighbours. So a fixed piece of work is timed again and
again, and the rate follows it.
"""

from collections import deque
from statistics import median
from typing import NamedTuple

LOOKS = 6
"""So many looks make one speed: a single one is noise."""


class Pace(NamedTuple):
    """What one look came to."""

    speed: float
    """Of the machine, as a multiple of what it was at first."""
    rate: float
    """Records a second, from now on."""


class Pacer:
    """Fed with how fast the machine is; the first looks say what it was at the peak, which had just been found."""

    def __init__(self, rate: float) -> None:
        """`rate` is right for a machine as fast as at first."""
        self._rate = rate
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=LOOKS)

    def look(self, speed: float) -> Pace:
        """`speed` in any unit, the same each time."""
        if len(self._first) < LOOKS:
            self._first.append(speed)
        self._last.append(speed)
        at_first = median(self._first)
        return Pace(speed / at_first, self._rate * median(self._last) / at_first)
