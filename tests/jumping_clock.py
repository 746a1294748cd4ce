"""A clock for event loops that jumps over what would be waited for: seconds of timeouts and pauses take none.

For tests whose peers all live in the same event loop: nothing then comes in while nothing is under way there. While
something is, a turn of the loop takes TURN_S at most, however long a busy machine takes for it.
"""

import asyncio
import selectors
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

IDLE_S = 0.005
"""Nothing comes in for so long before the clock jumps: the kernel may hand bytes to the other end a little later."""
TURN_S = 0.001
BUSY_IDLE_S = 0.1
"""The same if IDLE_S took several times as long, as it does on a machine that is busy."""


class JumpingSelector:
    """In place of the loop's selector: it waits for IDLE_S, and puts the clock forward."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._now_s = self._turned_s = time.monotonic()
        self._selector = selector

    def time(self) -> float:
        """What the loop takes for the time."""
        return self._now_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        began_s = time.monotonic()
        self._now_s += min(began_s - self._turned_s, TURN_S)
        self._turned_s = began_s
        if timeout is None or timeout <= 0:
            return self._selector.select(timeout)
        events = self._selector.select(IDLE_S)
        if not events and time.monotonic() - began_s > 4 * IDLE_S:
            events = self._selector.select(BUSY_IDLE_S)
        if not events:
            self._now_s += timeout
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)


@contextmanager
def jumping_clock(loop: asyncio.AbstractEventLoop) -> Iterator[JumpingSelector]:
    """Within, the clock of asyncio's own `loop` jumps."""
    selector = JumpingSelector(loop._selector)  # type: ignore[attr-defined]
    loop._selector, loop.time = selector, selector.time  # type: ignore[attr-defined, method-assign]
    yield selector
    loop._selector = selector._selector  # type: ignore[attr-defined]
    del loop.time
