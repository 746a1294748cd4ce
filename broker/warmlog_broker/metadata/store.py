"""The metadata log of a running broker: changes are grouped, and each group is on disk before it is in force."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

from warmlog_broker.metadata.metadata_log import Entry, MetadataLog, ProducerIdsReserved

BLOCK_IDS = 1000
"""How many producer ids are reserved on disk at a time: a flush for each thousand producers, and 1000 of 2^63 ids lost
in a crash."""


class Metadata:
    """Owns the MetadataLog while the broker runs."""

    def __init__(self, log: MetadataLog, threads: Executor) -> None:
        self.state = log.state
        """The state on disk. Only `commit` changes it."""
        self._log = log
        self._threads = threads
        self._turn = asyncio.Lock()
        self._deferred: list[Entry] = []

    async def commit(self, entries: Sequence[Entry]) -> None:
        """Return once `entries` are on disk and in the state.

        After a StorageError they are in neither; but if a flush failed they may be on disk, and all commits fail until
        a restart.
        """
        async with self._turn:
            group = [*self._deferred, *entries]
            self._log.append(group)
            self._deferred.clear()
            await asyncio.get_running_loop().run_in_executor(self._threads, self._log.flush)
            for entry in group:
                self.state.apply(entry)

    def note(self, entry: Entry) -> None:
        """Write `entry`, on which nothing depends, with the next commit."""
        self._deferred.append(entry)

    async def close(self) -> None:
        """Write the entries of `note`, and close the file. StorageError if they could not be written."""
        try:
            if self._deferred:
                await self.commit([])
        finally:
            self._log.close()


class ProducerIds:
    """Producer ids: each is assigned at most once in a cluster.

    Ids are reserved in blocks. A block is on disk before the first of its ids is assigned, so a crash loses at most the
    rest of a block.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.next_id = metadata.state.next_producer_id
        """The first id that was never assigned."""
        self._reserving = asyncio.Lock()

    async def give_out(self) -> int:
        """Assign the next id. StorageError if none can be reserved."""
        async with self._reserving:
            if self.next_id >= self._metadata.state.next_producer_id:
                await self._metadata.commit([ProducerIdsReserved(self.next_id + BLOCK_IDS)])
            producer_id = self.next_id
            self.next_id += 1
            return producer_id
