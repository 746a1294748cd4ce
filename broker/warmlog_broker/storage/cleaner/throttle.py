"""Limiting work in the thread that does it: to a number of bytes per second, and to half of the processor time."""

import time
from collections.abc import Callable
from threading import Event

from warmlog_broker.storage.config import UNLIMITED
from warmlog_protocol.errors import WarmlogError

LONGEST_SLEEP_S = 0.1
"""Sleeps are cut into pieces, so that a waiting compaction can be cancelled."""
TURN_S = 0.0005
LONGEST_REST_S = 0.005


class CleaningAborted(WarmlogError):
    """The log was deleted, cut, closed or changed while it was compacted. No file is left over."""


class CleaningPace:
    """How fast a compaction may go, and whether it continues.

    Its budget of bytes grows with time. Unused time is no credit: a pause is not followed by a burst.
    """

    def __init__(
        self,
        bytes_per_second: int = UNLIMITED,
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bytes = 0
        """Read and written."""
        self._rate = bytes_per_second
        self._now_s = now_s
        self._sleep = sleep
        self._free_s = now_s()
        """When the rate allows what was noted so far."""
        self._stop = Event()
        self._turns = Turns()

    @property
    def is_stopped(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """Cancel the compaction, from any thread: it ends at its next batch."""
        self._stop.set()

    def after(self, size_bytes: int) -> None:
        """Note what was read or written, and wait if that was too fast. CleaningAborted if it is cancelled."""
        self.check()
        self.bytes += size_bytes
        if self._rate != UNLIMITED:
            now_s = self._now_s()
            self._free_s = max(self._free_s, now_s) + size_bytes / self._rate
            while (wait_s := self._free_s - now_s) > 0:
                self._sleep(min(wait_s, LONGEST_SLEEP_S))
                self.check()
                now_s = self._now_s()
        self._turns.rest()

    def check(self) -> None:
        if self._stop.is_set():
            raise CleaningAborted("the compaction was cancelled")


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
