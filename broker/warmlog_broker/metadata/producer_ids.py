"""Producer ids: each is given out once in the life of the cluster.

Ids are reserved in blocks. A block is on disk before the first of its ids is given out, so a crash loses at most the
rest of a block.
"""

import asyncio

from warmlog_broker.metadata.metadata_log import ProducerIdsReserved
from warmlog_broker.metadata.store import Metadata


class ProducerIds:
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
