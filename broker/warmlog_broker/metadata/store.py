"""The metadata log of a running broker: changes in groups, one at a time, each on disk before it is in force."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

from warmlog_broker.metadata.metadata_log import AnyEntry, MetadataLog, MetadataState


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
