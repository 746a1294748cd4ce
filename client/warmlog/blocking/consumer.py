"""The blocking consumer."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from warmlog.blocking.client import BlockingClient, in_loop, options_of, waiting
from warmlog.consumer import consumer, iterators
from warmlog.errors import ClientClosed, InvalidConfig
from warmlog.points import Where
from warmlog.records.batch import Batch, Record
from warmlog_transport.responses import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class Consumer(BlockingClient[consumer.Consumer]):
    """Reads topics or single partitions: `warmlog.Consumer` without `await`. For one iterator at a time.

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

    def batches(self, until: Where | None = None) -> "ItemIterator[Batch]":
        """Iterate over batches, without end or `until` every partition has reached that point.

        One iterator reads at a time: the first step of a second one raises ConsumerBusy until the loop over the first
        was left or has raised, or `iterator.close()`. What that has not delivered is delivered by the second.
        """
        return ItemIterator(self, lambda: self._client.batches(until))

    def records(self, until: Where | None = None) -> "ItemIterator[Record]":
        """Iterate over single records; `until` and one at a time as for `batches`."""
        return ItemIterator(self, lambda: self._client.records(until))

    def __iter__(self) -> "ItemIterator[Record]":
        return self.records()

    def arrow(
        self, until: Where | None = None, *, columns: Sequence[str] | None = None
    ) -> "ItemIterator[pa.RecordBatch]":
        """Iterate over Arrow record batches with these columns; otherwise as `batches`."""
        return ItemIterator(self, lambda: self._client.arrow(until, columns=columns))

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
        return next(ItemIterator(self, lambda: self._client._table(until, columns)))

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


class ItemIterator(Iterator[T], Generic[T]):
    """Items until every partition has reached `until`. Continues after an error, and after Ctrl-C.

    The client's thread takes items from what was fetched, and the caller's delivers them: what an interrupted step has
    found is not delivered yet, and delivered by the next one. Leaving a loop over it lets something else be read;
    another loop over the same goes on.
    """

    def __init__(self, owner: Consumer, make: Callable[[], iterators.ItemIterator[T]]) -> None:
        async def begin() -> iterators.ItemIterator[T]:
            return make()

        self._owner = owner
        self._source = owner._call(begin)

    def __iter__(self) -> Iterator[T]:
        try:
            while True:
                yield from self._source.items
                if not self._owner._call(self._source.fill):
                    return
        finally:
            self._leave()

    def __next__(self) -> T:
        try:
            while True:
                for item in self._source.items:
                    return item
                if not self._owner._call(self._source.fill):
                    raise StopIteration
        except BaseException:
            self._leave()
            raise

    def close(self) -> None:
        """End this iterator. What it has not delivered is read next by another one."""
        self._owner._call(self._source.aclose)

    def _leave(self) -> None:
        with suppress(ClientClosed):
            thread = self._owner._running()
            thread.check_process()
            thread.soon(self._source.abandon)
