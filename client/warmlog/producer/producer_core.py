"""What a producer has between `start` and `close`: its accumulator, its sender, and the topics that it learns."""

import asyncio
from collections.abc import Sequence

from warmlog.cluster.cluster import Cluster
from warmlog.cluster.options import DEFAULT_MAX_MESSAGE_BYTES, ConnectionOptions
from warmlog.errors import ClientClosed, WarmlogError, WrongEventLoop
from warmlog.producer.accumulator import Accumulator
from warmlog.producer.bulk_records import BulkRecords
from warmlog.producer.delivery import DeliveryFuture, RecordMetadataRanges
from warmlog.producer.options import ProducerOptions
from warmlog.producer.partition_queue import PartitionQueue
from warmlog.producer.producer_batch import ProducerBatch
from warmlog.producer.record_input import Headers, as_bytes, as_headers, as_timestamp
from warmlog.producer.sender import Sender
from warmlog.producer.topic_queues import TopicQueues
from warmlog_protocol.messages import DescribeConfigsRequest, DescribeConfigsResponse


class ProducerCore:
    """Everything behind a Producer that takes part in its tasks."""

    def __init__(
        self, bootstrap: str | Sequence[str], options: ProducerOptions, connection_options: ConnectionOptions
    ) -> None:
        self._options = options
        changed = asyncio.Event()
        self.cluster = Cluster(bootstrap, connection_options, changed.set)
        self.home = self.cluster.home
        self.sender = Sender(options, self.cluster, changed, self._settled, connection_options.request_timeout_ms)
        self.accumulator: Accumulator = self.sender.accumulator
        self._sending = asyncio.create_task(self.sender.run(), name="warmlog producer")
        self._learning: dict[str, asyncio.Task[None]] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._is_stopped = False

    def check_loop(self) -> None:
        """Raise WrongEventLoop where HomeLoop does, with the number of records that were lost with a closed loop."""
        try:
            self.home.check()
        except WrongEventLoop as error:
            if self.home.loop.is_closed() and (lost := self.accumulator.unacknowledged):
                raise WrongEventLoop(f"{error}; {lost} records were not acknowledged") from None
            raise

    @property
    def has_failed(self) -> bool:
        """Whether its sender has ended before `stop`."""
        return self.sender.has_ended and not self._is_stopped

    async def stop(self) -> None:
        """Give up what is not settled and end all tasks. May be called again, after it was cancelled for one."""
        self._is_stopped = True
        tasks = [self._sending, *self._learning.values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self.sender.fail_all(ClientClosed("the producer was closed before this was acknowledged"))
        await self.cluster.close()

    def add(
        self,
        topic: str,
        value: object,
        key: object,
        timestamp_ms: int | None,
        headers: Headers | None,
        partition: int | None,
    ) -> DeliveryFuture:
        """Any record, checked."""
        sent = self.accumulator.add(
            queues := self.accumulator.topic(topic),
            as_bytes("value", value),
            as_bytes("key", key),
            as_headers(headers),
            None if timestamp_ms is None else as_timestamp(timestamp_ms),
            partition,
        )
        if not queues.is_known:
            self._learn_soon(queues)
        return sent

    async def send_many(self, topic: str, records: BulkRecords, partition: int | None) -> RecordMetadataRanges:
        queues = self.accumulator.topic(topic)
        while not queues.is_known:
            await asyncio.shield(self._learn_soon(queues))
        limit_bytes = self.accumulator.batch_limit_bytes(queues)
        parts = [(partition, records)] if partition is not None else records.by_partition(len(queues.queues))
        batches: list[ProducerBatch] = []
        try:
            for own_partition, own_records in list(parts):
                for part, size_bytes in own_records.cut(limit_bytes, queues.max_message_bytes):
                    await self._wait_for_room()
                    batches.append(self._add_batch(queues, own_partition, part, size_bytes))
            for batch in batches:
                await batch.done()
        except BaseException:
            for batch in batches:
                self.accumulator.abandon(batch)
            raise
        return _place_all(topic, batches)

    def _add_batch(
        self, queues: TopicQueues, partition: int | None, part: BulkRecords, size_bytes: int
    ) -> ProducerBatch:
        queue: PartitionQueue = queues.choose(None, partition)
        batch = self.accumulator.new_batch(queue)
        batch.fill(part.values, part.keys, part.headers, part.timestamps_ms, size_bytes)
        self.accumulator.add_batch(queue, batch)
        batch.mark_all_awaited()
        if queue is queues.sticky:
            queues.sticky = None
        return batch

    async def drain(self) -> None:
        await self._wait_for_room(ends_on_failure=True)
        await self._let_callers_receive()
        self.accumulator.attention.is_needed = self.accumulator.buffered_bytes > self._options.high_water_bytes
        self._raise_unseen()

    async def flush(self) -> None:
        while self._learning:
            await asyncio.wait(list(self._learning.values()))
        self.accumulator.hurry_all()
        for batch in list(self.accumulator.unsettled):
            await batch.done()
        await self._let_callers_receive()
        self._raise_unseen()

    async def _wait_for_room(self, *, ends_on_failure: bool = False) -> None:
        """Let the event loop run once, and then until no more than the high-water mark is buffered."""
        await asyncio.sleep(0)
        while self.accumulator.buffered_bytes > self._options.high_water_bytes:
            if ends_on_failure and self.accumulator.failed:
                return
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def _settled(self) -> None:
        is_low = self.accumulator.buffered_bytes <= self._options.high_water_bytes // 2
        if self._waiters and (is_low or self.accumulator.failed):
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def _let_callers_receive(self) -> None:
        """Callers that await a record, and that its failure has just woken up, receive its error before any other."""
        if self.accumulator.failed:
            await asyncio.sleep(0)

    def _raise_unseen(self) -> None:
        if (error := self.accumulator.take_unseen_error()) is not None:
            raise error

    # --- topics -----------------------------------------------------------------------------------------------------

    def _learn_soon(self, queues: TopicQueues) -> "asyncio.Task[None]":
        """Find out the topic's partitions in the background. The task raises why that failed."""
        task = self._learning.get(queues.name)
        if task is None:
            task = asyncio.create_task(self._learn(queues), name=f"warmlog topic {queues.name}")
            self._learning[queues.name] = task
            task.add_done_callback(lambda done: self._learned(queues.name, done))
        return task

    def _learned(self, name: str, done: "asyncio.Task[None]") -> None:
        """Also of a task that was cancelled before it began. Its error has been told to those who wait for it."""
        self._learning.pop(name, None)
        if not done.cancelled():
            done.exception()

    async def _learn(self, queues: TopicQueues) -> None:
        timeout_ms = self._options.delivery_timeout_ms
        try:
            (topic,) = await self.cluster.topics([queues.name], timeout_ms=timeout_ms)
            max_message_bytes = await self._max_message_bytes(queues.name, timeout_ms)
            queues.learn(topic, max_message_bytes, is_idempotent=self._options.is_idempotent)
            self.accumulator.replay(queues)
        except WarmlogError as error:
            self.accumulator.refuse_waiting(queues, error)
            raise
        finally:
            self._learning.pop(queues.name, None)
            self._settled()

    async def _max_message_bytes(self, topic: str, timeout_ms: int) -> int:
        request = DescribeConfigsRequest([topic])
        response = await self.cluster.call(request, DescribeConfigsResponse, timeout_ms=timeout_ms)
        for resource in response.resources:
            for entry in resource.entries:
                if entry.name == "max.message.bytes":
                    return int(entry.value)
        return DEFAULT_MAX_MESSAGE_BYTES


def _place_all(topic: str, batches: list[ProducerBatch]) -> RecordMetadataRanges:
    """Where the records of settled batches lie; raises their first error, with the number of records lost in a note."""
    failed = [batch for batch in batches if batch.error is not None]
    if failed:
        error = failed[0].error
        assert error is not None
        lost, total = sum(batch.count for batch in failed), sum(batch.count for batch in batches)
        error.add_note(f"{lost} of {total} records of this send_many are concerned")
        raise error.with_traceback(None)
    return RecordMetadataRanges.of(topic, [(batch.partition, batch.base_offset, batch.count) for batch in batches])
