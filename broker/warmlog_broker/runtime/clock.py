"""The time by which data is deleted: the system clock's, unless it has just jumped ahead.

A computer whose clock has no battery, or a bad time server, may be years ahead for a while; deleting by that time would
delete everything. So this clock trusts a step forward only after `log.retention.clock.settle.ms` of elapsed time
(CLOCK_BOOTTIME, which cannot be set). Until then it continues from the time that it trusted before. At a start the time
is compared with the last write to the data directory. A step back is trusted at once: it deletes less.

`TrustedClock` is pure: times are arguments. `start_clock` connects it to the system's clocks.
"""

import logging
import time
from collections.abc import Callable

LARGEST_STEP_MS = 600_000
"""Ten minutes: about the largest usual correction of a clock, and too little to matter for retention."""

_log = logging.getLogger(__name__)


class TrustedClock:
    """See the module. Used by one thread."""

    def __init__(self, last_known_ms: int | None, *, wall_ms: int, elapsed_ms: int, settle_ms: int) -> None:
        """`last_known_ms` is the time of the last write, None if unknown; with `settle_ms` 0 all steps are trusted."""
        self._settle_ms = settle_ms
        self._trusted_ms = wall_ms if last_known_ms is None else last_known_ms
        self._trusted_at_ms = elapsed_ms
        self._doubted: tuple[int, int] | None = None
        """The system clock and the elapsed time when the clock was first doubted."""
        self.now_ms(wall_ms, elapsed_ms)

    @property
    def is_doubted(self) -> bool:
        """Whether the clock has jumped ahead, and is not trusted yet."""
        return self._doubted is not None

    def now_ms(self, wall_ms: int, elapsed_ms: int) -> int:
        """Return the trusted time when the system clock is `wall_ms`, `elapsed_ms` after some fixed moment."""
        expected_ms = self._trusted_ms + elapsed_ms - self._trusted_at_ms
        if wall_ms <= expected_ms + LARGEST_STEP_MS or self._has_settled(wall_ms, elapsed_ms):
            self._trusted_ms, self._trusted_at_ms = wall_ms, elapsed_ms
            self._doubted = None
            return wall_ms
        return expected_ms

    def _has_settled(self, wall_ms: int, elapsed_ms: int) -> bool:
        """Return whether the clock has run on after its jump, without another one, for long enough."""
        if self._settle_ms == 0:
            return True
        if self._doubted is not None:
            doubted_ms, doubted_at_ms = self._doubted
            if abs(wall_ms - doubted_ms - (elapsed_ms - doubted_at_ms)) <= LARGEST_STEP_MS:
                return elapsed_ms - doubted_at_ms >= self._settle_ms
        expected_ms = self._trusted_ms + elapsed_ms - self._trusted_at_ms
        _log.warning(
            "the clock is %.1f hours ahead of the expected time: for %.1f hours no data is deleted by it",
            (wall_ms - expected_ms) / 3_600_000,
            self._settle_ms / 3_600_000,
        )
        self._doubted = wall_ms, elapsed_ms
        return False


def start_clock(last_known_ms: int | None, settle_ms: int) -> Callable[[], int]:
    """Return a function that returns the trusted time, starting now."""

    def clocks() -> tuple[int, int]:
        return time.time_ns() // 1_000_000, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    wall_ms, elapsed_ms = clocks()
    trusted = TrustedClock(last_known_ms, wall_ms=wall_ms, elapsed_ms=elapsed_ms, settle_ms=settle_ms)
    return lambda: trusted.now_ms(*clocks())


def now_ms() -> int:
    """The time of day."""
    return time.time_ns() // 1_000_000
