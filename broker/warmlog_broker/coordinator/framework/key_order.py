"""Fair shared and exclusive turns for each key. Pure: it holds what waits, and says what may begin.

What enters a key exclusively is alone there; what enters it shared is there together with others that are. Both begin
in the order of their arrival, so that neither can keep the other waiting for ever. A key at rest takes no memory.
"""

from collections import deque
from typing import Generic, TypeVar

from msgspec import Struct

W = TypeVar("W")


class _Turns(Struct, Generic[W]):
    """One key that is in use."""

    is_shared: bool
    waiting: deque[tuple[bool, W]]
    holders: int = 1


class KeyOrder(Generic[W]):
    """The turns of all keys. `W` is what waits for its turn."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turns[W]] = {}
        self.waiting_count = 0

    def is_free(self, key: str, *, is_shared: bool) -> bool:
        """Return whether `enter` is allowed now: nothing waits, and nothing is there that excludes it."""
        turns = self._turns.get(key)
        return turns is None or (is_shared and turns.is_shared and not turns.waiting)

    def enter(self, key: str, *, is_shared: bool) -> None:
        """Enter a key that `is_free`; `leave` ends this turn."""
        turns = self._turns.get(key)
        if turns is None:
            self._turns[key] = _Turns(is_shared, deque())
            return
        assert is_shared
        assert turns.is_shared
        turns.holders += 1

    def wait(self, key: str, work: W, *, is_shared: bool) -> None:
        """Have a later `leave` return `work`, for a key that is not free."""
        self._turns[key].waiting.append((is_shared, work))
        self.waiting_count += 1

    def leave(self, key: str) -> list[W]:
        """End one turn of `key`; return what has entered it by that: one exclusive turn, or all next shared ones."""
        turns = self._turns[key]
        turns.holders -= 1
        if turns.holders:
            return []
        waiting = turns.waiting
        if not waiting:
            del self._turns[key]
            return []
        turns.is_shared, first = waiting.popleft()
        entered = [first]
        while turns.is_shared and waiting and waiting[0][0]:
            entered.append(waiting.popleft()[1])
        turns.holders = len(entered)
        self.waiting_count -= len(entered)
        return entered

    def clear(self) -> list[W]:
        """End all turns; return what waited."""
        waited = [work for turns in self._turns.values() for _, work in turns.waiting]
        self._turns.clear()
        self.waiting_count = 0
        return waited
