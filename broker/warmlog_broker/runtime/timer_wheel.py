"""Timers in large numbers: deadlines of connections, timeouts of deferred responses.

A timer takes time only when it is scheduled, cancelled or due. Deadlines are rounded up to `tick_s`, and timers of one
tick are kept together: scheduling and cancelling take constant time, except that the first timer of a tick enters a
heap. Pure: the time is an argument of `advance`.
"""

import heapq
import logging
import math
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Timer:
    """A scheduled call."""

    __slots__ = ("_action", "_same_tick")

    def __init__(self, action: Callable[[], None], same_tick: "dict[Timer, None]") -> None:
        """Add itself to `same_tick`, the timers of its tick."""
        self._action: Callable[[], None] | None = action
        self._same_tick = same_tick
        same_tick[self] = None

    @property
    def is_scheduled(self) -> bool:
        return self._action is not None

    def cancel(self) -> None:
        """Prevent the call. No-op after the call."""
        if self._action is not None:
            self._action = None
            self._same_tick.pop(self, None)

    def run(self) -> None:
        """Called by the wheel."""
        action, self._action = self._action, None
        if action is not None:
            action()


class TimerWheel:
    """All timers of one event loop. Times are seconds of one clock, which the caller chooses."""

    def __init__(self, tick_s: float) -> None:
        """`tick_s`: how late a timer may be called if `advance` is called this often."""
        self._tick_s = tick_s
        self._timers: dict[int, dict[Timer, None]] = {}
        """Timers by the tick in which they are due."""
        self._ticks: list[int] = []
        """A heap of the keys of `_timers`."""

    def __len__(self) -> int:
        return sum(map(len, self._timers.values()))

    def schedule(self, due_s: float, action: Callable[[], None]) -> Timer:
        """Have `advance` call `action` once, at `due_s` or later."""
        tick = math.ceil(due_s / self._tick_s)
        timers = self._timers.get(tick)
        if timers is None:
            timers = self._timers[tick] = {}
            heapq.heappush(self._ticks, tick)
        return Timer(action, timers)

    def advance(self, now_s: float) -> None:
        """Call the actions due by `now_s`, in the order of ticks. An exception is logged; the others continue."""
        last_tick = math.floor(now_s / self._tick_s)
        due: list[Timer] = []
        while self._ticks and self._ticks[0] <= last_tick:
            due.extend(self._timers.pop(heapq.heappop(self._ticks)))
        for timer in due:
            try:
                timer.run()
            except Exception:
                _log.exception("a timer failed: a bug")
