"""Puts records into batches: chooses partition and batch, decides when a batch is due, and bounds the memory.

A batch is closed when the next record would make it larger than `batch_bytes`, and sent as soon as fewer than
`max_in_flight` of its partition are in flight. One that is not full becomes due `linger_ms` after its first record, or
at once when a caller awaits one of its records or flushes. It accepts records until it is really sent.

Memory is granted in pieces that grow with the batch, up to GRANT_BYTES: so the total is bounded although most records
are only checked against their own batch, and small batches of many partitions hold little that they do not use. A batch
returns its memory when it is acknowledged or given up. Nothing here waits; `wake` makes the sender look.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable

from warmlog.errors import BufferFull, ClientError, MessageTooLarge, RecordExpired, WarmlogError
from warmlog.points import checked_topic
from warmlog.producer.delivery import DeliveryFuture, FailedRecord, WaitingRecord
from warmlog.producer.options import ProducerOptions
from warmlog.producer.partition_queue import PartitionQueue, TopicQueues
from warmlog.producer.producer_batch import NO_BATCH, NS_PER_MS, Encode, ProducerBatch
from warmlog.producer.record_input import (
    BATCH_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    AgeCheck,
    Headers,
    as_bytes,
    as_headers,
    as_partition,
    as_timestamp,
    chosen_partition,
    content_bytes,
)

GRANT_BYTES = 16 * 1024
NOTED = 10
"""Of how many further failures an error has the texts: each record that is refused has an error of its own."""


class DrainFlag:
    """Whether the next `drain` must look closer.

    A batch was closed or has failed, half of the memory is taken or a record found none, or no producer is running.
    """

    __slots__ = ("is_set",)

    def __init__(self, *, is_set: bool = True) -> None:
        self.is_set = is_set


class _Topics(dict[str, TopicQueues]):
    """The queues of each topic, created on first use."""

    def __missing__(self, name: str) -> TopicQueues:
        queues = self[checked_topic(name)] = TopicQueues(name)
        return queues


class Accumulator:
    """Every batch of a producer that is not acknowledged.

    `incomplete` are the batches that are neither acknowledged nor given up, oldest first. `failed` are the batches and
    records whose error no caller has received yet, in the order of failing.
    """

    def __init__(
        self,
        options: ProducerOptions,
        wake: Callable[[], None],
        now: Callable[[], float],
        *,
        check_loop: Callable[[], None] = lambda: None,
        on_unknown_topic: Callable[[TopicQueues], object] = lambda _: None,
        on_release: Callable[[], None] = lambda: None,
        throttled_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`check_loop` raises WrongEventLoop if a caller must not wait here; `on_release` is called for freed memory.

        `on_unknown_topic` is called for each record of a topic that is not known yet, or that is too large for what is
        known of it. `throttled_s` returns for how long quotas have delayed the producer: no batch expires for that.
        """
        self.drain_flag = DrainFlag(is_set=False)
        self.topics = _Topics()
        self.ready: dict[PartitionQueue, None] = {}
        self.incomplete: dict[ProducerBatch, PartitionQueue] = {}
        self.failed: dict[ProducerBatch | FailedRecord, None] = {}
        self.buffered_bytes = 0
        self.first_error: WarmlogError | None = None
        """Of the batches and records that were given up; a transaction resets it."""
        self._options = options
        self._wake = wake
        self._now = now
        self._check_loop = check_loop
        self._on_unknown_topic = on_unknown_topic
        self._on_release = on_release
        self._throttled_s = throttled_s
        self._is_replaying = False
        self._age_check = AgeCheck(options.expired)
        self._lingering: deque[tuple[float, ProducerBatch]] = deque()
        """The open batches that are not due, and some that were closed, with the end of their linger."""
        self.next_look_at = math.inf
        """When to call `look` at the latest: a linger or a delivery timeout may be over then."""

    # --- adding records ---------------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        value: object,
        key: object,
        headers: Headers | None,
        timestamp_ms: int | None,
        partition: int | None,
    ) -> DeliveryFuture:
        """Check one record and put it into a batch.

        Raises BufferFull, MessageTooLarge, RecordExpired, PartitionerFailed and UnknownTopicOrPartition.
        """
        value, key = as_bytes("value", value), as_bytes("key", key)
        pairs = as_headers(headers)
        if timestamp_ms is not None:
            as_timestamp(timestamp_ms)
        as_partition(partition)
        size_bytes = content_bytes(value, key, pairs) + RECORD_OVERHEAD_BYTES
        topic = self.topics[name]
        if topic.is_known:
            if timestamp_ms is not None and not self._is_replaying:
                self.check_age(topic, timestamp_ms)
            if partition is None and self._options.partitioner is not None:
                partition = chosen_partition(self._options.partitioner, key, len(topic.queues))
            batch = self._batch_for(topic, key, partition, size_bytes)
            if timestamp_ms is None:
                batch.tick(time.time_ns())
            else:
                batch.stamp(timestamp_ms)
            return batch.append(value, key, pairs, size_bytes)
        if size_bytes > self._options.buffer_bytes - self.buffered_bytes:
            raise self._buffer_full()
        self.buffered_bytes += size_bytes
        self.drain_flag.is_set = True
        time_ms = time.time_ns() // NS_PER_MS if timestamp_ms is None else timestamp_ms
        has_own_time = timestamp_ms is not None
        record = WaitingRecord(
            value, key, pairs, time_ms, partition, size_bytes, self._check_loop, has_own_time=has_own_time
        )
        topic.waiting.append(record)
        self._on_unknown_topic(topic)
        return record.future

    def add_batch(self, queue: PartitionQueue, encode: Encode, count: int, size_bytes: int) -> ProducerBatch:
        """Queue a batch of these records after those that its partition has. The caller waits for the memory."""
        if queue.open is not None:
            self.close_batch(queue, queue.open)
        batch = self._new_batch(queue)
        batch.fill(encode, count, size_bytes)
        batch.granted_bytes = batch.size_bytes
        self.buffered_bytes += batch.size_bytes
        self.incomplete[batch] = queue
        self._line_up(queue, batch)
        return batch

    def check_age(self, topic: TopicQueues, oldest_ms: int) -> None:
        """Warn of a record with this timestamp, or raise RecordExpired, if the topic would delete it for its age."""
        if topic.max_age_ms is None:
            return
        topic.date()
        try:
            self._age_check(topic.name, topic.max_age_ms, oldest_ms)
        except RecordExpired:
            self._on_unknown_topic(topic)  # which may keep records longer by now
            raise

    def batch_limit_bytes(self, topic: TopicQueues) -> int:
        """The maximum size of a batch of several records."""
        return min(self._options.batch_bytes, topic.max_message_bytes, topic.segment_bytes)

    def _batch_for(
        self, topic: TopicQueues, key: bytes | None, partition: int | None, size_bytes: int
    ) -> ProducerBatch:
        """The open batch for a record of this size, with the memory for it granted."""
        if size_bytes + BATCH_OVERHEAD_BYTES > topic.max_message_bytes:
            self._on_unknown_topic(topic)  # which may allow more by now
            raise MessageTooLarge(
                f"a record of {size_bytes} bytes for topic {topic.name!r}: with its batch it is larger than "
                f"max.message.bytes={topic.max_message_bytes}"
            )
        if partition is not None and partition >= len(topic.queues):
            self._on_unknown_topic(topic)  # which may have more partitions by now
        queue = topic.choose(key, partition)
        batch = queue.open
        if batch is not None and batch.size_bytes + size_bytes > self.batch_limit_bytes(topic):
            self.close_batch(queue, batch)
            queue = topic.choose(key, partition)
            batch = queue.open
        if batch is None:
            batch = self._new_batch(queue)
            self._grant(topic, batch, batch.size_bytes + size_bytes)
            queue.open = topic.open[queue.partition] = batch
            if topic.sticky is queue:
                topic.open_sticky = batch
            self.incomplete[batch] = queue
            due_at = batch.created_at + self._options.linger_ms / 1000
            self._lingering.append((due_at, batch))
            self.next_look_at = min(self.next_look_at, due_at)
            self._wake()
        elif batch.size_bytes + size_bytes > batch.granted_bytes:
            self._grant(topic, batch, batch.size_bytes + size_bytes)
        return batch

    def _new_batch(self, queue: PartitionQueue) -> ProducerBatch:
        batch = ProducerBatch(queue.topic, queue.partition, self._now(), self._on_await, self._on_error_received)
        batch.throttled_before_s = self._throttled_s()
        self.next_look_at = min(self.next_look_at, batch.created_at + self._options.delivery_timeout_ms / 1000)
        return batch

    def close_batch(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Accept no more records into the open batch of `queue` and line it up."""
        assert batch is queue.open
        queue.open = None
        topic = self.topics[queue.topic]
        topic.open.pop(queue.partition, None)
        if topic.sticky is queue:
            topic.sticky, topic.open_sticky = None, NO_BATCH
        self.buffered_bytes -= batch.granted_bytes - batch.size_bytes
        batch.granted_bytes = batch.size_bytes
        batch.close()
        self._line_up(queue, batch)

    def _line_up(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        queue.closed.append(batch)
        self.ready[queue] = None
        self.drain_flag.is_set = True
        self._wake()

    # --- memory -----------------------------------------------------------------------------------------------------

    def _grant(self, topic: TopicQueues, batch: ProducerBatch, size_bytes: int) -> None:
        """Let `batch` grow to `size_bytes`, and by a whole piece if there is memory for it. Else BufferFull."""
        free = self._options.buffer_bytes - self.buffered_bytes
        needed = size_bytes - batch.granted_bytes
        if needed > free and not self._is_replaying:
            raise self._buffer_full()
        limit = max(size_bytes, self.batch_limit_bytes(topic))
        piece = min(GRANT_BYTES, 2 * size_bytes)
        granted = max(needed, min(piece, free, limit - batch.granted_bytes))
        batch.granted_bytes += granted
        self.buffered_bytes += granted
        if self.buffered_bytes > self._options.buffer_bytes // 2:  # in large records, or batches of many partitions
            self.drain_flag.is_set = True

    def _buffer_full(self) -> BufferFull:
        self.drain_flag.is_set = True
        return BufferFull(
            f"{self.buffered_bytes} of buffer_bytes={self._options.buffer_bytes} wait to be acknowledged: "
            f"await drain() between sends"
        )

    def release(self, batch: ProducerBatch) -> None:
        """Return the memory of a batch that is acknowledged or has failed."""
        del self.incomplete[batch]
        self.buffered_bytes -= batch.granted_bytes
        self.first_error = self.first_error or batch.error
        if batch.error is not None and batch.is_error_unseen:
            self._note_failure(batch)
        self._on_release()

    # --- when topics become known -----------------------------------------------------------------------------------

    def replay(self, topic: TopicQueues) -> None:
        """Put the records that waited for the topic's partitions into batches."""
        waiting, topic.waiting = topic.waiting, []
        self._is_replaying = True  # accepted already: the overhead of their batches must not make it BufferFull
        for record in waiting:
            self.buffered_bytes -= record.size_bytes
            try:
                if record.has_own_time:
                    self.check_age(topic, record.timestamp_ms)
                future = self.add(
                    topic.name, record.value, record.key, record.headers, record.timestamp_ms, record.partition
                )
            except WarmlogError as error:
                record.resolve(self.refuse(error))
            else:
                record.resolve(future)
        self._is_replaying = False

    def refuse_waiting(self, topic: TopicQueues, error: WarmlogError) -> None:
        """Fail the records that wait for the topic's partitions."""
        waiting, topic.waiting = topic.waiting, []
        for record in waiting:
            self.buffered_bytes -= record.size_bytes
            record.resolve(self.refuse(error))
        self._wake()

    def learn_unknown(self) -> None:
        """Ask again for the topics that records wait for."""
        for topic in self.topics.values():
            if topic.waiting:
                self._on_unknown_topic(topic)

    def refuse(self, error: Exception) -> DeliveryFuture:
        """Note a record that is refused after `send` has returned, and return what raises `error`."""
        reason = error if isinstance(error, WarmlogError) else ClientError(f"a record was refused: {error!r}")
        self.first_error = self.first_error or reason
        failed = FailedRecord(error, self._on_error_received)
        self._note_failure(failed)
        return DeliveryFuture(failed, 0)

    # --- due and expired batches ------------------------------------------------------------------------------------

    def _on_await(self, batch: ProducerBatch) -> None:
        self._check_loop()
        self.mark_due(batch)

    def mark_due(self, batch: ProducerBatch) -> None:
        """Have `batch` sent now: a caller waits for it, or its linger is over."""
        queue = self.incomplete.get(batch)
        if queue is not None and batch is queue.open and not batch.is_due:
            batch.is_due = True
            self.ready[queue] = None
            self._wake()

    def mark_all_due(self) -> None:
        """Have every open batch sent now."""
        while self._lingering:
            self.mark_due(self._lingering.popleft()[1])

    def look(self, now: float) -> list[ProducerBatch]:
        """Have the open batches sent whose linger is over. Return those whose delivery timeout is over, oldest first.

        Afterwards `next_look_at` is when one of these may be over next.
        """
        if now < self.next_look_at:
            return []
        lingering = self._lingering
        while lingering and (lingering[0][0] <= now or lingering[0][1].is_due or lingering[0][1].count):
            self.mark_due(lingering.popleft()[1])
        expired: list[ProducerBatch] = []
        self.next_look_at = lingering[0][0] if lingering else math.inf
        for batch in self.incomplete:
            expiry_at = batch.created_at + self._options.delivery_timeout_ms / 1000
            if expiry_at <= now:  # what quotas have delayed does not count
                expiry_at += self._throttled_s() - batch.throttled_before_s
            if expiry_at > now:
                self.next_look_at = min(self.next_look_at, expiry_at)
                break
            expired.append(batch)
        return expired

    # --- errors -----------------------------------------------------------------------------------------------------

    def abandon(self, batch: ProducerBatch) -> None:
        """The caller that awaited all of `batch` no longer waits: an error of it, now or later, is unseen."""
        batch.is_all_awaited = False
        if batch.is_error_unseen:
            self._note_failure(batch)

    def _note_failure(self, failed: ProducerBatch | FailedRecord) -> None:
        self.failed[failed] = None
        self.drain_flag.is_set = True

    def _on_error_received(self, failed: ProducerBatch | FailedRecord) -> None:
        self.failed.pop(failed, None)

    @property
    def unacknowledged(self) -> int:
        """The number of records that are not acknowledged, those included whose error is unseen."""
        return self.pending.total() + sum(failed.count for failed in self.failed)

    @property
    def pending(self) -> Counter[str]:
        """The number of records by topic that are neither acknowledged nor given up."""
        pending = Counter({name: len(topic.waiting) for name, topic in self.topics.items() if topic.waiting})
        for batch in self.incomplete:
            pending[batch.topic] += batch.count or len(batch.values)
        return pending

    def describe_pending(self) -> str:
        """How many records of which topics are not acknowledged; empty if there are none."""
        pending = self.pending
        topics = ", ".join(f"{count} of {topic}" for topic, count in pending.most_common())
        total = pending.total()
        return topics and f"{total} {'record was' if total == 1 else 'records were'} not acknowledged: {topics}"

    def begin_epoch(self) -> None:
        """Nothing is incomplete: have each partition continue under the producer's next epoch."""
        self.first_error = None
        for topic in self.topics.values():
            for queue in topic.queues:
                queue.needs_reset = True

    def take_unseen_error(self) -> Exception | None:
        """Return the first error that no caller has received, once; some further ones are in notes on it."""
        unseen, self.failed = list(self.failed), {}
        if not unseen:
            return None
        error = unseen[0].error
        assert error is not None
        others = [other for other in unseen[1:] if other.error is not error]
        for other in others[:NOTED]:
            error.add_note(f"and {other.count} more: {other.error}")
        if left := sum(other.count for other in others[NOTED:]):
            error.add_note(f"and {left:,} more records failed")
        return error.with_traceback(None)
