"""Holding work back in the thread that does it: to a number of bytes per second, and to half of the processor time."""

import time
from collections.abc import Callable

UNLIMITED = -1
LONGEST_SLEEP_S = 0.1
"""Sleeps are cut into pieces, so that whoever is held back can be told to stop."""
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


class Turns:
    """Rests for a thread that computes, so that the event loop gets its turns.

    The interpreter runs one thread at a time, and one that wants a turn waits up to 5 ms for it. A thread that rests
    for as long as it has worked keeps the event loop waiting no longer than one piece of its work takes, and half of
    the time not at all.
    """

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def rest(self) -> None:
        """To be called after each piece of work: sleeps if this turn has been long enough."""
        worked_s = time.monotonic() - self._began_s
        if worked_s > TURN_S:
            time.sleep(min(worked_s, LONGEST_REST_S))
            self._began_s = time.monotonic()
