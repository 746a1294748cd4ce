"""Fetches that wait until there is enough to read.

A delayed fetch knows its position in each partition and how many bytes can be read there; when the bound of one
partition moves, only that one is counted again. Nothing is polled. `readable_bytes` is the whole decision.

Satisfied fetches end in the next turn of the event loop, a limited number in each turn: thousands that wait for the
same record do not block it, and one that waits for several partitions gets the records of all after one flush.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from warmlog_broker.replica.partition import Partition
from warmlog_broker.storage.log.local_log import ReadBound
from warmlog_broker.storage.segment.segments import LogOffsetMetadata
from warmlog_protocol.errors import ApiError

ENDS_A_TURN = 64
MOST_WAITS = 16_384
"""Twice the connections that a broker accepts by default. Each takes a KiB; a further fetch is answered at once."""
MOST_PARTITIONS = 262_144
"""Of all waiting fetches together; each takes 200 bytes."""


class WantedRead(NamedTuple):
    """The range that a fetch reads of one partition."""

    start: LogOffsetMetadata
    limit_bytes: int
    bound: ReadBound


def readable_bytes(start: LogOffsetMetadata, end: LogOffsetMetadata, limit_bytes: int) -> int:
    """Return how many bytes may be read from `start` to `end`, at most `limit_bytes`.

    Across segments, or if a position is not known, return the limit, as Kafka does: the exact sum costs too much.
    """
    if end.offset <= start.offset:
        return 0
    if start.is_message_only or start.segment_base_offset != end.segment_base_offset:
        return limit_bytes
    return min(end.position - start.position, limit_bytes)


class DelayedFetch:
    __slots__ = ("_available", "_min_bytes", "_total", "_waits", "is_ending", "on_done", "owner", "timer", "wanted")

    def __init__(
        self,
        waits: "DelayedFetches",
        owner: object,
        wanted: dict[Partition, WantedRead],
        min_bytes: int,
        on_done: Callable[[], None],
    ) -> None:
        self.owner = owner
        self.wanted = wanted
        self.on_done = on_done
        self.timer: asyncio.TimerHandle | None = None
        self.is_ending = False
        """Whether it no longer waits, and is about to end."""
        self._waits = waits
        self._min_bytes = min_bytes
        self._available = {partition: self._count(partition) for partition in wanted}
        self._total = sum(self._available.values())

    @property
    def is_satisfied(self) -> bool:
        return self._total >= self._min_bytes

    def partition_moved(self, partition: Partition) -> None:
        """Count the bytes of `partition` again; end if they suffice, or if it can no longer be read."""
        if self.is_ending:
            return
        now_available = self._count(partition)
        self._total += now_available - self._available[partition]
        self._available[partition] = now_available
        if self.is_satisfied:
            self._waits.end(self)

    def _count(self, partition: Partition) -> int:
        """Return how many bytes of `partition` may be read; enough to end the wait if it cannot be read."""
        wanted = self.wanted[partition]
        try:
            return readable_bytes(wanted.start, partition.log.bounds.end_of(wanted.bound), wanted.limit_bytes)
        except (ApiError, OSError):
            return self._min_bytes


class DelayedFetches:
    """All delayed fetches of the broker: at most `limit`, for at most `partition_limit` partitions."""

    def __init__(self, limit: int = MOST_WAITS, partition_limit: int = MOST_PARTITIONS) -> None:
        self.limit = limit
        self.partition_limit = partition_limit
        self._partition_count = 0
        self._count = 0
        self._by_owner: dict[object, dict[DelayedFetch, None]] = {}
        self._satisfied: deque[DelayedFetch] = deque()
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return self._count

    def add(
        self,
        owner: object,
        wanted: dict[Partition, WantedRead],
        *,
        min_bytes: int,
        max_wait_ms: int,
        on_done: Callable[[], None],
    ) -> bool:
        """Call `on_done` once `min_bytes` may be read, or after `max_wait_ms`. Return False if too many wait."""
        if self._count >= self.limit or self._partition_count + len(wanted) > self.partition_limit:
            return False
        wait = DelayedFetch(self, owner, wanted, min_bytes, on_done)
        for partition, read in wanted.items():
            partition.add_reader(wait, read.bound)
        self._by_owner.setdefault(owner, {})[wait] = None
        self._count += 1
        self._partition_count += len(wanted)
        wait.timer = self._loop.call_later(max_wait_ms / 1000, self.end, wait)
        if wait.is_satisfied:
            self.end(wait)
        return True

    def end(self, wait: DelayedFetch) -> None:
        """End `wait` in the next turn. Idempotent."""
        if wait.is_ending:
            return
        wait.is_ending = True
        self._satisfied.append(wait)
        if len(self._satisfied) == 1:
            self._loop.call_soon(self._end_some)

    def forget(self, owner: object) -> int:
        """Drop the fetches of `owner` without a call of `on_done`; return how many there were."""
        waits = list(self._by_owner.get(owner, ()))
        for wait in waits:
            self._remove(wait)
        return len(waits)

    def end_all(self) -> None:
        """End all waits in the next turns."""
        for waits in self._by_owner.values():
            for wait in waits:
                self.end(wait)

    def finish_all(self) -> None:
        """End all waits now: the broker stops."""
        for waits in list(self._by_owner.values()):
            for wait in list(waits):
                self._finish(wait)

    def _end_some(self) -> None:
        for _ in range(min(ENDS_A_TURN, len(self._satisfied))):
            self._finish(self._satisfied.popleft())
        if self._satisfied:
            self._loop.call_soon(self._end_some)

    def _finish(self, wait: DelayedFetch) -> None:
        if self._remove(wait):
            wait.on_done()

    def _remove(self, wait: DelayedFetch) -> bool:
        waits = self._by_owner.get(wait.owner)
        if waits is None or wait not in waits:
            return False
        del waits[wait]
        if not waits:
            del self._by_owner[wait.owner]
        self._count -= 1
        self._partition_count -= len(wait.wanted)
        for partition in wait.wanted:
            partition.remove_reader(wait)
        if wait.timer is not None:
            wait.timer.cancel()
        return True
