"""The blocking consumer."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from warmlog.blocking.client import BlockingClient, in_loop, options_of, waiting
from warmlog.consumer import consumer
from warmlog.consumer.iterators import ArrowIterator, BatchIterator, RecordIterator
from warmlog.errors import InvalidConfig
from warmlog.points import Where
from warmlog.records.batch import Batch, Record
from warmlog_transport.responses import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class _Steps(Protocol[T]):
    """An asynchronous iterator of the consumer that takes back an item that did not reach the user."""

    async def __anext__(self) -> T: ...

    def give_back(self, last: T) -> None: ...


class Consumer(BlockingClient[consumer.Consumer]):
    """Reads topics or single partitions: `warmlog.Consumer` without `await`. For one reader at a time.

    `on_assigned`, `on_revoked` and `on_lost` are plain functions; they are called in another thread, while the reader
    waits, and may call the consumer.
    """

    @options_of(consumer.Consumer)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        for name in ("on_assigned", "on_revoked", "on_lost"):
            callback = options.get(name)
            if inspect.iscoroutinefunction(callback):
                raise InvalidConfig(f"{name}={callback!r}: a plain function is expected, not a coroutine function")
            if callable(callback):
                options[name] = _in_thread(callback)
        super().__init__(consumer.Consumer(*arguments, **options))

    def batches(self, until: Where | None = None) -> Iterator[Batch]:
        """Iterate over batches, without end or `until` every partition has reached that point."""
        return _Blocking(self, lambda: BatchIterator(self._client._open(), until))

    def records(self, until: Where | None = None) -> Iterator[Record]:
        """Iterate over single records; `until` as for `batches`."""
        return _Records(self, lambda: RecordIterator(self._client._open(), until))

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def arrow(self, until: Where | None = None, *, columns: Sequence[str] | None = None) -> "Iterator[pa.RecordBatch]":
        """Iterate over Arrow record batches with these columns; `until` as for `batches`."""
        return _Blocking(self, lambda: ArrowIterator(self._client._open(), until, columns))

    @property
    def assignment(self) -> list[TopicPartition]:
        """The (topic, partition) pairs that are read."""

        async def assignment() -> list[TopicPartition]:
            return self._client.assignment

        return self._call(assignment)

    def to_arrow(self, until: Where = "latest", *, columns: Sequence[str] | None = None) -> "pa.Table":
        """Return everything up to `until` as one table; see the asyncio consumer's `to_arrow`.

        Ctrl-C leaves the positions where they were.
        """
        return self._running().hand_over(
            lambda: self._client.to_arrow(until, columns=columns), lambda _: self._client._open().give_back_last()
        )

    commit = waiting(consumer.Consumer.commit)
    committed = waiting(consumer.Consumer.committed)
    committed_metadata = waiting(consumer.Consumer.committed_metadata)
    group_metadata = in_loop(consumer.Consumer.group_metadata)
    pause = in_loop(consumer.Consumer.pause)
    resume = in_loop(consumer.Consumer.resume)
    lag = waiting(consumer.Consumer.lag)
    available = waiting(consumer.Consumer.available)
    position = in_loop(consumer.Consumer.position)
    positions = in_loop(consumer.Consumer.positions)
    position_epoch = in_loop(consumer.Consumer.position_epoch)
    seek = in_loop(consumer.Consumer.seek)
    seek_to = waiting(consumer.Consumer.seek_to)
    seek_to_beginning = waiting(consumer.Consumer.seek_to_beginning)
    seek_to_committed = waiting(consumer.Consumer.seek_to_committed)
    seek_to_end = waiting(consumer.Consumer.seek_to_end)
    seek_to_time = waiting(consumer.Consumer.seek_to_time)


def _in_thread(callback: Callable[[Any], Any]) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """Return a callback that runs `callback` in a thread of its own, where it may call the client."""

    async def run(partitions: Any) -> None:
        await asyncio.to_thread(callback, partitions)

    return run


class _Blocking(Iterator[T]):
    """An asynchronous iterator whose steps wait. Continues after an error.

    An item that a step has found when Ctrl-C interrupts it is given back: the consumer's positions are before it.
    """

    def __init__(self, owner: Consumer, make: Callable[[], _Steps[T]]) -> None:
        async def begin() -> _Steps[T]:
            return make()

        self._owner = owner
        self._items = owner._call(begin)

    def __next__(self) -> T:
        found = self._owner._running().hand_over(self._next, self._take_back)
        if not found:
            raise StopIteration
        return found[0]

    async def _next(self) -> list[T]:
        """The next item, in a list; an empty list at the end."""
        try:
            return [await self._items.__anext__()]
        except StopAsyncIteration:
            return []

    def _take_back(self, found: list[T]) -> None:
        for item in found:
            self._items.give_back(item)


class _Records(_Blocking[Record]):
    """Records: those of a batch that is in hand are taken without a call into the loop."""

    _is_in_hand = False
    """Whether the last step has ended: the first one puts `until` in force, an interrupted one is given back soon."""

    def __next__(self) -> Record:
        core = self._owner._client._core
        if core is not None and self._is_in_hand:
            for record in core.records:
                return record
        self._is_in_hand = False
        record = super().__next__()
        self._is_in_hand = True
        return record
