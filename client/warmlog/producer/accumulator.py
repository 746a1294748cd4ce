"""Records become batches here: which partition, which batch, when it is due, and how much may wait in all.

A batch is closed when the next record would make it larger than `batch_bytes`, and sent as soon as fewer than
`max_in_flight` of its partition are on their way. One that is not full becomes due `linger_ms` after its first record,
or at once when somebody awaits one of its records or flushes; it goes on taking records until it is really sent.

Memory is granted in pieces of GRANT_BYTES, so that the bound on all holds although most records only look at their own
batch. What a batch holds is given back when it is acknowledged or given up. Nothing here waits; `wake` tells the
sender.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from warmlog.errors import BufferFull, MessageTooLarge, WarmlogError
from warmlog.producer.delivery import DeliveryFuture, FailedRecord, UnassignedRecord
from warmlog.producer.options import ProducerOptions
from warmlog.producer.partition_queue import PartitionQueue
from warmlog.producer.partitioner import partition_of_key
from warmlog.producer.producer_batch import NS_PER_MS, ProducerBatch
from warmlog.producer.record_input import (
    BATCH_OVERHEAD_BYTES,
    MAX_TIMESTAMP_MS,
    RECORD_OVERHEAD_BYTES,
    Header,
    content_bytes,
)
from warmlog.producer.topic_queues import TopicQueues, WaitingRecord

GRANT_BYTES = 16 * 1024
GRANTS_BELOW_HIGH_WATER = 16
"""What is granted and not used must not make `drain` wait: pieces are at most this part of the high-water mark."""


class Attention:
    """Whether the next `drain` must look closer: something is lined up, has failed, or nothing is running."""

    __slots__ = ("is_needed",)

    def __init__(self, *, is_needed: bool = True) -> None:
        self.is_needed = is_needed


class Accumulator:
    """Every batch of a producer that is not settled.

    `plain` has for each topic the open batch that the next record without key, headers, partition and timestamp goes
    to. `failed` are those whose error some caller has still to receive, in the order of failing.
    """

    def __init__(
        self,
        options: ProducerOptions,
        wake: Callable[[], None],
        now: Callable[[], float],
        new_waiter: Callable[[], "asyncio.Future[None]"] = asyncio.Future,
    ) -> None:
        """`new_waiter` makes what a caller awaits until its record is settled; WrongEventLoop where it cannot wait."""
        self.plain: dict[str, ProducerBatch] = {}
        self.attention = Attention(is_needed=False)
        self.topics: dict[str, TopicQueues] = {}
        self.ready: dict[PartitionQueue, None] = {}
        self.unsettled: dict[ProducerBatch, PartitionQueue] = {}
        self.failed: dict[ProducerBatch | FailedRecord, None] = {}
        self.buffered_bytes = 0
        self._options = options
        self._grant_bytes = min(GRANT_BYTES, max(1, options.high_water_bytes // GRANTS_BELOW_HIGH_WATER))
        self._wake = wake
        self._now = now
        self._new_waiter = new_waiter
        self._is_replaying = False
        self._lingering: deque[tuple[float, ProducerBatch]] = deque()

    def topic(self, name: str) -> TopicQueues:
        """The queues of a topic, which may not be known yet."""
        queues = self.topics.get(name)
        if queues is None:
            queues = self.topics[name] = TopicQueues(name)
        return queues

    # --- taking records in ------------------------------------------------------------------------------------------

    def add(
        self,
        topic: TopicQueues,
        value: bytes | None,
        key: bytes | None,
        headers: list[Header] | None,
        timestamp_ms: int | None,
        partition: int | None,
    ) -> DeliveryFuture:
        """Put one checked record into a batch. Raises BufferFull, MessageTooLarge, UnknownTopicOrPartition."""
        size_bytes = content_bytes(value, key, headers) + RECORD_OVERHEAD_BYTES
        now_ns = time.time_ns()
        time_ms = now_ns // NS_PER_MS if timestamp_ms is None else timestamp_ms
        if not topic.is_known:
            undecided = UnassignedRecord(self._new_waiter)
            return self._let_wait(topic, WaitingRecord(value, key, headers, time_ms, partition, size_bytes, undecided))
        batch = self._batch_for(topic, key, partition, size_bytes)
        sent = batch.append(value, key, headers, time_ms, size_bytes)
        if timestamp_ms is None:
            batch.let_plain_in(now_ns)
        return sent

    def add_keyed(self, name: str, value: bytes, key: bytes, timestamp_ms: int | None) -> DeliveryFuture | None:
        """The short way for a value with a key, into a batch that has keys already; None when it is not open.

        It ends with the millisecond, as that of values alone does.
        """
        topic = self.topics.get(name)
        if topic is None or not topic.queues:
            return None
        batch = topic.queues[partition_of_key(key, len(topic.queues))].open
        if batch is None or batch.keys is None or batch.headers is not None:
            return None
        size_bytes = batch.size_bytes + len(value) + len(key) + RECORD_OVERHEAD_BYTES
        if size_bytes > batch.granted_bytes:
            return None
        index = len(batch.values)
        if timestamp_ms is None:
            if time.time_ns() >= batch.tick_end_ns:
                return None
        elif type(timestamp_ms) is int and 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
            batch.stamp(index, timestamp_ms)
        else:
            return None
        batch.size_bytes = size_bytes
        batch.values.append(value)
        batch.keys.append(key)
        return DeliveryFuture(batch, index)

    def add_batch(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Put a batch that was filled at once behind what its partition has. The caller looks after the memory."""
        if queue.open is not None:
            self._close(queue, queue.open)
        batch.close()
        batch.granted_bytes = batch.size_bytes
        self.buffered_bytes += batch.size_bytes
        self.unsettled[batch] = queue
        self._line_up(queue, batch)

    def new_batch(self, queue: PartitionQueue) -> ProducerBatch:
        """An empty batch for a partition, not yet in its queue."""
        return ProducerBatch(queue.topic, queue.partition, self._now(), self._awaited, self._told)

    def batch_limit_bytes(self, topic: TopicQueues) -> int:
        """How large a batch of several records may become."""
        return min(self._options.batch_bytes, topic.max_message_bytes)

    def _batch_for(
        self, topic: TopicQueues, key: bytes | None, partition: int | None, size_bytes: int
    ) -> ProducerBatch:
        """The open batch that takes a record of this size, granted the memory for it."""
        if size_bytes + BATCH_OVERHEAD_BYTES > topic.max_message_bytes:
            raise MessageTooLarge(
                f"a record of {size_bytes} bytes for topic {topic.name!r}: with its batch it is larger than "
                f"max.message.bytes={topic.max_message_bytes}"
            )
        queue = topic.choose(key, partition)
        batch = queue.open
        if batch is not None and batch.size_bytes + size_bytes > self.batch_limit_bytes(topic):
            self._close(queue, batch)
            queue = topic.choose(key, partition)
            batch = queue.open
        if batch is None:
            batch = self.new_batch(queue)
            self._grant(batch, batch.size_bytes + size_bytes)
            self._open(topic, queue, batch)
        elif batch.size_bytes + size_bytes > batch.granted_bytes:
            self._grant(batch, batch.size_bytes + size_bytes)
        return batch

    def _open(self, topic: TopicQueues, queue: PartitionQueue, batch: ProducerBatch) -> None:
        queue.open = batch
        self.unsettled[batch] = queue
        if topic.sticky is queue:
            self.plain[topic.name] = batch
        self._lingering.append((batch.created_at + self._options.linger_ms / 1000, batch))
        self._wake()

    def _close(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Let no more records into the open batch and line it up."""
        assert batch is queue.open
        queue.open = None
        topic = self.topics[queue.topic]
        if topic.sticky is queue:
            topic.sticky = None
        if self.plain.get(queue.topic) is batch:
            del self.plain[queue.topic]
        self.buffered_bytes -= batch.granted_bytes - batch.size_bytes
        batch.granted_bytes = batch.size_bytes
        batch.close()
        self._line_up(queue, batch)

    def _line_up(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        queue.closed.append(batch)
        self.ready[queue] = None
        self.attention.is_needed = True
        self._wake()

    # --- memory -----------------------------------------------------------------------------------------------------

    def _grant(self, batch: ProducerBatch, size_bytes: int) -> None:
        """Let `batch` grow to `size_bytes`, and to a whole piece where there is room; BufferFull otherwise."""
        free = self._options.buffer_bytes - self.buffered_bytes
        needed = size_bytes - batch.granted_bytes
        if needed > free and not self._is_replaying:
            raise self._buffer_full()
        limit = max(size_bytes, min(self._options.batch_bytes, self.topics[batch.topic].max_message_bytes))
        granted = max(needed, min(self._grant_bytes, free, limit - batch.granted_bytes))
        batch.granted_bytes += granted
        self.buffered_bytes += granted

    def _let_wait(self, topic: TopicQueues, record: WaitingRecord) -> DeliveryFuture:
        if record.size_bytes > self._options.buffer_bytes - self.buffered_bytes:
            raise self._buffer_full()
        self.buffered_bytes += record.size_bytes
        self.attention.is_needed = True
        topic.waiting.append(record)
        return record.sent

    def _buffer_full(self) -> BufferFull:
        return BufferFull(
            f"{self.buffered_bytes} of buffer_bytes={self._options.buffer_bytes} wait to be acknowledged: "
            f"await drain() between sends"
        )

    # --- when topics become known -----------------------------------------------------------------------------------

    def replay(self, topic: TopicQueues) -> None:
        """Put the records that waited for the topic's partitions where they belong."""
        waiting, topic.waiting = topic.waiting, []
        self._is_replaying = True  # they have been accepted: what their batches add must not be too much now
        for record in waiting:
            self.buffered_bytes -= record.size_bytes
            try:
                placed = self.add(
                    topic, record.value, record.key, record.headers, record.timestamp_ms, record.partition
                )
            except WarmlogError as error:
                self._refuse(record, error)
            else:
                record.decide(placed)
        self._is_replaying = False

    def refuse_waiting(self, topic: TopicQueues, error: WarmlogError) -> None:
        """The topic's partitions cannot be had: fail the records that waited for them."""
        waiting, topic.waiting = topic.waiting, []
        for record in waiting:
            self.buffered_bytes -= record.size_bytes
            self._refuse(record, error)

    def _refuse(self, record: WaitingRecord, error: WarmlogError) -> None:
        refused = FailedRecord(error, self._told)
        self._note_failure(refused)
        record.decide(DeliveryFuture(refused, 0))

    # --- what is due, and what is settled ---------------------------------------------------------------------------

    def _awaited(self, batch: ProducerBatch) -> "asyncio.Future[None]":
        """What the caller waits for that wants to know the end of `batch`, which is due now."""
        waiter = self._new_waiter()
        self.hurry(batch)
        return waiter

    def hurry(self, batch: ProducerBatch) -> None:
        """`batch` is due now, as a caller waits for it or its linger is over."""
        queue = self.unsettled.get(batch)
        if queue is not None and batch is queue.open and not batch.is_due:
            batch.is_due = True
            self.ready[queue] = None
            self._wake()

    def hurry_all(self) -> None:
        """Every open batch is due now."""
        for batch in self.unsettled:
            self.hurry(batch)

    def next_due_at(self) -> float | None:
        """When the next open batch becomes due by its linger."""
        while self._lingering and (self._lingering[0][1].is_due or self._lingering[0][1].count):
            self._lingering.popleft()
        return self._lingering[0][0] if self._lingering else None

    def make_due(self, now: float) -> None:
        """Mark the open batches whose linger is over."""
        while (due_at := self.next_due_at()) is not None and due_at <= now:
            self.hurry(self._lingering.popleft()[1])

    def take(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """`batch` goes to the sender now: no more records into it."""
        if batch is queue.open:
            self._close(queue, batch)

    def settle(self, batch: ProducerBatch) -> None:
        """`batch` is acknowledged or has failed: give back its memory."""
        del self.unsettled[batch]
        self.buffered_bytes -= batch.granted_bytes
        if batch.is_error_unseen:
            self._note_failure(batch)

    def abandon(self, batch: ProducerBatch) -> None:
        """The caller that awaited all of `batch` waits no longer: its error, if there is or will be one, is unseen."""
        batch.mark_not_awaited()
        if batch.is_error_unseen:
            self._note_failure(batch)

    def _note_failure(self, failed: ProducerBatch | FailedRecord) -> None:
        self.failed[failed] = None
        self.attention.is_needed = True

    def _told(self, failed: ProducerBatch | FailedRecord) -> None:
        self.failed.pop(failed, None)

    def expired(self, now: float) -> Sequence[ProducerBatch]:
        """The batches that are older than the delivery timeout."""
        oldest = now - self._options.delivery_timeout_ms / 1000
        found = []
        for batch in self.unsettled:
            if batch.created_at > oldest:
                break
            found.append(batch)
        return found

    def next_expiry_at(self) -> float | None:
        """When the oldest batch will have waited too long."""
        for batch in self.unsettled:
            return batch.created_at + self._options.delivery_timeout_ms / 1000
        return None

    @property
    def unacknowledged(self) -> int:
        """How many records are not settled, or have failed unseen."""
        waiting = sum(len(topic.waiting) for topic in self.topics.values())
        unsettled = sum(batch.count or len(batch.values) for batch in self.unsettled)
        return waiting + unsettled + sum(failed.count for failed in self.failed)

    def take_unseen_error(self) -> WarmlogError | None:
        """The first error that no caller has received, once; further ones are told in notes on it."""
        unseen, self.failed = list(self.failed), {}
        if not unseen:
            return None
        error = unseen[0].error
        assert error is not None
        for other in unseen[1:]:
            if other.error is not error:
                error.add_note(f"and {other.count} more: {other.error}")
        return error.with_traceback(None)
