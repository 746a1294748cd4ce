"""The metadata log for many askers: changes one group at a time, each on disk before it counts."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

from warmlog_broker.metadata.metadata_log import AnyEntry, MetadataLog, MetadataState, TopicRemoved


class Metadata:
    """Owns the MetadataLog while the broker runs."""

    def __init__(self, log: MetadataLog, threads: Executor) -> None:
        self._log = log
        self._threads = threads
        self._turn = asyncio.Lock()
        self._unhurried: list[AnyEntry] = []

    @property
    def state(self) -> MetadataState:
        """What is on disk; changed by nobody else."""
        return self._log.state

    async def commit(self, entries: Sequence[AnyEntry]) -> None:
        """Returns when `entries` are on disk and in the state. StorageError: they are in neither, or in doubt after a
        failed flush, which ends all commits until a restart."""
        async with self._turn:
            group = [*self._unhurried, *entries]
            self._log.append(group)
            self._unhurried.clear()
            await asyncio.get_running_loop().run_in_executor(self._threads, self._log.flush)
            for entry in group:
                self._log.state.apply(entry)

    def note(self, entry: AnyEntry) -> None:
        """`entry` is written down with the next commit, as nothing depends on it."""
        self._unhurried.append(entry)

    def note_removed(self, topic_id: bytes) -> None:
        """The directories of a deleted topic are gone: written down with the next commit, as nothing depends on it."""
        self.note(TopicRemoved(topic_id))

    async def close(self) -> None:
        """Writes down what waited for a commit, and closes the file. StorageError when it could not be written."""
        try:
            if self._unhurried:
                await self.commit([])
        finally:
            self._log.close()
