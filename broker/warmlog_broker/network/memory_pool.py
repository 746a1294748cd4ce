"""Limits over all connections on memory for requests being received, and for responses that are not read yet.

A connection claims what its receive buffer needs beyond the small one that each has. A frame that fits into one buffer
is claimed as a whole; of a larger one only what was received, and as much again (`window`): a client that announces a
large frame and sends slowly is charged for little.

If too little is free, the claim waits and the socket is not read. Waiting claims get what becomes free: those for small
frames first, then in their order. One frame of the largest size is reserved for the claim that has waited longest: one
request can always be received completely and release its memory, so claims that grow step by step cannot deadlock. A
client that holds memory and stalls while others wait is disconnected soon (`deadlines`).

`ReceiveMemory` is the memory of one connection: a small buffer while it idles, a larger one while data flows, and
buffers for large requests. A batch that is decompressed borrows memory (`body_threads`), one at a time, even beyond the
limit.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from warmlog_broker.network.codec import SMALL_BUFFER_BYTES, ProtocolCodec
from warmlog_broker.network.request import Life
from warmlog_protocol.codec.memory import LARGE_BYTES
from warmlog_protocol.errors import RemoteProtocolError

SMALL_FRAME_BYTES = LARGE_BYTES
"""Frames up to this size are claimed as a whole, and are served first."""
GROWTH = 8
"""The growth factor of a receive buffer that was filled by one read."""
LARGEST_BUFFER_BYTES = 1024 * 1024
"""The buffer of a busy connection."""


def window(frame_bytes: int, received_bytes: int) -> int:
    """Return up to where a frame of `frame_bytes` may be received, given how much of it was."""
    return min(frame_bytes, max(SMALL_FRAME_BYTES, 2 * received_bytes))


class Claim:
    """The memory that one connection holds."""

    __slots__ = ("is_waiting", "reserved_bytes", "shared_bytes")

    def __init__(self) -> None:
        self.shared_bytes = self.reserved_bytes = 0
        self.is_waiting = False

    @property
    def size_bytes(self) -> int:
        return self.shared_bytes + self.reserved_bytes


class _Waiting(NamedTuple):
    number: int
    """Rises with the time of the claim."""
    claim: Claim
    size_bytes: int
    on_granted: Callable[[], None]


class MemoryPool:
    """Counts claimed bytes, and calls back claims when they are granted."""

    def __init__(self, limit_bytes: int, largest_frame_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._shared_limit_bytes = max(0, limit_bytes - largest_frame_bytes)
        self._shared_bytes = 0
        self._privileged: Claim | None = None
        """The claim that uses the reserved frame."""
        self._small: OrderedDict[Claim, _Waiting] = OrderedDict()
        self._large: OrderedDict[Claim, _Waiting] = OrderedDict()
        self._next_number = itertools.count().__next__

    @property
    def claimed_bytes(self) -> int:
        return self._shared_bytes + (self._privileged.reserved_bytes if self._privileged else 0)

    @property
    def is_short(self) -> bool:
        """Whether claims wait: unused memory should be given back."""
        return bool(self._small or self._large)

    def try_claim(self, claim: Claim, size_bytes: int) -> bool:
        """Claim `size_bytes` if they are free and no claim waits; return whether they were claimed."""
        if self.is_short or self._shared_bytes + size_bytes > self._shared_limit_bytes:
            return False
        self._take_shared(claim, size_bytes)
        return True

    def claim(self, claim: Claim, size_bytes: int, *, frame_bytes: int, on_granted: Callable[[], None]) -> None:
        """Claim `size_bytes` for a frame of `frame_bytes`; `on_granted` is called when they are, maybe at once.

        A claim has at most one pending request.
        """
        assert not claim.is_waiting
        claim.is_waiting = True
        line = self._small if frame_bytes <= SMALL_FRAME_BYTES else self._large
        line[claim] = waiting = _Waiting(self._next_number(), claim, size_bytes, on_granted)
        if claim is self._privileged:
            self._grant_reserved(waiting)
        else:
            self._serve()

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
        """Release some of `claim`, and grant waiting claims."""
        assert size_bytes <= claim.size_bytes
        reserved_bytes = min(size_bytes, claim.reserved_bytes)
        claim.reserved_bytes -= reserved_bytes
        self._take_shared(claim, reserved_bytes - size_bytes)
        if claim is self._privileged and not claim.reserved_bytes:
            self._privileged = None
        self._serve()

    def forget(self, claim: Claim) -> None:
        """Release all of `claim` and its pending request: its connection is closed."""
        claim.is_waiting = False
        self._small.pop(claim, None)
        self._large.pop(claim, None)
        self.give_back(claim, claim.size_bytes)

    def _serve(self) -> None:
        while self.is_short:
            first = next(iter((self._small or self._large).values()))
            if self._shared_bytes + first.size_bytes <= self._shared_limit_bytes:
                self._take_shared(first.claim, first.size_bytes)
                self._granted(first)
            elif self._privileged is None:
                self._grant_reserved(min(next(iter(line.values())) for line in (self._small, self._large) if line))
            else:
                return

    def _grant_reserved(self, waiting: _Waiting) -> None:
        self._privileged = waiting.claim
        waiting.claim.reserved_bytes += waiting.size_bytes
        self._granted(waiting)

    def _granted(self, waiting: _Waiting) -> None:
        claim = waiting.claim
        claim.is_waiting = False
        self._small.pop(claim, None)
        self._large.pop(claim, None)
        waiting.on_granted()

    def _take_shared(self, claim: Claim, size_bytes: int) -> None:
        self._shared_bytes += size_bytes
        claim.shared_bytes += size_bytes


class ResponseMemory:
    """Counts the memory of responses: queued frames, the bytes that transports hold beyond their limit, and batches
    that are being converted.

    If it is too much, a connection that holds some of it starts no more requests and converts no more batches, and one
    that reads nothing is closed.
    """

    __slots__ = ("held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    @property
    def is_short(self) -> bool:
        return self.held_bytes > self.limit_bytes

    def hold(self, life: Life, size_bytes: int) -> None:
        """Count so much more for a connection, or less if it is negative."""
        life.held_bytes += size_bytes
        self.held_bytes += size_bytes


def nothing() -> None:
    """Replaces the callback of a lost connection: without the reference cycle it is freed at once."""


class ReceiveMemory:
    """The receive memory of one connection, and its claims."""

    def __init__(self, codec: ProtocolCodec, memory: MemoryPool, *, on_granted: Callable[[], None]) -> None:
        """`on_granted` is called when memory is granted, maybe within `provide`: the socket may be read."""
        self._codec = codec
        self._memory = memory
        self._claim = Claim()
        self._on_granted = on_granted
        self._window_bytes = 0
        self._held_bytes = 0

    @property
    def is_waiting(self) -> bool:
        """Whether the socket must not be read before memory is granted."""
        return self._claim.is_waiting

    @property
    def is_small(self) -> bool:
        """Whether the buffer has its smallest size."""
        return self._codec.buffer_bytes <= SMALL_BUFFER_BYTES

    @property
    def is_in_the_way(self) -> bool:
        """Whether it holds memory that other connections wait for."""
        return self._memory.is_short and self._claim.size_bytes > 0

    def provide(self, *, is_trusted: bool, was_filled: bool = False, may_read: bool = True) -> None:
        """Claim the memory for the next read, and give back unused memory.

        Requests of a client that is not trusted must fit into the smallest buffer: RemoteProtocolError for a larger
        frame. Without `may_read` nothing is claimed for further bytes: the socket is not read.
        """
        if self._claim.is_waiting:
            return
        codec = self._codec
        if codec.oversize_bytes and not is_trusted:
            before = "authentication" if codec.is_open else "Handshake"
            raise RemoteProtocolError(
                f"a frame of {codec.oversize_bytes} bytes before the {before}", kind=f"large frames before the {before}"
            )
        if was_filled and is_trusted:
            new_bytes = min(codec.buffer_bytes * GROWTH, LARGEST_BUFFER_BYTES)
            grows = new_bytes > codec.buffer_bytes
            if grows and self._memory.try_claim(self._claim, new_bytes - codec.buffer_bytes):
                codec.use_buffer(new_bytes)
        frame_bytes = codec.oversize_bytes
        window_bytes = self._window_bytes if frame_bytes else 0
        if frame_bytes and may_read and codec.pending_bytes >= window_bytes:
            window_bytes = window(frame_bytes, codec.pending_bytes)
        needed_bytes = codec.buffer_bytes - SMALL_BUFFER_BYTES + window_bytes + self._held_bytes
        missing_bytes = needed_bytes - self._claim.size_bytes
        if missing_bytes < 0:
            self._memory.give_back(self._claim, -missing_bytes)
        if missing_bytes <= 0:
            self._use(window_bytes)
        else:
            granted = partial(self._granted, window_bytes)
            self._memory.claim(self._claim, missing_bytes, frame_bytes=frame_bytes, on_granted=granted)

    def hold(self, size_bytes: int) -> None:
        """Keep this much claimed for a request that still uses its payload, until a call with 0."""
        self._held_bytes = size_bytes

    def shrink(self) -> None:
        """Shrink the buffer to its smallest size if it is empty."""
        if not self._codec.pending_bytes and not self.is_small:
            self._codec.use_buffer(SMALL_BUFFER_BYTES)
            self.provide(is_trusted=True)

    def release(self) -> None:
        """Release all memory: the connection is lost."""
        self._on_granted = nothing
        self._codec.release()
        self._memory.forget(self._claim)

    def _use(self, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        if window_bytes:
            self._codec.allow(window_bytes)

    def _granted(self, window_bytes: int) -> None:
        self._use(window_bytes)
        self._on_granted()
