"""What `send` and `send_many` return, and what a delivery future waits for.

A `DeliveryFuture` has two fields, its batch and its index there. It creates an asyncio future only if it is awaited.
"""

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from warmlog.errors import WarmlogError
from warmlog.producer.record_input import Header


class RecordMetadata(NamedTuple):
    """The position of one record. `offset` is -1 if unknown: with acks=0, and after some retries."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class RecordMetadataRanges:
    """The positions of the records of one `send_many`: their offset ranges by partition, in the order of sending.

    Records without keys, or of one key, keep their order within a partition. A batch whose offset is unknown has no
    range (see RecordMetadata).
    """

    topic: str
    count: int
    ranges: dict[int, list[range]]

    @classmethod
    def of(cls, topic: str, batches: list[tuple[int, int, int]]) -> "RecordMetadataRanges":
        """From the partition, base offset and count of each batch. Adjacent ranges are joined."""
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
    """What a delivery future waits for: the record's batch, or a stand-in for it."""

    async def wait_for(self, index: int) -> RecordMetadata | None:
        """Return the metadata of the acknowledged record, or raise its error. None: its source changed, ask again."""
        ...


class FailedRecord:
    """Stand-in for the batch of a record that was refused after `send` had returned."""

    __slots__ = ("_on_error_received", "count", "error")

    def __init__(self, error: WarmlogError, on_error_received: "Callable[[FailedRecord], object]") -> None:
        self.error = error
        self.count = 1
        self._on_error_received = on_error_received

    async def wait_for(self, index: int) -> RecordMetadata:  # noqa: ARG002 - as DeliverySource
        self._on_error_received(self)
        raise self.error.with_traceback(None)


class DeliveryFuture(Struct, gc=False, eq=False):
    """What `send` returns. Await it for the record's metadata, or ignore it and `drain`, `flush` or `close` later.

    Awaiting it sends its batch without further delay. It can be awaited more than once, and by several tasks. A wait
    that is cancelled or times out does not affect the record. A later error that no other caller receives by awaiting
    is raised by `drain`, `flush` or `close`. A task that awaits the future, such as `gather` and `shield` create,
    counts as a caller.
    """

    _batch: DeliverySource
    _index: int

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        while True:
            metadata = yield from self._batch.wait_for(self._index).__await__()
            if metadata is not None:
                return metadata


class WaitingRecord:
    """A record of a topic whose partitions are not known yet. Its delivery future waits for it until `resolve`."""

    __slots__ = (
        "_check_loop",
        "_waiters",
        "future",
        "headers",
        "key",
        "partition",
        "size_bytes",
        "timestamp_ms",
        "value",
    )

    def __init__(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: list[Header] | None,
        timestamp_ms: int,
        partition: int | None,
        size_bytes: int,
        check_loop: Callable[[], None],
    ) -> None:
        self.value = value
        self.key = key
        self.headers = headers
        self.timestamp_ms = timestamp_ms
        self.partition = partition
        self.size_bytes = size_bytes
        self.future = DeliveryFuture(self, 0)
        self._check_loop = check_loop
        self._waiters: list[asyncio.Future[None]] = []

    async def wait_for(self, index: int) -> RecordMetadata | None:  # noqa: ARG002 - as DeliverySource
        """Return None when the future has its batch."""
        self._check_loop()
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter
        return None

    def resolve(self, future: DeliveryFuture) -> None:
        """Let the record's future wait for the same as `future`: the record's batch, or its failure."""
        self.future._batch, self.future._index = future._batch, future._index
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters = []


Sent = DeliveryFuture
Placed = RecordMetadata
PlacedMany = RecordMetadataRanges
"""The names in version 0.1.0."""
