"""Limiting work in the thread that does it: to a number of bytes per second, and to half of the processor time."""

import time
from collections.abc import Callable

from warmlog_broker.storage.config import UNLIMITED

LONGEST_SLEEP_S = 0.1
"""Sleeps are cut into pieces, so that a waiting compaction can be cancelled."""
TURN_S = 0.0005
LONGEST_REST_S = 0.005


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
        """When the rate allows what was noted so far."""

    def note(self, size_bytes: int, check: Callable[[], None]) -> None:
        """Note what was read or written, and wait until the rate allows it. `check` is called between sleeps."""
        if self._rate == UNLIMITED:
            return
        now_s = self._now_s()
        self._free_s = max(self._free_s, now_s) + size_bytes / self._rate
        while (wait_s := self._free_s - now_s) > 0:
            self._sleep(min(wait_s, LONGEST_SLEEP_S))
            check()
            now_s = self._now_s()


class Turns:
    """Rests for a computing thread, so that the event loop gets its turns.

    The interpreter runs one thread at a time, and another waits up to 5 ms for its turn. If the thread rests for as
    long as it has worked, the event loop waits at most for one piece of work, and half of the time not at all.
    """

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def rest(self) -> None:
        """Sleep if this turn has been long enough. To be called after each piece of work."""
        worked_s = time.monotonic() - self._began_s
        if worked_s > TURN_S:
            time.sleep(min(worked_s, LONGEST_REST_S))
            self._began_s = time.monotonic()
