"""What a producer has between `start` and `close`: its accumulator, its sender, and the topics that it learns."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from threading import get_ident

from warmlog.errors import ClientClosed, ClientError, MessageTooLarge, WarmlogError, WrongEventLoop
from warmlog.producer.accumulator import Accumulator
from warmlog.producer.bulk_records import BulkRecords
from warmlog.producer.delivery import RecordMetadataRanges
from warmlog.producer.options import ProducerOptions
from warmlog.producer.partition_queue import TopicQueues
from warmlog.producer.producer_batch import ProducerBatch, encode_records
from warmlog.producer.record_input import BATCH_OVERHEAD_BYTES, chosen_partition
from warmlog.producer.sender import Sender
from warmlog.producer.transaction import TransactionalId
from warmlog_protocol.messages import DescribeConfigsRequest, DescribeConfigsResponse
from warmlog_transport.cluster import Cluster
from warmlog_transport.connection import cancel
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.responses import max_age_ms, max_message_bytes, segment_bytes

_log = logging.getLogger("warmlog")

SEND_FROM_A_THREAD = (
    "loop.call_soon_threadsafe(producer.send, topic, value), or for the metadata asyncio.run_coroutine_threadsafe of a "
    "coroutine that awaits send; or use warmlog.blocking.Producer"
)


class ProducerCore:
    """The running part of a Producer."""

    def __init__(
        self, bootstrap: str | Sequence[str], options: ProducerOptions, connection_options: ConnectionOptions
    ) -> None:
        self._options = options
        self._changed = changed = asyncio.Event()
        self.cluster = Cluster(bootstrap, connection_options, changed.set)
        self.home = self.cluster.home
        self.accumulator = Accumulator(
            options,
            changed.set,
            self.home.loop.time,
            check_loop=self.home.check,
            on_unknown_topic=self._learn_soon,
            on_release=self._wake_waiters,
            throttled_s=self.cluster.throttled_s,
        )
        self.sender = Sender(options, self.cluster, self.accumulator, changed, self._learn_all_again)
        self._sending = asyncio.create_task(self.sender.run(), name="warmlog producer")
        self._learning: dict[str, asyncio.Task[None]] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self.transactions: TransactionalId | None = None

    def check_send(self) -> None:
        """Raise WrongEventLoop if `send` was called in another thread, or the loop is closed."""
        if get_ident() != self.home.thread_id or self.home.loop.is_closed():
            self.check_loop(SEND_FROM_A_THREAD)

    def open_transaction(self) -> int:
        """Return the number of the open transaction, 0 without a transactional id; ClientError if none is open."""
        if self.transactions is None:
            return 0
        if not self.transactions.takes_records:
            raise ClientError("this producer has a transactional_id: send within `async with producer.transaction():`")
        return self.transactions.count

    def check_loop(self, *instead: str) -> None:
        """Raise WrongEventLoop if HomeLoop does, with the number of records that were lost with a closed loop."""
        try:
            self.home.check(*instead)
        except WrongEventLoop as error:
            if self.home.loop.is_closed() and (lost := self.accumulator.unacknowledged):
                raise WrongEventLoop(f"{error}; {lost} records were not acknowledged") from None
            raise

    @property
    def has_failed(self) -> bool:
        """Whether its sender has ended before `stop`."""
        return self.sender.has_ended and not self.sender.is_stopping

    async def stop(self) -> None:
        """Give up what is not acknowledged, end all tasks and disconnect. May be called again."""
        self.sender.is_stopping = True
        if self.transactions is not None:
            self.transactions.stop()
        await cancel(self._sending, *self._learning.values())
        self.sender.fail_all(ClientClosed("the producer was closed before this was acknowledged"))
        self._wake_waiters()
        await self.cluster.close()

    async def send_many(
        self, topic: str, records: BulkRecords, partition: int | None, *, transaction: int, have_own_times: bool
    ) -> RecordMetadataRanges:
        """As `Producer.send_many`, in the transaction of this number. ClientError if that ends before all are taken."""
        queues = await self.known(topic)
        if partition is not None and partition >= len(queues.queues):  # it may have been added
            await self._learn_now(queues)
        times_ms = records.timestamps_ms
        if have_own_times and records.values:
            self.accumulator.check_age(queues, times_ms if isinstance(times_ms, int) else min(times_ms))
        limit_bytes = self.accumulator.batch_limit_bytes(queues)
        parts = self._parts(records, partition, len(queues.queues))
        batches: list[ProducerBatch] = []
        try:
            for own_partition, own_records in parts:
                for part, content_bytes in own_records.cut(limit_bytes, queues.max_message_bytes):
                    await self.wait_for_room()
                    if self.open_transaction() != transaction:
                        raise ClientError("the transaction has ended while these records were sent: await them in it")
                    queue = queues.choose(None, own_partition)
                    rows = partial(encode_records, part.values, part.keys, part.headers, part.timestamps_ms)
                    size_bytes = content_bytes + BATCH_OVERHEAD_BYTES
                    batches.append(self.accumulator.add_batch(queue, rows, len(part.values), size_bytes))
                    batches[-1].is_all_awaited = True
                    if queue is queues.sticky:
                        queues.sticky = None
            for batch in batches:
                await batch.done()
        except BaseException as error:
            for batch in batches:
                self.accumulator.abandon(batch)
            if isinstance(error, MessageTooLarge):
                self._learn_soon(queues)  # it may allow more by now
            raise
        return _metadata_of(topic, batches)

    def _parts(
        self, records: BulkRecords, partition: int | None, partitions: int
    ) -> list[tuple[int | None, BulkRecords]]:
        """The records of each partition; those for the sticky partition under None."""
        if partition is not None:
            return [(partition, records)]
        if self._options.partitioner is None:
            return list(records.by_partition(partitions))
        indices: dict[int, list[int]] = {}
        for index, key in enumerate(records.keys or [None] * len(records.values)):
            chosen = chosen_partition(self._options.partitioner, key, partitions)
            indices.setdefault(chosen, []).append(index)
        return [(chosen, records.take(own)) for chosen, own in indices.items()]

    async def make_room(self) -> None:
        """Wait as `drain`, and leave errors to those who ask for them."""
        await self.wait_for_room()
        self.accumulator.drain_flag.is_set = self.accumulator.buffered_bytes > self._options.high_water_bytes

    async def drain(self) -> None:
        await self.wait_for_room(ends_on_failure=True)
        await self._let_callers_receive()
        self.accumulator.drain_flag.is_set = self.accumulator.buffered_bytes > self._options.high_water_bytes
        self.raise_unseen()

    async def finish(self, timeout_s: float | None) -> None:
        """Flush. If that is cancelled or takes too long, say how many records of which topics are lost."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.flush()
        except TimeoutError:
            if lost := self.accumulator.describe_pending():
                _log.warning("the time for closing the producer was over: %s", lost)
                raise ClientClosed(lost) from None
        except asyncio.CancelledError as cancelled:
            if lost := self.accumulator.describe_pending():
                _log.warning("closing the producer was cancelled: %s", lost)
                cancelled.add_note(f"closing the producer was cancelled: {lost}")
            raise

    async def flush(self) -> None:
        await self.send_all()
        await self._let_callers_receive()
        self.raise_unseen()

    async def send_all(self) -> None:
        """Wait until all that is buffered now is acknowledged or has failed."""
        while self._learning:
            await asyncio.wait(list(self._learning.values()))
        self.accumulator.mark_all_due()
        for batch in list(self.accumulator.incomplete):
            await batch.done()

    async def wait_for_room(self, *, ends_on_failure: bool = False) -> None:
        """Let the event loop run once, and then until no more than the high-water mark is buffered."""
        await asyncio.sleep(0)
        self._check_sender()
        while self.accumulator.buffered_bytes > self._options.high_water_bytes:
            if ends_on_failure and self.accumulator.failed:
                return
            self.accumulator.mark_all_due()  # their memory is needed sooner than their linger ends
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
            self._check_sender()

    def _check_sender(self) -> None:
        """Raise ClientClosed if nothing more is sent: what is buffered from now on would never be done."""
        if self.sender.is_stopping or self.sender.has_ended:
            raise ClientClosed("the producer was closed before this was sent")

    def _wake_waiters(self) -> None:
        is_low = self.accumulator.buffered_bytes <= self._options.high_water_bytes // 2
        if self._waiters and (is_low or self.accumulator.failed or self.sender.is_stopping):
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def _let_callers_receive(self) -> None:
        """Let callers run that await a record and that its failure has just woken: they receive its error first."""
        if self.accumulator.failed:
            await asyncio.sleep(0)

    def raise_unseen(self) -> None:
        """Raise the error of a record that no caller has received, if there is one."""
        if (error := self.accumulator.take_unseen_error()) is not None:
            raise error

    # --- topics -----------------------------------------------------------------------------------------------------

    def _learn_soon(self, queues: TopicQueues) -> "asyncio.Task[None]":
        """Request the topic's partitions in the background. The task raises the error of that."""
        task = self._learning.get(queues.name)
        if task is None:
            task = asyncio.create_task(self._learn(queues), name=f"warmlog topic {queues.name}")
            self._learning[queues.name] = task
            task.add_done_callback(lambda done: self._learned(queues.name, done))
        return task

    async def known(self, topic: str) -> TopicQueues:
        """Return the queues of the topic once its partitions are known. Raises the error of requesting them."""
        queues = self.accumulator.topics[topic]
        while not queues.is_known:
            await self._learn_now(queues)
        return queues

    async def _learn_now(self, queues: TopicQueues) -> None:
        """Wait until the topic's partitions are requested, and raise the error of that."""
        self._check_sender()
        task = self._learn_soon(queues)
        await asyncio.wait([task])  # which does not cancel it
        if task.cancelled():
            self._check_sender()
        task.result()

    def _learned(self, name: str, done: "asyncio.Task[None]") -> None:
        """Forget the task, also one that was cancelled before it began; its error was delivered to those who wait."""
        if self._learning.get(name) is done:
            del self._learning[name]
        self._changed.set()
        if not done.cancelled():
            done.exception()

    def _learn_all_again(self) -> None:
        """Find new partitions and changed limits of the known topics."""
        for queues in self.accumulator.topics.values():
            if queues.is_known:
                self._learn_soon(queues)

    async def _learn(self, queues: TopicQueues) -> None:
        timeout_ms = self._options.delivery_timeout_ms
        request = DescribeConfigsRequest([queues.name])
        try:
            (topic,) = await self.cluster.topics([queues.name], timeout_ms=timeout_ms)
            configs = await self.cluster.call(request, DescribeConfigsResponse, timeout_ms=timeout_ms)
            if not queues.is_known or len(topic.partitions) >= len(queues.queues):  # fewer: the topic is another
                queues.learn(
                    topic,
                    max_message_bytes(configs),
                    is_idempotent=self._options.is_idempotent,
                    is_transactional=self._options.transactional_id is not None,
                    max_age_ms=None if self._options.expired == "accept" else max_age_ms(configs),
                    segment_bytes=segment_bytes(configs),
                )
            self.accumulator.replay(queues)
        except Exception as error:
            if not isinstance(error, WarmlogError):  # a bug: what waits must end all the same
                error = ClientError(f"{queues.name}: {error!r}")
            self.accumulator.refuse_waiting(queues, error)
            raise
        finally:
            self._learning.pop(queues.name, None)
            self._wake_waiters()


def _metadata_of(topic: str, batches: list[ProducerBatch]) -> RecordMetadataRanges:
    """The metadata of finished batches; raises their first error, with the number of lost records in a note."""
    failed = [batch for batch in batches if batch.error is not None]
    if failed:
        error = failed[0].error
        assert error is not None
        lost, total = sum(batch.count for batch in failed), sum(batch.count for batch in batches)
        error.add_note(f"{lost} of {total} records of this send_many are concerned")
        raise error.with_traceback(None)
    return RecordMetadataRanges.of(topic, [(batch.partition, batch.base_offset, batch.count) for batch in batches])
