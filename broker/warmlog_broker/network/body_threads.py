"""Opening the bodies of batches: in threads, never in the event loop's, and within the memory for requests.

What a body grows to when it is decompressed is limited by `batch.max.decompressed.bytes`. Those that grow large, or
have very many records, are opened one at a time, and what they take is borrowed from the memory for requests. So they
occupy one of the threads at most, other requests wait for them only if they need that memory, and a client that has a
hundred of them opened costs no more than one.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from warmlog_broker.network.memory_pool import MemoryPool
from warmlog_protocol.batch import NeedsMemory

SMALL_BODY_BYTES = 4 * 1024 * 1024
"""What each of the threads may use beside the memory for requests: most batches take less."""

Result = TypeVar("Result")


class BodyThreads:
    """The threads in which bodies are opened."""

    def __init__(self, threads: Executor, memory: MemoryPool) -> None:
        self._threads = threads
        self._memory = memory
        self._large = asyncio.Lock()

    async def run(self, work: Callable[[int], Result]) -> Result:
        """What `work(memory_bytes)` returns or raises in a thread.

        If it raises NeedsMemory it has done nothing, and is run again with as much as it needs, after the large ones
        that came before it.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, work, SMALL_BODY_BYTES)
        except NeedsMemory as error:
            needed_bytes = error.size_bytes
        async with self._large:
            while True:
                try:
                    with self._memory.borrowed(needed_bytes):
                        return await loop.run_in_executor(self._threads, work, needed_bytes)
                except NeedsMemory as error:
                    needed_bytes = error.size_bytes
