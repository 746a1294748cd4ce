"""Memory for requests that are being received: one budget over all connections.

A connection claims what its receive buffer needs beyond the small one that each has. A frame that lies in one buffer
is claimed as a whole; of a larger one only what has come, and as much again (`window`): who announces much and sends
little holds little.

Who finds too little left waits in line, its socket unread. The budget has three parts, so that those who hold memory
and send nothing do not stop everybody else until they are cut (`is_short`):

- `shared`, for everybody, in the order in which they ask: nobody overtakes who waits;
- `quick`, for requests up to QUICK_BYTES, when `shared` has nothing left: they need not wait behind large ones;
- one frame of the largest size, for whoever has waited longest. So there is always one request that can become whole,
  and gives back what it holds: claims that grow bit by bit never wait for each other for good.

A body that is decompressed borrows what it takes (`bodies`), one at a time, even where that goes beyond the limit.

Memory for answers that wait for their readers: one count over all connections.

File ranges that wait cost none; frames do, and what the transports hold of both. When there is too much of it, a
connection that has not been sent everything starts nothing more, and those whose readers stand still are cut.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from warmlog_protocol.codec.memory import LARGE_BYTES

QUICK_BYTES = LARGE_BYTES
"""Up to this a request is claimed as a whole, and may take from the part for small ones."""
MOST_QUICK_BYTES = 16 * QUICK_BYTES
QUICK_SHARE = 4
"""The part for small requests is at most this fraction of what the eldest leaves."""


def window(frame_bytes: int, come_bytes: int) -> int:
    """Up to where a frame of this size may be received when so much of it has come."""
    return min(frame_bytes, max(QUICK_BYTES, 2 * come_bytes))


class Claim:
    """What one connection holds of the budget."""

    __slots__ = ("eldest_bytes", "is_waiting", "quick_bytes", "shared_bytes")

    def __init__(self) -> None:
        self.shared_bytes = self.quick_bytes = self.eldest_bytes = 0
        self.is_waiting = False

    @property
    def size_bytes(self) -> int:
        return self.shared_bytes + self.quick_bytes + self.eldest_bytes


class _Waiting:
    """A place in line."""

    __slots__ = ("claim", "on_granted", "size_bytes")

    def __init__(self, claim: Claim, size_bytes: int, on_granted: Callable[[], None]) -> None:
        self.claim = claim
        self.size_bytes = size_bytes
        self.on_granted = on_granted


class MemoryPool:
    """Counts bytes that are claimed, and calls back those who wait for theirs."""

    def __init__(self, limit_bytes: int, largest_frame_bytes: int) -> None:
        rest_bytes = max(0, limit_bytes - largest_frame_bytes)
        self.limit_bytes = limit_bytes
        self._quick_limit = min(MOST_QUICK_BYTES, rest_bytes // QUICK_SHARE)
        self._shared_limit = rest_bytes - self._quick_limit
        self._shared_bytes = self._quick_bytes = 0
        self._eldest: Claim | None = None
        self._line: deque[_Waiting] = deque()
        self._quick_line: deque[_Waiting] = deque()

    @property
    def claimed_bytes(self) -> int:
        """By everybody together."""
        return self._shared_bytes + self._quick_bytes + (self._eldest.eldest_bytes if self._eldest else 0)

    @property
    def is_short(self) -> bool:
        """Whether somebody waits: then those who hold memory without using it should give it back."""
        return bool(self._line or self._quick_line)

    def try_claim(self, claim: Claim, size_bytes: int) -> bool:
        """Claims `size_bytes` when they are free and nobody waits; False otherwise."""
        if self.is_short or self._shared_bytes + size_bytes > self._shared_limit:
            return False
        self._take_shared(claim, size_bytes)
        return True

    def claim(self, claim: Claim, size_bytes: int, *, is_quick: bool, on_granted: Callable[[], None]) -> bool:
        """Whether `size_bytes` for a frame were claimed at once. If not, `on_granted` is called when they are.

        A claim waits for one thing at a time. `is_quick` says that the frame takes no more than QUICK_BYTES. What the
        part for small requests can never hold waits with the large ones: behind them it might wait for good.
        """
        assert not claim.is_waiting
        is_quick = is_quick and size_bytes <= self._quick_limit
        waiting = _Waiting(claim, size_bytes, on_granted)
        is_first = not (self._quick_line if is_quick else self._line)
        if (is_first or claim is self._eldest) and self._take(waiting, is_quick=is_quick):
            return True
        claim.is_waiting = True
        (self._quick_line if is_quick else self._line).append(waiting)
        return False

    @contextmanager
    def borrowed(self, size_bytes: int) -> Iterator[None]:
        """Claims `size_bytes` for a while, at once and even beyond the limit: for work that ends by itself.

        Others wait for it then. It does not wait for them, because they may hold memory until it is done.
        """
        claim = Claim()
        self._take_shared(claim, size_bytes)
        try:
            yield
        finally:
            self.give_back(claim, size_bytes)

    def give_back(self, claim: Claim, size_bytes: int) -> None:
        """Returns some of `claim`, and serves those who wait, in order."""
        assert size_bytes <= claim.size_bytes
        eldest_bytes = min(size_bytes, claim.eldest_bytes)
        quick_bytes = min(size_bytes - eldest_bytes, claim.quick_bytes)
        shared_bytes = size_bytes - eldest_bytes - quick_bytes
        claim.eldest_bytes -= eldest_bytes
        claim.quick_bytes -= quick_bytes
        claim.shared_bytes -= shared_bytes
        self._quick_bytes -= quick_bytes
        self._shared_bytes -= shared_bytes
        if claim is self._eldest and not claim.eldest_bytes:
            self._eldest = None
        self._serve()

    def forget(self, claim: Claim) -> None:
        """Takes back all of `claim`, and takes it out of the line: its connection is gone."""
        if claim.is_waiting:
            claim.is_waiting = False
            self._line = deque(waiting for waiting in self._line if waiting.claim is not claim)
            self._quick_line = deque(waiting for waiting in self._quick_line if waiting.claim is not claim)
        self.give_back(claim, claim.size_bytes)

    def _serve(self) -> None:
        for line, is_quick in ((self._line, False), (self._quick_line, True)):
            while line and self._take(line[0], is_quick=is_quick):
                served = line.popleft()
                served.claim.is_waiting = False
                served.on_granted()

    def _take(self, waiting: _Waiting, *, is_quick: bool) -> bool:
        """Takes what the first in a line wants from the first part that has it."""
        claim, size_bytes = waiting.claim, waiting.size_bytes
        may_share = not self._line or self._line[0] is waiting
        if claim is self._eldest:
            claim.eldest_bytes += size_bytes
        elif may_share and self._shared_bytes + size_bytes <= self._shared_limit:
            self._take_shared(claim, size_bytes)
        elif is_quick and self._quick_bytes + size_bytes <= self._quick_limit:
            self._quick_bytes += size_bytes
            claim.quick_bytes += size_bytes
        elif may_share and self._eldest is None:
            self._eldest = claim
            claim.eldest_bytes += size_bytes
        else:
            return False
        return True

    def _take_shared(self, claim: Claim, size_bytes: int) -> None:
        self._shared_bytes += size_bytes
        claim.shared_bytes += size_bytes


class ResponseMemory:
    """Counts bytes."""

    __slots__ = ("held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    @property
    def is_short(self) -> bool:
        return self.held_bytes > self.limit_bytes
