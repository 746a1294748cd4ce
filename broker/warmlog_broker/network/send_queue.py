"""The send queue of one connection: frames from memory, and ranges of log files, in order.

On a plaintext connection file ranges are sent by `sendfile`. uvloop has no writable event for a transport's descriptor,
so sending alternates: while the transport's buffer is empty the queue calls `os.sendfile` on its non-blocking socket;
once the socket is full, the next piece is read and written to the transport. After `resume_writing` reports that it was
sent, `sendfile` continues. So at most one piece of a file is in memory for each connection, however slow its reader.
Small ranges always go through memory, together with adjacent frames.

Without sendfile (TLS, or the setting fetch.sendfile.enable) every piece goes through the transport.

Measured on loopback, uvloop 0.23, page cache, 2 cores, responses of 1 MiB with 4 in flight: sendfile 3.2 to 3.4 GB/s
with 0.12 s of broker CPU a GB; pread in pieces of 256 KiB through the transport 1.9 to 2.3 GB/s with 0.5 s; pread into
one buffer of 1 MiB and a direct send 2.3 to 2.9 GB/s with 0.4 s. Responses of 8 MiB: 3.1 to 3.3, 1.8 to 2.1 and 1.8 to
2.4 GB/s.
"""

import asyncio
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor

from warmlog_broker.network.memory_pool import ResponseMemory, nothing
from warmlog_broker.network.request import Life
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.storage.segment.file_records import FileSlice
from warmlog_protocol.errors import WarmlogError

PIECE_BYTES = 256 * 1024
"""How much of a file is read into memory at a time."""
SMALL_BYTES = 32 * 1024
"""A range up to this size is read and sent together with its frame: one write instead of two, one packet for few
records."""
TURN_BYTES = 4 * 1024 * 1024
"""After this much, a connection whose peer reads as fast as we send yields to the others."""
WARM_BYTES = 1024 * 1024
"""How far ahead data is brought into the page cache."""
PAUSE_ABOVE_BYTES = 128 * 1024
"""The transport calls pause_writing above this, and resume_writing once it has sent everything."""

_log = logging.getLogger(__name__)


class FileEnded(WarmlogError):
    """A log file is shorter than the range that a response refers to."""


class SendQueue:
    """The frames and file ranges to be sent on one transport."""

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        cold_readers: Executor,
        uses_sendfile: bool,
        memory: ResponseMemory,
        life: Life,
        lines: RepeatedLines,
        on_sent: Callable[[], None],
    ) -> None:
        """`on_sent` is called when queued data was sent without a call of `pump`."""
        self.queued_bytes = 0
        """Bytes that were not yet passed to the transport or the socket."""
        self._memory = memory
        self._life = life
        self._lines = lines
        self.waiting_bytes = 0
        """Bytes of responses that wait for their turn, as last counted."""
        self._pushed_bytes = self._paused_bytes = self._waiting_memory_bytes = 0
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._descriptor: int = transport.get_extra_info("socket").fileno()
        self._cold_readers = cold_readers
        self._uses_sendfile = uses_sendfile and transport.get_extra_info("sslcontext") is None
        self._on_sent = on_sent
        self._queue: deque[bytes | FileSlice] = deque()
        self._position = 0
        self._warm_bytes = sys.maxsize
        self._is_paused = self._is_reading_cold = self._is_pumping = False
        self._is_turn_over = False
        """Whether `pump` continues in the next turn of the event loop."""
        transport.set_write_buffer_limits(high=PAUSE_ABOVE_BYTES, low=0)

    @property
    def is_empty(self) -> bool:
        """Whether everything was passed to the operating system."""
        return not self._queue and self._transport.get_write_buffer_size() == 0

    @property
    def is_handed_over(self) -> bool:
        """Whether everything was passed to the transport or the socket."""
        return not self._queue

    @property
    def taken_bytes(self) -> int:
        """Bytes passed to the operating system since the connection was opened."""
        return self._pushed_bytes - self.queued_bytes - self._transport.get_write_buffer_size()

    @property
    def is_reader_due(self) -> bool:
        """Whether there is data for the peer to read now, which need not be read from disk first."""
        return not self.is_empty and not self._is_reading_cold

    def push(self, pieces: Sequence[bytes | FileSlice]) -> None:
        """Queue `pieces`, of which file ranges are in the page cache. Nothing is sent before `pump`."""
        size_bytes = 0
        for piece in pieces:
            self._queue.append(piece)
            if isinstance(piece, bytes):
                size_bytes += len(piece)
                self._memory.hold(self._life, len(piece))
            else:
                size_bytes += piece.size_bytes
        self.queued_bytes += size_bytes
        self._pushed_bytes += size_bytes

    def count_waiting(self, responses: Iterable[Sequence[bytes | FileSlice]]) -> None:
        """Count these as data that is held: they wait for their turn, and are pushed later."""
        pieces = [piece for each in responses for piece in each]
        memory_bytes = sum(len(piece) for piece in pieces if isinstance(piece, bytes))
        self.waiting_bytes = memory_bytes + sum(each.size_bytes for each in pieces if isinstance(each, FileSlice))
        self._memory.hold(self._life, memory_bytes - self._waiting_memory_bytes)
        self._waiting_memory_bytes = memory_bytes

    def close(self) -> None:
        """Drop unsent data: the connection is lost."""
        self._on_sent = nothing
        self.clear()

    def clear(self) -> None:
        """Drop unsent data."""
        frames_bytes = sum(len(piece) for piece in self._queue if isinstance(piece, bytes))
        self._memory.hold(self._life, -frames_bytes - self._paused_bytes - self._waiting_memory_bytes)
        self._queue.clear()
        self.queued_bytes = self.waiting_bytes = self._position = self._paused_bytes = self._waiting_memory_bytes = 0

    def pause(self) -> None:
        """The transport's buffer is above its limit."""
        self._is_paused = True
        self._warm_bytes = 0
        self._paused_bytes = self._transport.get_write_buffer_size()
        self._memory.hold(self._life, self._paused_bytes)

    def resume(self) -> None:
        """The transport has sent all of its buffer."""
        self._is_paused = False
        self._memory.hold(self._life, -self._paused_bytes)
        self._paused_bytes = 0
        self._go_on()

    def pump(self) -> None:
        """Send as much as the socket accepts now; the rest is sent without a further call."""
        if self._is_pumping or self._is_turn_over:
            return
        self._is_pumping = True
        try:
            self._send_a_turn()
        except (OSError, MemoryError) as error:
            text = f"sending failed: {str(error) or 'out of memory'}"
            self._lines.write(logging.INFO, "failed sends", text, self._loop.time())
            self._transport.abort()
        except WarmlogError as error:
            _log.error("sending failed, the connection is closed: %s", error)
            self._transport.abort()
        finally:
            self._is_pumping = False

    def _go_on(self) -> None:
        self._is_turn_over = False
        self.pump()
        self._on_sent()

    def _send_a_turn(self) -> None:
        left = TURN_BYTES
        while self._queue and not self._is_paused and not self._is_reading_cold:
            if self._transport.is_closing():
                self.clear()
                return
            if left <= 0:
                self._is_turn_over = True
                self._loop.call_soon(self._go_on)
                return
            item = self._queue[0]
            if isinstance(item, bytes) or self._is_small(item):
                left -= self._send_from_memory()
            else:
                left -= self._send_from_file(item)
        if not self._queue:
            self._warm_bytes = sys.maxsize

    def _send_from_memory(self) -> int:
        """Send the frames at the head of the queue, and small ranges between them, in one write; return the size."""
        parts: list[bytes] = []
        size_bytes = 0
        while self._queue and size_bytes < PIECE_BYTES and self._is_small(self._queue[0]):
            item = self._queue.popleft()
            if isinstance(item, bytes):
                parts.append(item)
                self._memory.hold(self._life, -len(item))
            else:
                parts.append(item.pread())
                self._warm_bytes -= item.size_bytes
            size_bytes += len(parts[-1])
        self.queued_bytes -= size_bytes
        self._transport.write(b"".join(parts) if len(parts) > 1 else parts[0])
        return size_bytes

    def _is_small(self, item: bytes | FileSlice) -> bool:
        """Whether the range is best sent from memory. If it is not in the page cache, `_send_from_file` does it."""
        if isinstance(item, bytes):
            return True
        return self._position == 0 and item.size_bytes <= min(SMALL_BYTES, self._warm_bytes)

    def _send_from_file(self, item: FileSlice) -> int:
        """Send some of the range at the head of the queue; return how many bytes, 0 while a thread reads it first."""
        rest = item.slice(self._position, min(item.size_bytes - self._position, TURN_BYTES))
        if self._warm_bytes <= 0 and not self._is_warm(rest):
            return 0
        rest = rest.slice(0, self._warm_bytes)
        if self._uses_sendfile and self._transport.get_write_buffer_size() == 0:
            sent = self._sendfile(rest)
            if sent:
                return self._advance(item, sent)
        piece = rest.slice(0, PIECE_BYTES).pread()
        self._transport.write(piece)
        return self._advance(item, len(piece))

    def _sendfile(self, rest: FileSlice) -> int:
        try:
            sent = os.sendfile(self._descriptor, rest.fileno(), rest.position, rest.size_bytes)
        except BlockingIOError:
            return 0
        if not sent:
            raise FileEnded(f"{rest.file.path} ends before position {rest.position}, {rest.size_bytes} bytes expected")
        return sent

    def _advance(self, item: FileSlice, sent: int) -> int:
        self.queued_bytes -= sent
        self._warm_bytes -= sent
        self._position += sent
        if self._position >= item.size_bytes:
            self._queue.popleft()
            self._position = 0
        return sent

    def _is_warm(self, rest: FileSlice) -> bool:
        """Return whether the next bytes can be sent without waiting for the disk. If not, have a thread read them."""
        piece = rest.slice(0, WARM_BYTES)
        if piece.is_cached():
            self._warm_bytes = piece.size_bytes
            return True
        self._is_reading_cold = True
        reading = self._loop.run_in_executor(self._cold_readers, piece.read_through)
        reading.add_done_callback(lambda done: self._cold_read_done(done, piece.size_bytes))
        return False

    def _cold_read_done(self, reading: "asyncio.Future[None]", size_bytes: int) -> None:
        self._is_reading_cold = False
        error = None if reading.cancelled() else reading.exception()
        if error is not None:
            _log.error("sending failed, the connection is closed: %s", error)
            self._transport.abort()
            return
        self._warm_bytes = size_bytes
        self._go_on()
