"""Holding work on the disk back to a number of bytes per second, in the thread that does it."""

import time
from collections.abc import Callable

UNLIMITED = -1
LONGEST_SLEEP_S = 0.1
"""Sleeps are cut into pieces, so that whoever is held back can be told to stop."""


class Throttle:
    """A budget that grows with time. Unused time is no credit: a pause is not followed by a burst."""

    def __init__(
        self,
        bytes_per_second: int,
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """-1 for no limit."""
        self._rate = bytes_per_second
        self._now_s = now_s
        self._sleep = sleep
        self._free_s = now_s()
        """When all that was noted so far is paid for."""

    def note(self, size_bytes: int, check: Callable[[], None]) -> None:
        """Notes that so much was read or written, and returns once it is paid for. `check` is called between sleeps."""
        if self._rate == UNLIMITED:
            return
        now_s = self._now_s()
        self._free_s = max(self._free_s, now_s) + size_bytes / self._rate
        while (wait_s := self._free_s - now_s) > 0:
            self._sleep(min(wait_s, LONGEST_SLEEP_S))
            check()
            now_s = self._now_s()
