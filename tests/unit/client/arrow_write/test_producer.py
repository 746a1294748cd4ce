"""Batches sent without an event loop: lost answers, lost requests and refusals lose nothing and repeat nothing."""

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pytest

from broker_in_thread import broker_in_thread
from fake_broker import FakeBroker, Fault
from warmlog.arrow_write import producer as blocking_producer
from warmlog.arrow_write.producer import ArrowBatch, BlockingProducer
from warmlog.arrow_write.rows import ArrowRows, PreparedRows, RowSpan
from warmlog.errors import (
    ClientError,
    DeliveryTimeout,
    InvalidTimestamp,
    MessageTooLarge,
    TooManyConnections,
    UnknownTopicOrPartition,
)
from warmlog.sockets.cluster import BlockingCluster
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.messages import HandshakeRequest, InitProducerIdRequest, Message, MetadataRequest
from warmlog_transport.options import ConnectionOptions

OPTIONS = ConnectionOptions(
    connect_timeout_ms=1000, request_timeout_ms=500, retry_backoff_ms=5, retry_backoff_max_ms=20
)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with broker_in_thread(t=3) as fake:
        yield fake


def all_of(rows: ArrowRows) -> list[RowSpan]:
    return [PreparedRows(rows).span()]


def batch_of(values: list[bytes], partition: int = 0, topic: str = "t") -> ArrowBatch:
    return ArrowBatch(topic, partition, all_of(ArrowRows(pa.array(values))), 100 + sum(map(len, values)), 5)


@contextmanager
def producing(address: str, **options: Any) -> Iterator[BlockingProducer]:
    with (
        BlockingCluster(address, OPTIONS) as cluster,
        BlockingProducer(cluster, options=OPTIONS, **options) as producer,
    ):
        yield producer


def send_numbers(broker: FakeBroker, count: int, *, seed: int = 0, codec: Codec = Codec.NONE) -> dict[int, list[bytes]]:
    """Send batches of one to three numbers to random partitions; what each partition must have."""
    dice = random.Random(seed)
    sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    with producing(broker.address, codec=codec) as producer:
        for number in range(count):
            values = [b"%d.%d" % (number, index) for index in range(dice.randrange(1, 4))]
            partition = dice.choice([0, 0, 0, 1, 2])
            sent[partition] += values
            producer.send(batch_of(values, partition))
        producer.flush()
        assert producer.records == sum(map(len, sent.values()))
    return sent


def stored(broker: FakeBroker) -> dict[int, list[bytes | None]]:
    return {number: partition.values() for number, partition in enumerate(broker.topics["t"])}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_batches_arrive_in_order_under_one_producer_id(broker: FakeBroker, codec: Codec) -> None:
    sent = send_numbers(broker, 60, codec=codec)
    assert stored(broker) == sent
    headers = [batch.header for partition in broker.topics["t"] for batch in partition.read_all()]
    assert {(header.producer_id, header.producer_epoch, header.codec) for header in headers} == {(4001, 0, codec)}
    assert all(request.acks == -1 for request in broker.produced)


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.STORAGE_ERROR, Fault.IGNORE])
@pytest.mark.parametrize("position", [0, 1, 4])
def test_one_fault_loses_nothing_and_repeats_nothing(broker: FakeBroker, fault: Fault, position: int) -> None:
    broker.faults.extend([Fault.NONE] * position + [fault])
    assert stored(broker) != send_numbers(broker, 30) == stored(broker)


@pytest.mark.parametrize("seed", range(6))
def test_many_faults_lose_nothing_and_repeat_nothing(
    broker: FakeBroker, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_producer, "MAX_UNACKNOWLEDGED_BYTES", 1500)
    dice = random.Random(seed)
    choices = [Fault.NONE] * 4 + [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.STORAGE_ERROR]
    broker.faults.extend(dice.choice(choices) for _ in range(40))
    assert send_numbers(broker, 120, seed=seed) == stored(broker)


def send_and_flush(producer: BlockingProducer, *batches: ArrowBatch) -> None:
    for batch in batches:
        producer.send(batch)
    producer.flush()


def test_a_batch_that_is_refused_for_good_is_an_error_that_names_its_partition(broker: FakeBroker) -> None:
    broker.faults.extend([Fault.NONE, Fault.TOO_LARGE])
    with producing(broker.address) as producer, pytest.raises(MessageTooLarge, match=r"2 records for t-0: as ordered"):
        send_and_flush(producer, *[batch_of([b"a", b"b"]) for _ in range(3)])


def test_records_that_no_batch_takes_are_named_with_their_partition(broker: FakeBroker) -> None:
    rows = ArrowRows(pa.array([b"a"]), timestamps=pa.array([-5000], pa.timestamp("us")))
    message = r"1 records for t-1: a timestamp of -5 ms is before 1970"
    with producing(broker.address) as producer, pytest.raises(InvalidTimestamp, match=message):
        producer.send(ArrowBatch("t", 1, all_of(rows), 100, 5))


@pytest.mark.parametrize("refused", [HandshakeRequest, InitProducerIdRequest, MetadataRequest])
def test_refusals_that_pass_lose_nothing_and_repeat_nothing(broker: FakeBroker, refused: type[Message]) -> None:
    """As of a broker to which all tasks come back at once after an outage."""
    dice = random.Random(1)
    busy = TooManyConnections("so many are open")
    broker.refusal = lambda message: busy if isinstance(message, refused) and dice.random() < 0.7 else None
    broker.faults.extend([Fault.NONE, Fault.LOSE_REQUEST, Fault.NONE, Fault.LOSE_ANSWER] * 4)
    assert stored(broker) != send_numbers(broker, 40) == stored(broker)


def test_a_refusal_that_stays_is_given_up_in_time_and_flush_goes_on(broker: FakeBroker) -> None:
    with producing(broker.address, delivery_timeout_ms=100) as producer:
        broker.refusal = lambda message: TooManyConnections("so many are open")
        with pytest.raises(DeliveryTimeout, match=r"t-0: nothing was acknowledged for .*: so many are open$"):
            send_and_flush(producer, batch_of([b"a"]))
        broker.refusal = lambda message: None
        producer.flush()
    assert stored(broker)[0] == [b"a"]


def test_a_topic_that_is_not_there_is_an_error_at_once(broker: FakeBroker) -> None:
    with producing(broker.address) as producer, pytest.raises(UnknownTopicOrPartition, match="nowhere"):
        producer.send(batch_of([b"a"], topic="nowhere"))


def test_a_topic_that_is_gone_is_an_error_at_once(broker: FakeBroker) -> None:
    with producing(broker.address) as producer:
        send_and_flush(producer, batch_of([b"a"]))
        broker.topics["other"] = broker.topics.pop("t")
        with pytest.raises(UnknownTopicOrPartition, match="1 records for t-0"):
            send_and_flush(producer, batch_of([b"a"]))


def test_a_broker_that_stays_away_is_given_up_in_time(broker: FakeBroker) -> None:
    with producing(broker.address, delivery_timeout_ms=200) as producer:
        send_and_flush(producer, batch_of([b"a"]))
        broker.faults.extend([Fault.LOSE_REQUEST] * 1000)
        with pytest.raises(DeliveryTimeout, match=r"t-0: nothing was acknowledged for .*is the broker running\?"):
            send_and_flush(producer, batch_of([b"b"]))


def test_no_broker_at_all_is_given_up_in_time() -> None:
    with producing("127.0.0.1:1", delivery_timeout_ms=50) as producer, pytest.raises(DeliveryTimeout):
        send_and_flush(producer, batch_of([b"b"]))


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.IGNORE, Fault.STORAGE_ERROR])
def test_after_a_delivery_timeout_flush_goes_on_where_it_was(broker: FakeBroker, fault: Fault) -> None:
    options = ConnectionOptions(
        connect_timeout_ms=1000, request_timeout_ms=100, retry_backoff_ms=5, retry_backoff_max_ms=20
    )
    batches = [[b"%d" % number] for number in range(20)]
    with BlockingCluster(broker.address, options) as cluster:
        producer = BlockingProducer(cluster, options=options, delivery_timeout_ms=200)
        send_and_flush(producer, batch_of([b"first"]))
        broker.faults.extend([Fault.NONE, *[fault] * 1000])
        for values in batches:
            with suppress(DeliveryTimeout):
                producer.send(batch_of(values))
        with pytest.raises(DeliveryTimeout):
            producer.flush()
        broker.faults.clear()
        producer.flush()
        send_and_flush(producer, batch_of([b"last"]))
        producer.close()
    assert stored(broker)[0] == [b"first", *[values[0] for values in batches], b"last"]


def test_after_a_batch_that_was_refused_for_good_every_call_fails(broker: FakeBroker) -> None:
    with producing(broker.address) as producer:
        send_and_flush(producer, batch_of([b"a"]))
        broker.faults.append(Fault.TOO_LARGE)
        with pytest.raises(MessageTooLarge):
            send_and_flush(producer, *[batch_of([b"b"]) for _ in range(3)])
        for call in (producer.flush, lambda: producer.send(batch_of([b"c"]))):
            with pytest.raises(ClientError, match=r"has ended.*1 records for t-0: as ordered"):
                call()
