"""Standard input as lines of bytes, for `warmlog produce`, in pieces of bounded size."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator

from warmlog.cli.terminal.exits import CommandFailed

CHUNK_BYTES = 256 * 1024
MAX_LINE_BYTES = 64 * 1024 * 1024
"""Far above the largest record of a topic; a file without newlines is refused before it fills the memory."""


class LineSplitter:
    """Cuts chunks into lines, without their newlines. A last line without a newline counts unless it is empty."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        """The pieces of the incomplete line: they are joined once, or a long line would be copied for each piece."""
        self._pending_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` completes. CommandFailed if an incomplete line is too long."""
        lines = chunk.split(b"\n")
        if len(lines) > 1:
            lines[0] = b"".join((*self._pending, lines[0]))
            self._pending, self._pending_bytes = [], 0
        rest = lines.pop()
        if rest:
            self._pending.append(rest)
            self._pending_bytes += len(rest)
        if self._pending_bytes > MAX_LINE_BYTES:
            raise CommandFailed(
                f"a line has more than {MAX_LINE_BYTES} bytes: each line is one record, is this a text file?"
            )
        return lines

    def finish(self) -> list[bytes]:
        """Return the last line, if it had no newline."""
        lines = [b"".join(self._pending)] if self._pending else []
        self._pending, self._pending_bytes = [], 0
        return lines


async def read_rounds(descriptor: int, max_round_bytes: int) -> AsyncIterator[bytes]:
    """Yield the bytes of `descriptor`, each time all that has arrived; an empty piece marks the end.

    A thread reads, because an event loop cannot wait for files; it is a daemon, because a read from a terminal cannot
    be interrupted and must not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(max(max_round_bytes // CHUNK_BYTES, 1))

    def read() -> None:
        chunk: bytes | OSError = b" "
        while chunk and isinstance(chunk, bytes):
            room.acquire()
            try:
                chunk = os.read(descriptor, CHUNK_BYTES)
            except OSError as error:
                chunk = error
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:  # the loop was closed, so nothing reads the queue
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    is_at_end = False
    while not is_at_end:
        pieces = [await chunks.get()]
        while not chunks.empty():
            pieces.append(chunks.get_nowait())
        room.release(len(pieces))
        for failure in pieces:
            if isinstance(failure, OSError):
                raise failure
        is_at_end = not pieces[-1]
        if arrived := b"".join(piece for piece in pieces if isinstance(piece, bytes)):
            yield arrived
    yield b""
