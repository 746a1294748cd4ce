"""The batches of one partition between `send` and acknowledgement, and every decision about their order.

::

    open      the batch that takes records now, at most one
    closed    full batches that were never sent, in order
    in_flight sent, no response yet, in the order of sending; at most `max_in_flight`
    retries   sent before and to be sent again, in the same order, before anything from `closed`

With an idempotent producer each batch gets a sequence when it is first sent. It keeps it, so the broker recognises a
batch that it already has. Batches that follow a lost one are refused as OUT_OF_ORDER and sent again after it. When a
batch is given up, those after it could never be accepted under their sequences: nothing new is sent (`needs_reset`)
until it is certain of each sent batch whether the broker has it (those without a response are sent again as they are).
The rest then continues under a new producer epoch, from sequence 0.

A partition that knows nothing of a producer accepts any sequence as its first. Until it has acknowledged one batch, the
next is held back: it could be accepted in place of the first, which could then never follow.
"""

import random
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from uuid import UUID

from warmlog import errors
from warmlog.producer.delivery import DeliveryFuture, WaitingRecord
from warmlog.producer.producer_batch import NO_BATCH, NO_PRODUCER, NS_PER_MS, ProducerBatch
from warmlog.producer.record_input import MAX_TIMESTAMP_MS, RECORD_OVERHEAD_BYTES, partition_of_key
from warmlog_protocol.batch import NO_SEQUENCE, SEQUENCE_MASK
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.messages import ProducedPartition
from warmlog_transport.responses import DEFAULT_SEGMENT_BYTES, Topic, partition_range

_by_order = attrgetter("order")


class Verdict(Enum):
    """What to do with a batch after its response, or the lack of one."""

    DELIVERED = "the broker has it"
    RETRY = "send it again: the broker may or may not have it"
    REJECTED = "send it again: the broker certainly does not have it, and will not under this sequence"
    FAILED = "give it up"


def verdict(error: errors.WarmlogError, *, has_predecessor: bool, needs_reset: bool) -> Verdict:
    """The verdict on a batch that failed with `error`. `has_predecessor`: an earlier batch is not acknowledged yet."""
    match error:
        case errors.DuplicateSequence():
            return Verdict.DELIVERED
        case errors.OutOfOrderSequence():
            return Verdict.REJECTED if has_predecessor or needs_reset else Verdict.FAILED
        case errors.InvalidProducerEpoch() | errors.UnknownProducerId():
            return Verdict.REJECTED
        case errors.BrokerUnavailable():
            return Verdict.RETRY
        case errors.ApiError() if error.retriable:
            return Verdict.RETRY
    return Verdict.FAILED


@dataclass(slots=True, eq=False, repr=False)
class PartitionQueue:
    """One partition of one topic, without I/O: the producer takes the next batch and reports its outcome.

    An idempotent queue starts with `needs_reset`: it has no producer id yet.
    """

    topic: str
    partition: int
    is_idempotent: bool = field(kw_only=True)
    is_transactional: bool = field(default=False, kw_only=True)
    is_established: bool = field(init=False)
    open: ProducerBatch | None = None
    closed: deque[ProducerBatch] = field(default_factory=deque)
    in_flight: list[ProducerBatch] = field(default_factory=list)
    retries: list[ProducerBatch] = field(default_factory=list)
    producer: tuple[int, int] = NO_PRODUCER
    next_sequence: int = 0
    needs_reset: bool = field(init=False)
    paused_until: float = 0.0
    _next_order: int = 0

    def __post_init__(self) -> None:
        self.needs_reset = self.is_idempotent
        self.is_established = not self.is_idempotent

    def next_to_send(self, now: float, max_in_flight: int) -> ProducerBatch | None:
        """The batch that may be sent now. The open one may only if it is due."""
        if self.paused_until > now or (self.in_flight and not self.is_established):
            return None
        if self.retries:
            for batch in self.retries:
                if self.needs_reset and batch.is_rejected:
                    continue
                return None if self.in_flight and self.in_flight[-1].order > batch.order else batch
            return None
        if self.needs_reset or len(self.in_flight) >= max_in_flight:
            return None
        if self.closed:
            return self.closed[0]
        return self.open if self.open is not None and self.open.is_due else None

    @property
    def awaits_producer(self) -> bool:
        """Whether the queue needs a producer id or epoch before it can continue, and may `adopt` one now."""
        return self.needs_reset and not self.in_flight and all(batch.is_rejected for batch in self.retries)

    def adopt(self, producer: tuple[int, int]) -> None:
        """Continue under `producer` from sequence 0; restamp the batches to retry, none of which the broker has."""
        assert not self.in_flight
        self.producer = producer
        self.next_sequence = 0
        self.needs_reset = False
        self.is_established = False
        for batch in self.retries:
            batch.restamp(producer, self._take_sequence(batch.count))

    def mark_sent(self, batch: ProducerBatch, codec: Codec) -> None:
        """Move `batch`, which `next_to_send` returned, to `in_flight`; its `pieces` are what to send."""
        if batch.order >= 0:
            self.retries.remove(batch)
        else:
            self.closed.popleft()
            if self.is_idempotent:
                batch.encode(codec, self.producer, self.next_sequence, is_transactional=self.is_transactional)
                self._take_sequence(batch.count)
            else:
                batch.encode(codec, NO_PRODUCER, NO_SEQUENCE)
            batch.order = self._next_order
            self._next_order += 1
        batch.attempts += 1
        batch.is_rejected = False
        self.in_flight.append(batch)

    def judge(self, batch: ProducerBatch, outcome: ProducedPartition | errors.WarmlogError) -> Verdict:
        """Decide about `batch`, which was in flight, after its response or an error. One to retry is in `retries`."""
        self.in_flight.remove(batch)
        if not isinstance(outcome, errors.WarmlogError):
            self.is_established = True
            return Verdict.DELIVERED
        earlier = [other for other in (*self.in_flight, *self.retries) if other.order < batch.order]
        judged = verdict(outcome, has_predecessor=bool(earlier), needs_reset=self.needs_reset)
        batch.last_error = _reason(batch, outcome, earlier)
        if self.is_transactional and isinstance(outcome, errors.InvalidProducerEpoch | errors.UnknownProducerId):
            judged = Verdict.FAILED  # only the end of the transaction changes the epoch
        if judged is Verdict.REJECTED:
            batch.is_rejected = True
            self.needs_reset = self.needs_reset or not isinstance(outcome, errors.OutOfOrderSequence)
        if judged in (Verdict.RETRY, Verdict.REJECTED):
            insort(self.retries, batch, key=_by_order)
        if judged is Verdict.DELIVERED:
            self.is_established = True
        if judged is Verdict.FAILED:
            self.needs_reset = self.is_idempotent
        return judged

    def give_up(self, batch: ProducerBatch) -> None:
        """Remove a batch that will not be sent (again)."""
        if batch is self.open:
            self.open = None
        elif batch.order < 0:
            self.closed.remove(batch)
        else:
            (self.in_flight if batch in self.in_flight else self.retries).remove(batch)
            self.needs_reset = self.is_idempotent

    def _take_sequence(self, count: int) -> int:
        sequence = self.next_sequence
        self.next_sequence = (sequence + count) & SEQUENCE_MASK
        return sequence


def _reason(batch: ProducerBatch, error: errors.WarmlogError, earlier: Sequence[ProducerBatch]) -> errors.WarmlogError:
    """Why `batch` is not in the log yet. If it is out of order, the reason of the first of the `earlier` batches."""
    if not isinstance(error, errors.OutOfOrderSequence):
        return error
    first = min(earlier, key=_by_order, default=batch)
    return first.last_error or batch.last_error or error


@dataclass(slots=True, eq=False, repr=False)
class TopicQueues:
    """The partitions of one topic, and until they are known the records that wait for them."""

    name: str
    is_known: bool = False
    topic_id: UUID | None = None
    max_message_bytes: int = 0
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    max_age_ms: int | None = None
    oldest_kept_ms: int = 0
    """Timestamps from this on were young enough when it was last set; 0: all are. See `max_age_ms`."""
    queues: list[PartitionQueue] = field(default_factory=list)
    open: dict[int, ProducerBatch] = field(default_factory=dict)
    """The open batches by partition."""
    sticky: PartitionQueue | None = None
    open_sticky: ProducerBatch = NO_BATCH
    """The open batch of `sticky`."""
    waiting: list[WaitingRecord] = field(default_factory=list)
    _next_sticky: int = field(default_factory=lambda: random.randrange(1 << 16))  # noqa: S311
    """Random, so that producers start at different partitions."""

    def learn(
        self,
        topic: Topic,
        max_message_bytes: int,
        *,
        is_idempotent: bool,
        is_transactional: bool = False,
        max_age_ms: int | None = None,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
    ) -> None:
        """Take in the topic's metadata. Records older than `max_age_ms` by their own timestamps would be deleted."""
        self.topic_id = topic.topic_id
        self.max_age_ms = max_age_ms
        self.date()
        self.max_message_bytes = max_message_bytes
        self.segment_bytes = segment_bytes
        for queue in self.queues[len(topic.partitions) :]:  # the topic was recreated
            self.open.pop(queue.partition, None)
        del self.queues[len(topic.partitions) :]
        if self.sticky not in self.queues:
            self.sticky, self.open_sticky = None, NO_BATCH
        for partition in range(len(self.queues), len(topic.partitions)):
            self.queues.append(
                PartitionQueue(self.name, partition, is_idempotent=is_idempotent, is_transactional=is_transactional)
            )
        self.is_known = True

    def date(self) -> None:
        """Set `oldest_kept_ms` by the clock."""
        self.oldest_kept_ms = 0 if self.max_age_ms is None else max(0, time.time_ns() // NS_PER_MS - self.max_age_ms)

    def join(
        self, value: bytes, key: object, timestamp_ms: object, partition: object, check_send: Callable[[], None]
    ) -> DeliveryFuture | None:
        """Put a record without headers into the open batch of its partition, within the memory granted to the batch.

        None if something about the record is to be looked at first. `check_send` is called once in a millisecond.
        """
        if partition is not None:
            batch = self.open.get(partition, NO_BATCH) if type(partition) is int else NO_BATCH
        elif type(key) is bytes and key and self.queues:
            batch = self.open.get(partition_of_key(key, len(self.queues)), NO_BATCH)
        else:
            batch = self.open_sticky
        size_bytes = len(value) + RECORD_OVERHEAD_BYTES
        if type(key) is bytes:
            size_bytes += len(key)
        elif key is not None:
            return None
        if batch.size_bytes + size_bytes > batch.granted_bytes:
            return None
        if timestamp_ms is None:
            now_ns = time.time_ns()
            if now_ns >= batch.tick_end_ns:
                check_send()
                batch.tick(now_ns)
        elif type(timestamp_ms) is int and self.oldest_kept_ms <= timestamp_ms <= MAX_TIMESTAMP_MS:
            batch.stamp(timestamp_ms)
        else:
            return None
        return batch.append(value, key, None, size_bytes)

    def choose(self, key: bytes | None, partition: int | None) -> PartitionQueue:
        """The queue of `partition`, or else of the key, or else the sticky one of records without a key."""
        if partition is not None:
            if not 0 <= partition < len(self.queues):
                raise errors.UnknownTopicOrPartition(
                    f"topic {self.name!r} has {partition_range(len(self.queues))}, not {partition}"
                )
            return self.queues[partition]
        if key:
            return self.queues[partition_of_key(key, len(self.queues))]
        if self.sticky is None:
            self.sticky = self.queues[self._next_sticky % len(self.queues)]
            self._next_sticky += 1
        return self.sticky
