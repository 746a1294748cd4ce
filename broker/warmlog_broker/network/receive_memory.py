"""The receive memory of a connection: a small buffer while it idles, a larger one while data flows, and buffers for
large requests. All of it is claimed from the pool of all connections before it is used."""

from collections.abc import Callable
from functools import partial

from warmlog_broker.network.codec import SMALL_BUFFER_BYTES, ProtocolCodec
from warmlog_broker.network.memory_pool import Claim, MemoryPool, window
from warmlog_protocol.errors import RemoteProtocolError

GROWTH = 8
"""The growth factor of a receive buffer that was filled by one read."""
LARGEST_BUFFER_BYTES = 1024 * 1024
"""The buffer of a busy connection."""


def _nothing() -> None:
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
            self._grow()
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
        self._on_granted = _nothing
        self._codec.release()
        self._memory.forget(self._claim)

    def _use(self, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        if window_bytes:
            self._codec.allow(window_bytes)

    def _granted(self, window_bytes: int) -> None:
        self._use(window_bytes)
        self._on_granted()

    def _grow(self) -> None:
        old_bytes = self._codec.buffer_bytes
        new_bytes = min(old_bytes * GROWTH, LARGEST_BUFFER_BYTES)
        if new_bytes > old_bytes and self._memory.try_claim(self._claim, new_bytes - old_bytes):
            self._codec.use_buffer(new_bytes)
