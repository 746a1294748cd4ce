"""Memory for requests that are being received: one budget over all connections.

A connection claims what its receive buffer needs beyond the small one that each has. Who finds too little left waits
in line, its socket unread, until others have given back; nobody overtakes, so a large request is never starved.
"""

from collections import deque
from collections.abc import Callable


class RequestMemory:
    """Counts bytes that are claimed, and calls back those who wait for theirs."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.claimed_bytes = 0
        self._line: deque[tuple[object, int, Callable[[], None]]] = deque()

    def try_claim(self, size_bytes: int) -> bool:
        """Claims `size_bytes` when they are free and nobody waits; False otherwise."""
        if self._line or self.claimed_bytes + size_bytes > self.limit_bytes:
            return False
        self.claimed_bytes += size_bytes
        return True

    def wait(self, owner: object, size_bytes: int, on_granted: Callable[[], None]) -> None:
        """Claims `size_bytes`, at most the whole budget, as soon as they are free; `on_granted` is called then."""
        assert size_bytes <= self.limit_bytes
        self._line.append((owner, size_bytes, on_granted))

    def give_back(self, size_bytes: int) -> None:
        """Returns `size_bytes` that were claimed, and serves those who wait, in order."""
        self.claimed_bytes -= size_bytes
        assert self.claimed_bytes >= 0
        while self._line and self.claimed_bytes + self._line[0][1] <= self.limit_bytes:
            _, granted_bytes, on_granted = self._line.popleft()
            self.claimed_bytes += granted_bytes
            on_granted()

    def forget(self, owner: object) -> None:
        """Takes `owner` out of the line."""
        if any(waiting[0] is owner for waiting in self._line):
            self._line = deque(waiting for waiting in self._line if waiting[0] is not owner)
            self.give_back(0)
