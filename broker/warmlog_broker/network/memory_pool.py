"""Limits over all connections on memory for requests being received, and for responses that are not read yet.

A connection claims what its receive buffer needs beyond the small one that each has. A frame that fits into one buffer
is claimed as a whole; of a larger one only what was received, and as much again (`window`): a client that announces a
large frame and sends slowly is charged for little.

If too little is free, the claim waits and the socket is not read. Claims of stalled clients, which are disconnected
later (`is_short`), must not stop all others until then, so the pool has three parts:

- `shared`, granted in the order of claims;
- `quick`, for requests up to QUICK_BYTES if `shared` is used up, so that they need not wait for large ones;
- `reserved`, one frame of the largest size, for the claim that has waited longest: one request can always be received
  completely and release its memory, so claims that grow step by step cannot deadlock.

A batch that is decompressed borrows memory (`bodies`), one at a time, even beyond the limit.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from warmlog_protocol.codec.memory import LARGE_BYTES

QUICK_BYTES = LARGE_BYTES
"""Requests up to this size are claimed as a whole, and may use the part for small ones."""
MOST_QUICK_BYTES = 16 * QUICK_BYTES
QUICK_SHARE = 4
"""The part for small requests is at most this fraction of what is not reserved."""


def window(frame_bytes: int, received_bytes: int) -> int:
    """Return up to where a frame of `frame_bytes` may be received, given how much of it was."""
    return min(frame_bytes, max(QUICK_BYTES, 2 * received_bytes))


class Claim:
    """The memory that one connection holds."""

    __slots__ = ("is_waiting", "quick_bytes", "reserved_bytes", "shared_bytes")

    def __init__(self) -> None:
        self.shared_bytes = self.quick_bytes = self.reserved_bytes = 0
        self.is_waiting = False

    @property
    def size_bytes(self) -> int:
        return self.shared_bytes + self.quick_bytes + self.reserved_bytes


class _Waiting(NamedTuple):
    claim: Claim
    size_bytes: int
    on_granted: Callable[[], None]


class MemoryPool:
    """Counts claimed bytes, and calls back waiting claims when they are granted."""

    def __init__(self, limit_bytes: int, largest_frame_bytes: int) -> None:
        rest_bytes = max(0, limit_bytes - largest_frame_bytes)
        self.limit_bytes = limit_bytes
        self._quick_limit = min(MOST_QUICK_BYTES, rest_bytes // QUICK_SHARE)
        self._shared_limit = rest_bytes - self._quick_limit
        self._shared_bytes = self._quick_bytes = 0
        self._oldest: Claim | None = None
        self._line: deque[_Waiting] = deque()
        self._quick_line: deque[_Waiting] = deque()

    @property
    def claimed_bytes(self) -> int:
        return self._shared_bytes + self._quick_bytes + (self._oldest.reserved_bytes if self._oldest else 0)

    @property
    def is_short(self) -> bool:
        """Whether claims wait: unused memory should be given back."""
        return bool(self._line or self._quick_line)

    def try_claim(self, claim: Claim, size_bytes: int) -> bool:
        """Claim `size_bytes` if they are free and no claim waits; return whether they were claimed."""
        if self.is_short or self._shared_bytes + size_bytes > self._shared_limit:
            return False
        self._take_shared(claim, size_bytes)
        return True

    def claim(self, claim: Claim, size_bytes: int, *, is_quick: bool, on_granted: Callable[[], None]) -> bool:
        """Claim `size_bytes` for a frame; return whether they were granted. If not, `on_granted` is called later.

        A claim has at most one pending request. `is_quick`: the frame takes at most QUICK_BYTES. What never fits into
        the part for small requests waits with the large ones.
        """
        assert not claim.is_waiting
        is_quick = is_quick and size_bytes <= self._quick_limit
        waiting = _Waiting(claim, size_bytes, on_granted)
        is_first = not (self._quick_line if is_quick else self._line)
        if (is_first or claim is self._oldest) and self._take(waiting, is_quick=is_quick):
            return True
        claim.is_waiting = True
        (self._quick_line if is_quick else self._line).append(waiting)
        return False

    @contextmanager
    def borrowed(self, size_bytes: int) -> Iterator[None]:
        """Claim `size_bytes` for the duration of some work, at once and even beyond the limit.

        It does not wait for other claims, which may hold their memory until the work is done.
        """
        claim = Claim()
        self._take_shared(claim, size_bytes)
        try:
            yield
        finally:
            self.give_back(claim, size_bytes)

    def give_back(self, claim: Claim, size_bytes: int) -> None:
        """Release some of `claim`, and grant waiting claims in order."""
        assert size_bytes <= claim.size_bytes
        reserved_bytes = min(size_bytes, claim.reserved_bytes)
        quick_bytes = min(size_bytes - reserved_bytes, claim.quick_bytes)
        shared_bytes = size_bytes - reserved_bytes - quick_bytes
        claim.reserved_bytes -= reserved_bytes
        claim.quick_bytes -= quick_bytes
        claim.shared_bytes -= shared_bytes
        self._quick_bytes -= quick_bytes
        self._shared_bytes -= shared_bytes
        if claim is self._oldest and not claim.reserved_bytes:
            self._oldest = None
        self._serve()

    def forget(self, claim: Claim) -> None:
        """Release all of `claim` and its pending request: its connection is closed."""
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
        """Grant the first waiting claim of a queue from the first part with enough memory."""
        claim, size_bytes = waiting.claim, waiting.size_bytes
        may_share = not self._line or self._line[0] is waiting
        if claim is self._oldest:
            claim.reserved_bytes += size_bytes
        elif may_share and self._shared_bytes + size_bytes <= self._shared_limit:
            self._take_shared(claim, size_bytes)
        elif is_quick and self._quick_bytes + size_bytes <= self._quick_limit:
            self._quick_bytes += size_bytes
            claim.quick_bytes += size_bytes
        elif may_share and self._oldest is None:
            self._oldest = claim
            claim.reserved_bytes += size_bytes
        else:
            return False
        return True

    def _take_shared(self, claim: Claim, size_bytes: int) -> None:
        self._shared_bytes += size_bytes
        claim.shared_bytes += size_bytes


class ResponseMemory:
    """Counts the memory of responses: queued frames, and the bytes that transports hold beyond their limit.

    If it is too much, a connection with unsent responses starts no more requests, and one that reads nothing is closed.
    """

    __slots__ = ("held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    @property
    def is_short(self) -> bool:
        return self.held_bytes > self.limit_bytes
