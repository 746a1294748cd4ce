"""The blocking producer: `send` buffers a record from any thread, and the producer's own thread takes it from there."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from concurrent.futures._base import PENDING
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Self, TypeVar

from warmlog.blocking.client import BlockingClient, in_loop, options_of, waiting
from warmlog.blocking.consumer import Consumer
from warmlog.consumer.offset_commits import Committable
from warmlog.errors import ClientClosed, TransactionAborted, WarmlogError
from warmlog.producer import producer, transaction
from warmlog.producer.delivery import DeliveryFuture as AsyncDeliveryFuture
from warmlog.producer.delivery import FailedRecord, RecordMetadata
from warmlog.producer.record_input import (
    Headers,
    as_bytes,
    as_headers,
    as_partition,
    as_timestamp,
    content_bytes,
    serialized,
)
from warmlog_protocol.messages import OffsetCommitRequest, OffsetCommitResponse
from warmlog_transport.cluster import is_interruption
from warmlog_transport.loop_thread import LoopThread

R = TypeVar("R")

QUEUE_BYTES = 8 * 1024 * 1024
"""`send` waits while records of more than this have not reached the producer's buffer."""
OVERHEAD_BYTES = 200
"""What a queued record takes beside its content, about."""
NO_METADATA = RecordMetadata("", -1, -1, -1)
"""The result of a delivery future's Future, which is not used: the delivery future finds its own."""
INTERRUPTED_EXIT_S = 0.4
"""How long an interrupted block waits for records that have not reached the producer's buffer."""


class DeliveryFuture(Future[RecordMetadata]):
    """What `send` returns: `result` waits for the record's metadata, or ignore it and `flush` or `close` later.

    A wait that times out or is interrupted takes nothing back: the record is still sent, and `cancel` returns False.
    Waiting for `result` or `exception` sends the record without further delay; `concurrent.futures.wait` and
    callbacks do not.

    What `concurrent.futures` itself needs of a Future is created on first use: most records are sent without that.
    """

    _state = PENDING
    _exception = None
    _result = None
    _is_watched = False
    """Whether it is settled once its record is done."""

    def __init__(self, queue: "SendQueue", record: tuple[Any, ...]) -> None:
        self._queue = queue
        self._record: tuple[Any, ...] | None = record
        self._sent: AsyncDeliveryFuture | None = None
        """What the asyncio producer has returned for it, or what has its refusal; None until then."""

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        """What is locked first by all that needs more than `result`: one for all futures of the producer."""
        if not self._is_watched:
            self._is_watched = True
            self._queue.settle(self)
        return self._queue.settling

    @cached_property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        return []

    @cached_property
    def _done_callbacks(self) -> list[Callable[[Any], object]]:
        return []

    def done(self) -> bool:
        """Whether the record is acknowledged or has failed."""
        return self._sent is not None and self._sent.done()

    def running(self) -> bool:
        """Whether the record is neither acknowledged nor failed: it cannot be taken back."""
        return not self.done()

    def cancel(self) -> bool:
        """Return False: the record is sent."""
        return False

    def cancelled(self) -> bool:
        """Return False: the record is sent."""
        return False

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the record, and return its metadata or raise its error. TimeoutError after `timeout` seconds."""
        if self._sent is not None and self._sent.done():
            return self._sent.result()
        return self._queue.thread.call(self._wait, timeout)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait as `result`, and return the record's error, or None if it was acknowledged."""
        try:
            self.result(timeout)
        except TimeoutError:
            if self._sent is None or not self._sent.done():
                raise
            return self._sent.exception()
        except Exception as error:
            return error
        return None

    def settled(self) -> None:
        """Wake those that wait for it as for any Future, and call its callbacks. `result` has the outcome."""
        if self._is_watched:
            with suppress(InvalidStateError):  # told twice
                super().set_result(NO_METADATA)

    async def _wait(self) -> RecordMetadata:
        await self._queue.empty()
        assert self._sent is not None
        return await self._sent


class SendQueue:
    """Records on their way from threads to the asyncio producer, in the order of sending."""

    def __init__(self, client: producer.Producer[Any, Any], thread: LoopThread) -> None:
        self.thread = thread
        self._client = client
        # Where it is held nothing is called: a signal's handler, which may send and flush, runs only after calls.
        self._lock = threading.Lock()
        self._room = asyncio.Event()
        """There may be room for each `send` that waits now."""
        self.settling = threading.Condition()
        """What `concurrent.futures` locks of every delivery future."""
        self._waiting: list[DeliveryFuture] = []
        self._taken: deque[DeliveryFuture] = deque()
        self._size_bytes = 0
        self._is_closed = False
        self.emptying = asyncio.Lock()
        """Held while records are handed over; a transaction that commits holds it, too, so that none comes then."""
        self._next_round: asyncio.Task[None] | None = None
        """What will take the records that are queued now, if it has not begun to."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """The number of records that have not reached the producer."""
        return len(self._taken) + len(self._waiting)

    def put(self, record: tuple[Any, ...], size_bytes: int) -> DeliveryFuture:
        """Queue a record; waits while too much is queued. Raises ClientClosed if the producer is being closed."""
        future = DeliveryFuture(self, record)
        while not self._add(future, size_bytes + OVERHEAD_BYTES):
            self.thread.call(self._wait_for_room)
        return future

    def _add(self, future: DeliveryFuture, size_bytes: int) -> bool:
        """Queue the record if there is room for it, or this is the thread that makes room, as in a callback."""
        must_not_wait = self.thread.is_current
        with self._lock:
            is_closed = self._is_closed
            has_room = not is_closed and (self._size_bytes <= QUEUE_BYTES or must_not_wait)
            if has_room:
                is_first = not self._waiting  # otherwise the loop is about to take what is queued
                self._waiting += (future,)
                self._size_bytes += size_bytes
        if is_closed:
            raise ClientClosed("the producer is closed")
        if has_room and is_first:
            with suppress(ClientClosed):  # closed meanwhile, which has sent or failed the record: its future tells
                self.thread.soon(self._begin)
        return has_room

    async def _wait_for_room(self) -> None:
        self._begin()  # the `send` that filled the queue may be interrupted before it does so
        if self._size_bytes > QUEUE_BYTES and not self._is_closed:
            await self._room.wait()

    def close(self) -> None:
        """Accept no more records. Each `send` that waits for room raises ClientClosed. In the loop."""
        with self._lock:
            self._is_closed = True
        self._room.set()

    async def empty(self) -> None:
        """Hand all records that are queued now to the producer. In the loop. A cancelled call does not stop it."""
        await asyncio.shield(self._begin())

    def settle(self, future: DeliveryFuture) -> None:
        """Have `future` settled when its record is done. From any thread."""
        if future.done():
            future.settled()
            return
        self.thread.check_process()

        async def watch() -> None:
            try:
                with suppress(ClientClosed):
                    await self.empty()
                while future._sent is not None and not future.done():
                    await future._sent._batch.done()
            finally:
                if not future.done():  # the loop ends
                    self._refuse(future, ClientClosed("the producer was closed before this was acknowledged"))
                future.settled()

        try:
            self.thread.soon(lambda: self._in_background(watch()))
        except ClientClosed as error:
            self._refuse(future, error)

    def discard(self, error: WarmlogError) -> None:
        """Fail all records that have not reached the producer. In the loop."""
        self._take()
        self._refuse_taken(error)

    def _begin(self) -> "asyncio.Task[None]":
        """Have what is queued now handed over: one round for all who ask before it begins."""
        if self._next_round is None or self._next_round.done():  # done: cancelled, as the loop ends
            self._next_round = self._in_background(self._empty())
        return self._next_round

    def _in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self.thread.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _empty(self) -> None:
        async with self.emptying:
            self._next_round = None
            try:
                was_full = self._size_bytes > QUEUE_BYTES
                self._take()
                if was_full:
                    await asyncio.sleep(0)  # those that wait for room go on while this hands over
                core = self._client._open()
                while self._taken:
                    if core.accumulator.drain_flag.is_set:
                        await core.make_room()
                    if self._taken:  # `discard` may have been called meanwhile
                        self._hand_over(self._taken.popleft())
            except asyncio.CancelledError:  # the loop ends
                self._take()
                self._refuse_taken(ClientClosed("the producer was closed before this was sent"))
                raise
            except WarmlogError as error:
                self._refuse_taken(error)

    def _take(self) -> None:
        """Take what is queued now; the next record that is queued begins another round."""
        with self._lock:
            self._taken.extend(self._waiting)
            self._waiting, self._size_bytes = [], 0
        self._room.set()
        self._room = asyncio.Event()

    def _refuse_taken(self, error: WarmlogError) -> None:
        while self._taken:
            self._refuse(self._taken.popleft(), error)

    def _hand_over(self, future: DeliveryFuture) -> None:
        record, future._record = future._record, None
        assert record is not None
        topic, value, key, headers, timestamp_ms, partition = record
        try:
            if self._client._is_serializing:  # `record` is serialized
                future._sent = self._client._add(topic, value, key, headers, timestamp_ms, partition)
            else:
                future._sent = self._client.send(
                    topic, value, key=key, headers=headers, timestamp_ms=timestamp_ms, partition=partition
                )
        except Exception as error:
            self._refuse(future, error)

    def _refuse(self, future: DeliveryFuture, error: Exception) -> None:
        """Have `future` raise `error`, or else the producer's next `drain`, `flush` or `close`."""
        running = self._client._running
        if running is None:
            future._sent = AsyncDeliveryFuture(FailedRecord(error, lambda _: None), 0)
        else:
            future._sent = running.accumulator.refuse(error)
        future.settled()


class Transaction:
    """One transaction, from the beginning to the end of a `with` block: see `Producer.transaction`."""

    def __init__(self, owner: "Producer", inner: transaction.Transaction) -> None:
        self._owner = owner
        self._thread = owner._running()
        self._queue = owner._made_queue()
        self._inner = inner
        self._has_block = False
        """Whether its block runs. If it does not, and the transaction is open, an interruption kept it from ending."""

    def commit_offsets(self, consumer: Consumer, what: Committable | None = None, *, metadata: str = "") -> None:
        """Commit for the consumer's group together with the records, as `warmlog`'s `Transaction.commit_offsets`.

        An error or an interruption, also if it is caught, aborts the transaction at the end of the block.
        """
        self._thread.check()
        try:
            consumer._call(lambda: consumer._client._commit_within(self, what, metadata))
        except BaseException as error:
            self._thread.soon(partial(self._inner._doom, error))
            raise

    async def add_offsets(self, request: OffsetCommitRequest) -> OffsetCommitResponse:
        """As `OffsetTransaction`, in the loop of a consumer."""
        added = asyncio.run_coroutine_threadsafe(self._inner.add_offsets(request), self._thread.loop)
        return await asyncio.wrap_future(added)

    def __enter__(self) -> Self:
        self._has_block = True
        try:
            self._thread.call(self._begin)
        except BaseException:
            self._has_block = False
            raise
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        try:
            self._thread.call(lambda: self._end(error))
        finally:
            self._has_block = False

    async def _begin(self) -> None:
        last, self._owner._last = self._owner._last, self
        if last is not None and last._inner._is_open and not last._has_block:
            await last._abort(TransactionAborted("its end was interrupted"))
        await self._queue.empty()
        self._owner._client._open().raise_unseen()
        await self._inner.__aenter__()

    async def _end(self, error: BaseException | None) -> None:
        """Commit after all that threads have sent in the block, or abort without sending it."""
        if error is not None:
            await self._abort(error)
            return
        try:
            await self._queue.empty()
            await self._queue.emptying.acquire()
        except BaseException as failure:
            await self._abort(failure)
            raise
        try:
            await self._inner.__aexit__(None, None, None)
        finally:
            self._queue.emptying.release()

    async def _abort(self, error: BaseException) -> None:
        self._queue.discard(TransactionAborted("the transaction was aborted"))
        await self._inner.__aexit__(type(error), error, None)


class Producer(BlockingClient[producer.Producer[Any, Any]]):
    """Sends records to topics: `warmlog.Producer` without `await`. Any number of threads may share it."""

    @options_of(producer.Producer)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(producer.Producer(*arguments, **options))
        self._queue: SendQueue | None = None
        self._last: Transaction | None = None
        """The transaction that has begun last."""

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> DeliveryFuture:
        """Buffer a record and return; waits only while the producer's buffer is full, and never in a callback.

        `result()` of what is returned waits until the record is acknowledged. Records of one thread keep their order
        within a partition. `value` and `key` are bytes or None, or what the serializers take, which run in the
        caller's thread. Raises TypeError for wrong types and what a serializer raises; other errors, such as
        MessageTooLarge, come with `result`, or with the next `drain`, `flush` or `close`.
        """
        client = self._client
        if client._is_serializing:
            value = serialized("value", client._value_serializer, value)
            key = serialized("key", client._key_serializer, key)
        value, key = as_bytes("value", value), as_bytes("key", key)
        headers = as_headers(headers)
        if timestamp_ms is not None:
            as_timestamp(timestamp_ms)
        as_partition(partition)
        thread = self._running()
        if thread.is_foreign:
            thread.check()
        assert self._queue is not None
        size_bytes = content_bytes(value, key, headers)
        return self._queue.put((topic, value, key, headers, timestamp_ms, partition), size_bytes)

    send_many = waiting(producer.Producer.send_many)
    send_frame = waiting(producer.Producer.send_frame)

    def transaction(self) -> Transaction:
        """Return a transaction, to be used by `with`: it commits at the end of the block, and aborts on an error.

        As `warmlog.Producer.transaction`. Records that any thread sends while the block runs are part of it; those sent
        outside of it are refused.
        """
        return Transaction(self, self._begun())

    _begun = in_loop(producer.Producer.transaction)

    def drain(self) -> None:
        """Wait while more than `high_water_bytes` is not acknowledged. Raises as `flush`; `send` needs no `drain`."""
        self._call(self._client.drain)

    flush = waiting(producer.Producer.flush)

    def _call(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        thread, queue = self._running(), self._queue

        async def after_queue() -> R:
            if queue is not None:
                await queue.empty()
            return await work()

        return thread.call(after_queue)

    def _closing(self) -> Callable[[], Coroutine[Any, Any, None]]:
        client, queue = self._client, self._made_queue()

        async def close() -> None:
            queue.close()
            try:
                await queue.empty()
            finally:
                await client.close()

        return close

    def _exiting(self, error: BaseException | None) -> Callable[[], Coroutine[Any, Any, None]]:
        if error is None:
            return self._closing()
        client, queue = self._client, self._made_queue()
        limit_s = INTERRUPTED_EXIT_S if is_interruption(error) else None

        async def end() -> None:
            queue.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await queue.empty()
            if queue.count:
                error.add_note(f"{queue.count} records were not sent")
            await client.__aexit__(None, error, None)

        return end

    def _made_queue(self) -> SendQueue:
        if self._queue is None:
            self._queue = SendQueue(self._client, self._running())
        return self._queue
