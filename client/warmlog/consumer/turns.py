"""Which partitions a consumer reads, and which of them have something to deliver: these take turns."""

import asyncio
from collections import deque
from collections.abc import Iterator

from warmlog.consumer.partition_reader import PartitionReader


class Turns:
    """A queue of partitions that may have something; no call costs more for partitions that have nothing.

    Whatever may give a partition something to deliver, such as a response, offers it: data, an error or a gap to pass.
    """

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        """Set when a partition was offered, or something else is to be looked at before the user waits on."""
        self._readers: dict[PartitionReader, None] = {}
        self._queue: deque[PartitionReader] = deque()
        self._queued: set[PartitionReader] = set()
        self._unread: dict[PartitionReader, None] = {}
        """Those that have not reached their end, and some that have since."""

    def __iter__(self) -> Iterator[PartitionReader]:
        return iter(self._readers)

    def __contains__(self, reader: PartitionReader) -> bool:
        return reader in self._readers

    def add(self, reader: PartitionReader) -> None:
        """Deliver this partition as well."""
        self._readers[reader] = None
        self.offer(reader)

    def remove(self, reader: PartitionReader) -> None:
        """Deliver it no longer."""
        self._readers.pop(reader, None)

    def offer(self, reader: PartitionReader) -> None:
        """Look at this partition when it is its turn: it may have something, or another end, by now."""
        self._unread[reader] = None
        if reader not in self._queued:
            self._queued.add(reader)
            self._queue.append(reader)
        self.arrived.set()

    def next(self) -> PartitionReader | None:
        """Return the partition whose turn it is, out of those that have something. The caller offers it again."""
        while self._queue:
            reader = self._queue.popleft()
            self._queued.discard(reader)
            if reader in self._readers and reader.has_something and not reader.is_held:
                return reader
        return None

    @property
    def is_at_end(self) -> bool:
        """Whether every partition has reached its end."""
        while self._unread:
            reader = next(reversed(self._unread))
            if reader in self._readers and not reader.is_at_end:
                return False
            del self._unread[reader]
        return True
