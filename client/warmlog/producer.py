"""The producer: `send` a record, or `send_many`, and know that what was acknowledged is on disk.

Errors of sends that nobody awaited are raised by the next `drain`, `flush` or `close`: the first one itself, with
each further one in a note on it (PEP 678). Each is raised once.
"""

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from warmlog.accumulator import Accumulator, Attention, TopicQueues
from warmlog.bulk import BulkRecords
from warmlog.cluster import Cluster
from warmlog.errors import ClientClosed, InvalidConfig, WarmlogError
from warmlog.options import ConnectionOptions, connection_options
from warmlog.outgoing import NS_PER_MS, OutgoingBatch, Sent
from warmlog.partition_queue import PartitionQueue
from warmlog.placed import PlacedMany
from warmlog.producer_options import ProducerOptions, parse_acks
from warmlog.record_input import RECORD_OVERHEAD_BYTES, Bytes, Headers, as_bytes, as_headers, as_timestamp
from warmlog.sender import Sender
from warmlog_protocol.compression import Codec
from warmlog_protocol.messages import ACKS_ALL, DescribeConfigsRequest, DescribeConfigsResponse

_time_ns = time.time_ns

DEFAULT_MAX_MESSAGE_BYTES = 1024 * 1024
"""Taken for a topic of which the broker does not tell `max.message.bytes`."""


class Producer:
    """Sends records to topics. For one thread; any number of its tasks may share a producer.

    With acks="all" (the default) a record is on the broker's disk when its `send` has been awaited and, as the producer
    is idempotent, it is there once and in the order of sending within its partition, however often it had to be sent.
    With acks=1 it has been written to the page cache, with acks=0 to the socket.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        acks: str | int = "all",
        idempotent: bool | None = None,
        compression: str = "none",
        linger_ms: float = 5,
        batch_bytes: int = 256 * 1024,
        buffer_bytes: int = 64 * 1024 * 1024,
        high_water_bytes: int | None = None,
        delivery_timeout_ms: int = 120_000,
        max_in_flight: int = 5,
        **connection: int | str,
    ) -> None:
        """`bootstrap` is HOST:PORT or several of them. Nothing is connected before `start`.

        `linger_ms` is how long a batch that is not full, and none of whose records is awaited, may wait for more.
        `drain` waits while more than `high_water_bytes` (default: 1/16 of `buffer_bytes`) are not acknowledged, and
        `send` raises BufferFull beyond `buffer_bytes`. A batch is given up `delivery_timeout_ms` after its first
        record. `connection` may set any of the fields of ConnectionOptions.
        """
        wire_acks = parse_acks(acks)
        is_idempotent = wire_acks == ACKS_ALL if idempotent is None else idempotent
        if is_idempotent and wire_acks != ACKS_ALL:
            raise InvalidConfig(f'idempotent=True needs acks="all", not acks={acks!r}')
        self._options = ProducerOptions(
            acks=wire_acks,
            is_idempotent=is_idempotent,
            codec=Codec.from_name(compression),
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            high_water_bytes=buffer_bytes // 16 if high_water_bytes is None else high_water_bytes,
            delivery_timeout_ms=delivery_timeout_ms,
            max_in_flight=max_in_flight,
        )
        self._connection_options: ConnectionOptions = connection_options(connection)
        self._bootstrap = bootstrap
        self._is_started = False
        self._running: _Running | None = None
        self._plain: dict[str, OutgoingBatch] = {}
        self._attention = Attention()

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Connect. BrokerUnavailable when no bootstrap address answers."""
        if self._is_started:
            raise ClientClosed("a producer can be started once")
        self._is_started = True
        running = _Running(self._bootstrap, self._options, self._connection_options)
        try:
            await running.cluster.start()
        except BaseException:
            await running.stop()
            raise
        self._running = running
        self._plain = running.accumulator.plain
        self._attention = running.accumulator.attention
        return self

    async def close(self) -> None:
        """Wait until all records are settled, disconnect, and raise the error of one that nobody awaited."""
        running = self._running
        if running is None:
            return
        try:
            await self.flush()
        finally:
            self._running, self._plain, self._attention = None, {}, Attention()
            await running.stop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.close()
        except WarmlogError as lost:
            error.add_note(f"and closing the producer: {lost}")

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Bytes | None,
        *,
        key: Bytes | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> Sent:
        """Take a record and return at once; await the result to know where it lies, or `drain` between many sends.

        Without `partition` a key chooses it (see `partitioner`); without `timestamp_ms` it is now. Raises BufferFull,
        MessageTooLarge (naming size and limit), TypeError for a `str`, and UnknownTopicOrPartition for a partition
        that does not exist; of a topic that does not exist, the awaited result or the next `drain` tells.
        """
        # The short way, for most records: a value that fits into what its batch may hold, in the same millisecond.
        batch = self._plain.get(topic)
        if (
            batch is not None
            and type(value) is bytes
            and key is None
            and timestamp_ms is None
            and headers is None
            and partition is None
        ):
            size_bytes = batch.size_bytes + len(value) + RECORD_OVERHEAD_BYTES
            if size_bytes <= batch.plain_limit_bytes and _time_ns() < batch.tick_end_ns:
                batch.size_bytes = size_bytes
                values = batch.values
                values.append(value)
                return Sent(batch, len(values) - 1)
        return self._open().add(topic, value, key, timestamp_ms, headers, partition)

    async def send_many(
        self,
        topic: str,
        values: Sequence[Bytes | None],
        *,
        keys: Sequence[Bytes | None] | None = None,
        timestamps_ms: int | Sequence[int] | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
    ) -> PlacedMany:
        """Send a list of records, and where they lie once all are acknowledged. The fastest way to produce.

        The other lists, where given, run parallel to `values`; one timestamp may stand for all. Records of one key,
        or without keys in a topic of one partition, keep their order. When a batch fails its error is raised after all
        are settled; the others are in the log. When cancelled, what is in batches already is still sent.
        """
        running = self._open()
        records = BulkRecords.check(values, keys, headers, timestamps_ms, time.time_ns() // NS_PER_MS)
        return await running.send_many(topic, records, partition)

    async def drain(self) -> None:
        """Wait while too much is not acknowledged, and let full batches go out. Call it between sends.

        Raises the error of earlier sends that nobody awaited.
        """
        if self._attention.is_needed:
            await self._open().drain()

    async def flush(self) -> None:
        """Send everything now and wait until all of it is settled. Raises the error of sends that nobody awaited."""
        await self._open().flush()

    def _open(self) -> "_Running":
        if self._running is None:
            raise ClientClosed("the producer is closed" if self._is_started else "the producer is not started")
        if self._running.has_failed:
            raise ClientClosed("the producer has failed; the log says why")
        return self._running


class _Running:
    """What a producer has between `start` and `close`."""

    def __init__(
        self, bootstrap: str | Sequence[str], options: ProducerOptions, connection_options: ConnectionOptions
    ) -> None:
        self._options = options
        changed = asyncio.Event()
        self.cluster = Cluster(bootstrap, connection_options, changed.set)
        self.sender = Sender(options, self.cluster, changed, self._settled, connection_options.request_timeout_ms)
        self.accumulator: Accumulator = self.sender.accumulator
        self._sending = asyncio.create_task(self.sender.run(), name="warmlog producer")
        self._learning: dict[str, asyncio.Task[None]] = {}
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def has_failed(self) -> bool:
        return self._sending.done()

    async def stop(self) -> None:
        """Give up what is not settled and end all tasks."""
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
    ) -> Sent:
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

    async def send_many(self, topic: str, records: BulkRecords, partition: int | None) -> PlacedMany:
        queues = self.accumulator.topic(topic)
        while not queues.is_known:
            await asyncio.shield(self._learn_soon(queues))
        limit_bytes = self.accumulator.batch_limit_bytes(queues)
        parts = [(partition, records)] if partition is not None else records.by_partition(len(queues.queues))
        batches: list[OutgoingBatch] = []
        for own_partition, own_records in list(parts):
            for part, size_bytes in own_records.cut(limit_bytes, queues.max_message_bytes):
                await self._wait_for_room()
                batches.append(self._add_batch(queues, own_partition, part, size_bytes))
        try:
            return await _place_all(topic, batches)
        except asyncio.CancelledError:
            for batch in batches:
                batch.mark_not_awaited()
            raise

    def _add_batch(
        self, queues: TopicQueues, partition: int | None, part: BulkRecords, size_bytes: int
    ) -> OutgoingBatch:
        queue: PartitionQueue = queues.choose(None, partition)
        batch = self.accumulator.new_batch(queue)
        batch.fill(part.values, part.keys, part.headers, part.timestamps_ms, size_bytes)
        self.accumulator.add_batch(queue, batch)
        batch.mark_all_awaited()
        if queue is queues.sticky:
            queues.sticky = None
        return batch

    async def drain(self) -> None:
        self.accumulator.attention.is_needed = False
        await self._wait_for_room(ends_on_failure=True)
        self._raise_unseen()

    async def flush(self) -> None:
        while self._learning:
            await asyncio.wait(list(self._learning.values()))
        self.accumulator.hurry_all()
        for batch in list(self.accumulator.unsettled):
            await batch.done()
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

    def _raise_unseen(self) -> None:
        if self.accumulator.failed and (error := self.accumulator.take_unseen_error()) is not None:
            raise error

    # --- topics -----------------------------------------------------------------------------------------------------

    def _learn_soon(self, queues: TopicQueues) -> "asyncio.Task[None]":
        """Find out the topic's partitions in the background. The task raises why that failed."""
        task = self._learning.get(queues.name)
        if task is None:
            task = asyncio.create_task(self._learn(queues), name=f"warmlog topic {queues.name}")
            self._learning[queues.name] = task
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

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
            del self._learning[queues.name]
            self._settled()

    async def _max_message_bytes(self, topic: str, timeout_ms: int) -> int:
        request = DescribeConfigsRequest([topic])
        response = await self.cluster.call(request, DescribeConfigsResponse, timeout_ms=timeout_ms)
        for resource in response.resources:
            for entry in resource.entries:
                if entry.name == "max.message.bytes":
                    return int(entry.value)
        return DEFAULT_MAX_MESSAGE_BYTES


async def _place_all(topic: str, batches: list[OutgoingBatch]) -> PlacedMany:
    """Wait for all batches; raise the first error among them, with the number of records that failed in a note."""
    for batch in batches:
        await batch.done()
    failed = [batch for batch in batches if batch.error is not None]
    if failed:
        error = failed[0].error
        assert error is not None
        lost, total = sum(batch.count for batch in failed), sum(batch.count for batch in batches)
        error.add_note(f"{lost} of {total} records of this send_many are concerned")
        raise error.with_traceback(None)
    return PlacedMany.of(topic, [(batch.partition, batch.base_offset, batch.count) for batch in batches])
