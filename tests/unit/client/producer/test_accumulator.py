"""How records become batches, and how much may wait: decisions only, with a clock of the test's own."""

import time
from itertools import pairwise
from uuid import UUID

import pytest

from warmlog.errors import BufferFull, ErrorCode, MessageTooLarge, UnknownTopicOrPartition
from warmlog.producer.accumulator import GRANT_BYTES, Accumulator
from warmlog.producer.delivery import DeliveryFuture
from warmlog.producer.options import ProducerOptions
from warmlog.producer.partition_queue import TopicQueues
from warmlog.producer.producer_batch import NO_BATCH, ProducerBatch
from warmlog.producer.record_input import BATCH_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.messages import PartitionMetadata
from warmlog_transport.responses import Topic

RECORD = b"x" * 100
RECORD_BYTES = len(RECORD) + RECORD_OVERHEAD_BYTES


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(
    *, partitions: int = 1, max_message_bytes: int = 1 << 20, **options: int
) -> tuple[Accumulator, TopicQueues, Clock]:
    clock = Clock()
    defaults = {
        "acks": -1,
        "linger_ms": 5,
        "batch_bytes": 2000,
        "buffer_bytes": 1 << 20,
        "high_water_bytes": 1 << 16,
        "delivery_timeout_ms": 1000,
        "max_in_flight": 5,
    }
    checked = ProducerOptions(is_idempotent=True, codec=Codec.NONE, **{**defaults, **options})
    accumulator = Accumulator(checked, lambda: None, clock)
    topic = accumulator.topics["t"]
    if partitions:
        learn(topic, partitions, max_message_bytes)
    return accumulator, topic, clock


def learn(topic: TopicQueues, partitions: int, max_message_bytes: int = 1 << 20) -> None:
    parts = tuple(PartitionMetadata(ErrorCode.NONE, number, 0, 0, [0], [0]) for number in range(partitions))
    topic.learn(Topic("t", UUID(int=1), parts), max_message_bytes, is_idempotent=True)


def add(accumulator: Accumulator, topic: TopicQueues, value: bytes = RECORD, **options: object) -> DeliveryFuture:
    arguments = {"key": None, "headers": None, "timestamp_ms": None, "partition": None, **options}
    return accumulator.add(topic.name, value, **arguments)  # type: ignore[arg-type]


def batch_of(sent: DeliveryFuture) -> ProducerBatch:
    assert isinstance(sent._batch, ProducerBatch)
    return sent._batch


def test_a_batch_is_closed_when_the_next_record_would_make_it_too_large() -> None:
    accumulator, topic, _ = make()
    sent = [add(accumulator, topic) for _ in range(40)]
    fits = (2000 - BATCH_OVERHEAD_BYTES) // RECORD_BYTES
    queue = topic.queues[0]
    assert [batch.count for batch in queue.closed] == [fits] * (40 // fits - (40 % fits == 0))
    assert [one._index for one in sent] == [i % fits for i in range(40)]
    assert list(accumulator.ready) == [queue]


def test_a_record_larger_than_a_batch_has_one_for_itself() -> None:
    accumulator, topic, _ = make()
    sent = [add(accumulator, topic, value) for value in (b"a", b"x" * 5000, b"b")]
    assert len({id(batch_of(one)) for one in sent}) == 3


def test_batches_never_outgrow_the_topic() -> None:
    accumulator, topic, _ = make(max_message_bytes=600)
    for _ in range(20):
        add(accumulator, topic)
    assert max(batch.size_bytes for batch in topic.queues[0].closed) <= 600
    with pytest.raises(MessageTooLarge, match=r"record of 716 bytes.*max.message.bytes=600"):
        add(accumulator, topic, b"x" * 700)


def test_what_is_not_acknowledged_is_counted_in_words() -> None:
    accumulator, topic, _ = make()
    assert accumulator.describe_pending() == ""
    add(accumulator, topic)
    assert accumulator.describe_pending() == "1 record was not acknowledged: 1 of t"
    add(accumulator, topic)
    assert accumulator.describe_pending() == "2 records were not acknowledged: 2 of t"


def test_a_batch_is_due_when_its_linger_is_over_and_not_before() -> None:
    accumulator, topic, clock = make()
    batch = batch_of(add(accumulator, topic))
    assert accumulator.next_look_at == pytest.approx(0.005)
    clock.now = 0.004
    assert accumulator.look(clock.now) == []
    assert not batch.is_due
    clock.now = 0.005
    assert accumulator.look(clock.now) == []
    assert batch.is_due
    assert list(accumulator.ready) == [topic.queues[0]]
    assert accumulator.next_look_at == 1.0, "its delivery timeout"


def test_a_due_batch_takes_records_until_it_is_sent() -> None:
    accumulator, topic, _ = make()
    first = batch_of(add(accumulator, topic))
    accumulator.mark_due(first)
    assert batch_of(add(accumulator, topic)) is first
    accumulator.close_batch(topic.queues[0], first)
    assert batch_of(add(accumulator, topic)) is not first
    assert first.count == 2


def test_records_without_a_key_stay_with_a_partition_for_a_batch() -> None:
    accumulator, topic, _ = make(partitions=3)
    partitions = [batch_of(add(accumulator, topic)).partition for _ in range(100)]
    changes = [(a, b) for a, b in pairwise(partitions) if a != b]
    assert len(changes) == 100 // ((2000 - BATCH_OVERHEAD_BYTES) // RECORD_BYTES)
    assert {(b - a) % 3 for a, b in changes} == {1}


def test_send_may_fill_open_batches_without_headers() -> None:
    accumulator, topic, _ = make(partitions=2)
    before_ns = time.time_ns()
    batch = batch_of(add(accumulator, topic))
    assert topic.open_sticky is topic.open[batch.partition] is batch
    assert batch.plain_limit_bytes > batch.size_bytes
    assert before_ns < batch.tick_end_ns <= time.time_ns() + 1_000_000
    add(accumulator, topic, timestamp_ms=5)
    assert batch.tick_end_ns == 0
    add(accumulator, topic)
    assert batch.tick_end_ns > 0
    add(accumulator, topic, key=b"k", partition=batch.partition)
    assert batch.plain_limit_bytes == 0
    accumulator.close_batch(topic.queues[batch.partition], batch)
    assert (topic.open, topic.open_sticky) == ({}, NO_BATCH)


def test_memory_is_granted_in_pieces_and_comes_back() -> None:
    accumulator, topic, _ = make(batch_bytes=100_000, high_water_bytes=1_000_000)
    batch = batch_of(add(accumulator, topic))
    grants = [batch.granted_bytes]
    assert grants == [2 * batch.size_bytes]
    for _ in range(200):
        add(accumulator, topic)
        assert accumulator.buffered_bytes == batch.granted_bytes >= batch.size_bytes
        if batch.granted_bytes != grants[-1]:
            assert batch.granted_bytes == grants[-1] + min(GRANT_BYTES, 2 * batch.size_bytes)
            grants.append(batch.granted_bytes)
    assert len(grants) == 5
    accumulator.close_batch(topic.queues[0], batch)
    assert accumulator.buffered_bytes == batch.size_bytes == BATCH_OVERHEAD_BYTES + 201 * RECORD_BYTES
    batch.complete(0, -1)
    accumulator.release(batch)
    assert accumulator.buffered_bytes == 0


def test_the_bound_on_all_memory_holds() -> None:
    accumulator, topic, _ = make(partitions=3, buffer_bytes=5000)
    sent: list[DeliveryFuture] = []

    def add_on() -> None:
        while True:
            sent.append(add(accumulator, topic, partition=len(sent) % 3))
            assert accumulator.buffered_bytes <= 5000

    with pytest.raises(BufferFull, match="buffer_bytes=5000"):
        add_on()
    assert 3000 < sum(batch.size_bytes for batch in accumulator.incomplete) <= 5000


def test_records_wait_for_their_topic_and_are_bounded_too() -> None:
    accumulator, topic, _ = make(partitions=0, buffer_bytes=5000)
    sent: list[DeliveryFuture] = []

    def add_on() -> None:
        while True:
            sent.append(add(accumulator, topic, key=b"123456789"))

    with pytest.raises(BufferFull):
        add_on()
    assert accumulator.buffered_bytes == len(sent) * (RECORD_BYTES + 9)
    learn(topic, 3)
    accumulator.replay(topic)
    assert {batch_of(one).partition for one in sent} == {0xCBF43926 % 3}
    assert sum(len(batch.values) or batch.count for batch in accumulator.incomplete) == len(sent)


def test_a_record_that_waited_for_a_partition_that_does_not_exist_is_refused_alone() -> None:
    accumulator, topic, _ = make(partitions=0)
    wrong = add(accumulator, topic, partition=7)
    right = add(accumulator, topic)
    learn(topic, 1)
    accumulator.replay(topic)
    assert batch_of(right).values == [RECORD]
    error = accumulator.take_unseen_error()
    assert isinstance(error, UnknownTopicOrPartition)
    assert wrong._batch is not right._batch


def test_an_error_tells_of_many_others_in_few_words() -> None:
    accumulator, _, _ = make()
    for number in range(1000):
        accumulator.refuse(UnknownTopicOrPartition(f"error {number}"))
    error = accumulator.take_unseen_error()
    assert str(error) == "error 0"
    assert error is not None
    assert error.__notes__ == [
        *(f"and 1 more: error {number}" for number in range(1, 11)),
        "and 989 more records failed",
    ]


def test_batches_expire_in_the_order_of_their_first_record() -> None:
    accumulator, topic, clock = make(partitions=2)
    first = batch_of(add(accumulator, topic, partition=0))
    clock.now = 0.5
    second = batch_of(add(accumulator, topic, partition=1))
    assert accumulator.look(0.9) == []
    assert accumulator.next_look_at == 1.0
    assert accumulator.look(1.0) == [first]
    assert accumulator.look(1.5) == [first, second]


def test_the_delay_of_a_quota_does_not_count_for_the_delivery_timeout() -> None:
    accumulator, topic, clock = make(partitions=2)
    throttled = accumulator._throttled_s = Clock()
    first = batch_of(add(accumulator, topic, partition=0))
    clock.now, throttled.now = 0.5, 0.2
    second = batch_of(add(accumulator, topic, partition=1))
    throttled.now = 10.0
    assert accumulator.look(0.9) == []
    assert accumulator.next_look_at == 1.0
    assert accumulator.look(1.0) == []
    assert accumulator.next_look_at == 11.0
    assert accumulator.look(10.9) == []
    assert accumulator.look(11.0) == [first]
    assert accumulator.look(11.3) == [first, second]
