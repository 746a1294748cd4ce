"""Decompress batches: in threads, never on the event loop, and within the memory for requests.

`batch.max.decompressed.bytes` limits the decompressed size. Batches that are large once decompressed, or have very many
records, are handled one at a time, in memory borrowed from the pool for requests: they occupy one thread at most, and
others wait for them only if they need that memory.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from warmlog_broker.network.memory_pool import MemoryPool
from warmlog_protocol.batch import NeedsMemory

SMALL_BODY_BYTES = 4 * 1024 * 1024
"""The memory of each thread in addition to the memory for requests: enough for most batches."""

Result = TypeVar("Result")


class BodyThreads:
    """The threads in which batches are decompressed."""

    def __init__(self, threads: Executor, memory: MemoryPool) -> None:
        self._threads = threads
        self._memory = memory
        self._large = asyncio.Lock()

    async def run(self, work: Callable[[int], Result]) -> Result:
        """Run `work(memory_bytes)` in a thread; return its result.

        If it raises NeedsMemory, without an effect, it is run again with the memory that it needs, after earlier large
        batches.
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
