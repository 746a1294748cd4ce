"""What `send` and `send_many` return, and what a delivery future waits for.

A `DeliveryFuture` has two fields, its batch and its index there. It creates an asyncio future only if it is awaited.
"""

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

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

    async def done(self) -> None:
        """Wait until the record is acknowledged or has failed, or its source changed. Receives no error."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether the record is acknowledged or has failed."""
        ...


@dataclass(slots=True, eq=False, repr=False)
class FailedRecord:
    """Stand-in for the batch of a record that was refused after `send` had returned."""

    error: Exception
    on_error_received: "Callable[[FailedRecord], object]"
    count: ClassVar[int] = 1
    is_done: ClassVar[bool] = True

    async def wait_for(self, index: int) -> RecordMetadata:  # noqa: ARG002 - as DeliverySource
        self.on_error_received(self)
        raise self.error.with_traceback(None)

    async def done(self) -> None:
        return


class DeliveryFuture(Struct, gc=False, eq=False):
    """What `send` returns. Await it for the record's metadata, or ignore it and `drain`, `flush` or `close` later.

    Awaiting it sends its batch without further delay. It can be awaited more than once, and by several tasks. A wait
    that is cancelled or times out does not affect the record. A later error that no other caller receives by awaiting
    is raised by `drain`, `flush` or `close`. A task that awaits the future, such as `gather` and `shield` create,
    counts as a caller.

    It is a coroutine to asyncio: `create_task`, `TaskGroup.create_task` and `run_coroutine_threadsafe` take it, as do
    `gather`, `wait_for`, `shield` and `as_completed`. `asyncio.wait` refuses coroutines: give it
    `asyncio.ensure_future(sent)`. Unlike a coroutine it need not be awaited.
    """

    _batch: DeliverySource
    _index: int

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        while True:
            metadata = yield from self._batch.wait_for(self._index).__await__()
            if metadata is not None:
                return metadata

    def send(self, value: None) -> Any:
        """Go on as the coroutine of the current task."""
        return self._step(lambda waiting: waiting.send(value))

    def throw(self, *error: Any) -> Any:
        """Raise an error in the coroutine of the current task."""
        return self._step(lambda waiting: waiting.throw(*error))

    def close(self) -> None:
        """End the coroutine of the current task. The record is still sent."""
        waits = self._batch
        if isinstance(waits, _Waits) and (waiting := waits.by_task.pop(_current_task(), None)) is not None:
            waiting.close()

    def _step(self, step: Callable[[Generator[Any, None, RecordMetadata]], Any]) -> Any:
        waits = self._batch
        if not isinstance(waits, _Waits):
            waits = self._batch = _Waits(waits)
        task = _current_task()
        waiting = waits.by_task.get(task)
        if waiting is None:
            waiting = waits.by_task[task] = self.__await__()
        try:
            return step(waiting)
        except BaseException:
            waits.by_task.pop(task, None)
            raise

    def done(self) -> bool:
        """Whether the record is acknowledged or has failed."""
        return self._batch.is_done

    def result(self) -> RecordMetadata:
        """Return the metadata or raise the error of a record that is done; InvalidStateError if it is not."""
        if not self.done():
            raise asyncio.InvalidStateError("the record is neither acknowledged nor given up yet: await it")
        try:
            self.__await__().send(None)
        except StopIteration as ended:
            metadata: RecordMetadata = ended.value
            return metadata
        raise AssertionError("a record that is done has a result")

    def exception(self) -> WarmlogError | None:
        """Return the error of a record that is done, None if it was acknowledged; else as `result`."""
        try:
            self.result()
        except WarmlogError as error:
            return error
        return None

    def add_done_callback(self, callback: "Callable[[DeliveryFuture], object]") -> None:
        """Have the event loop call `callback` with this future once it is done. Does not hasten the record."""
        task = asyncio.ensure_future(self._call_when_done(callback))
        _calling.add(task)
        task.add_done_callback(_calling.discard)

    async def _call_when_done(self, callback: "Callable[[DeliveryFuture], object]") -> None:
        while not self.done():
            await self._batch.done()
        callback(self)


_calling: "set[asyncio.Task[None]]" = set()
"""The tasks of `add_done_callback`: the event loop has only weak references to tasks."""


@dataclass(slots=True, eq=False, repr=False)
class _Waits:
    """Stand-in for the source of a delivery future that tasks run as their coroutine: each has its own wait."""

    source: DeliverySource
    by_task: dict[asyncio.Task[Any] | None, Generator[Any, None, RecordMetadata]] = field(default_factory=dict)

    async def wait_for(self, index: int) -> RecordMetadata | None:
        return await self.source.wait_for(index)

    async def done(self) -> None:
        await self.source.done()

    @property
    def is_done(self) -> bool:
        return self.source.is_done


def _current_task() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


@dataclass(slots=True, eq=False, repr=False)
class WaitingRecord:
    """A record of a topic whose partitions are not known yet. Its delivery future waits for it until `resolve`."""

    value: bytes | None
    key: bytes | None
    headers: list[Header] | None
    timestamp_ms: int
    partition: int | None
    size_bytes: int
    check_loop: Callable[[], None]
    has_own_time: bool = False
    future: DeliveryFuture = field(init=False)
    _waiters: list[asyncio.Future[None]] = field(init=False, default_factory=list)
    is_done: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.future = DeliveryFuture(self, 0)

    async def wait_for(self, index: int) -> RecordMetadata | None:  # noqa: ARG002 - as DeliverySource
        """Return None when the future has its batch."""
        self.check_loop()
        await self.done()
        return None

    async def done(self) -> None:
        """Wait until the future has its batch."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

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
