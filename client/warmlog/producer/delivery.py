"""What `send` returns for a record: two words, its batch and its place there, and no future of its own.

Where records lie once they are acknowledged.
"""

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from warmlog.errors import WarmlogError


class RecordMetadata(NamedTuple):
    """Where one record lies. `offset` is -1 where the broker did not say: with acks=0, and for some retries."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class RecordMetadataRanges:
    """Where the records of one `send_many` lie: by partition the ranges of their offsets, in the order of sending.

    Records without keys or of one key keep their order within a partition. A partition has no range for a batch whose
    offset the broker did not say (see RecordMetadata).
    """

    topic: str
    count: int
    ranges: dict[int, list[range]]

    @classmethod
    def of(cls, topic: str, batches: list[tuple[int, int, int]]) -> "RecordMetadataRanges":
        """From (partition, base offset, count) of each batch; ranges that follow on each other are joined."""
        ranges: dict[int, list[range]] = {}
        for partition, base_offset, count in batches:
            if base_offset < 0:
                continue
            found = ranges.setdefault(partition, [])
            if found and found[-1].stop == base_offset:
                found[-1] = range(found[-1].start, base_offset + count)
            else:
                found.append(range(base_offset, base_offset + count))
        return cls(topic, sum(count for _, _, count in batches), ranges)


class DeliverySource(Protocol):
    """What a record waits for: its batch, or what stands in for it."""

    async def wait_for(self, index: int) -> RecordMetadata | None:
        """Where the record at `index` lies, once it is acknowledged; raise why it is not. None: ask again."""
        ...


class FailedRecord:
    """Stands where a batch would, for a record that was found wrong only after `send` had returned."""

    __slots__ = ("_on_told", "count", "error")

    def __init__(self, error: WarmlogError, on_told: "Callable[[FailedRecord], object]") -> None:
        """`on_told` is called when a caller has received the error."""
        self.error = error
        self.count = 1
        self._on_told = on_told

    async def wait_for(self, index: int) -> RecordMetadata:  # noqa: ARG002 - as DeliverySource
        self._on_told(self)
        raise self.error.with_traceback(None)


class UnassignedRecord:
    """Stands where a batch would while the topic's partitions are not known; `decided` once they are."""

    __slots__ = ("_new_waiter", "_waiters")

    def __init__(self, new_waiter: Callable[[], "asyncio.Future[None]"]) -> None:
        """`new_waiter` as the Accumulator's."""
        self._new_waiter = new_waiter
        self._waiters: list[asyncio.Future[None]] = []

    async def wait_for(self, index: int) -> RecordMetadata | None:  # noqa: ARG002 - as DeliverySource
        """None when the record has its batch, which is to be asked then."""
        waiter = self._new_waiter()
        self._waiters.append(waiter)
        await waiter
        return None

    def decide(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters = []


class DeliveryFuture(Struct, gc=False, eq=False):
    """What `send` returns: await it to know where the record lies, or leave it and `drain`, `flush` or `close` later.

    Awaiting it sends its batch without further delay. It can be awaited more than once, and by several tasks. A wait
    that is cancelled, or times out, changes nothing for the record: an error that comes later, and that no other caller
    receives by awaiting it, is raised by `drain`, `flush` or `close`. A task that awaits it, as `gather` and `shield`
    make one, counts as a caller.
    """

    _batch: DeliverySource
    _index: int

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        while True:
            placed = yield from self._batch.wait_for(self._index).__await__()
            if placed is not None:
                return placed


Sent = DeliveryFuture
Placed = RecordMetadata
PlacedMany = RecordMetadataRanges
"""The names in version 0.1.0."""
