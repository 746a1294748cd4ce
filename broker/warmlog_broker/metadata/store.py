"""The metadata log of a running broker: changes in groups, one at a time, each on disk before it is in force."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

from warmlog_broker.metadata.metadata_log import AnyEntry, MetadataLog, MetadataState, ProducerIdsReserved


class Metadata:
    """Owns the MetadataLog while the broker runs."""

    def __init__(self, log: MetadataLog, threads: Executor) -> None:
        self._log = log
        self._threads = threads
        self._turn = asyncio.Lock()
        self._deferred: list[AnyEntry] = []

    @property
    def state(self) -> MetadataState:
        """What is on disk. Only `commit` changes it."""
        return self._log.state

    async def commit(self, entries: Sequence[AnyEntry]) -> None:
        """Return once `entries` are on disk and in the state.

        After a StorageError they are in neither, or in doubt if a flush failed: then all commits fail until a restart.
        """
        async with self._turn:
            group = [*self._deferred, *entries]
            self._log.append(group)
            self._deferred.clear()
            await asyncio.get_running_loop().run_in_executor(self._threads, self._log.flush)
            for entry in group:
                self._log.state.apply(entry)

    def note(self, entry: AnyEntry) -> None:
        """Write `entry` with the next commit: nothing depends on it."""
        self._deferred.append(entry)

    async def close(self) -> None:
        """Write what waits for a commit, and close the file. StorageError if it could not be written."""
        try:
            if self._deferred:
                await self.commit([])
        finally:
            self._log.close()


class ProducerIds:
    """Producer ids: each is given out once in the life of the cluster.

    Ids are reserved in blocks. A block is on disk before the first of its ids is given out, so a crash loses at most
    the rest of a block.
    """

    def __init__(self, metadata: Metadata, block_size: int) -> None:
        self._metadata = metadata
        self._block_size = block_size
        self._next_id = metadata.state.next_producer_id
        self._reserving = asyncio.Lock()

    @property
    def next_id(self) -> int:
        """The first id that was never given out."""
        return self._next_id

    async def give_out(self) -> int:
        """Return an id that was never given out. StorageError if none can be reserved."""
        async with self._reserving:
            if self._next_id >= self._metadata.state.next_producer_id:
                await self._metadata.commit([ProducerIdsReserved(self._next_id + self._block_size)])
            producer_id = self._next_id
            self._next_id += 1
            return producer_id
