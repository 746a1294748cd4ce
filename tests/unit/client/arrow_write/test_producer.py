"""Batches of Arrow columns: lost answers, lost requests and refusals lose nothing and repeat nothing."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest

import warmlog
from fake_broker import FakeBroker, Fault
from warmlog.arrow_write import producer as arrow_producer
from warmlog.arrow_write.producer import ArrowProducer
from warmlog.arrow_write.rows import ArrowRows, PreparedRows, RowSpan
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.messages import HandshakeRequest, InitProducerIdRequest, Message, MetadataRequest
from warmlog_transport.options import ConnectionOptions

OPTIONS = ConnectionOptions(
    connect_timeout_ms=1000, request_timeout_ms=500, retry_backoff_ms=5, retry_backoff_max_ms=20
)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker(t=3) as fake:
        yield fake


def all_of(rows: ArrowRows) -> list[RowSpan]:
    return [PreparedRows(rows).span()]


async def send(producer: ArrowProducer, values: list[bytes], partition: int = 0, topic: str = "t") -> None:
    size_bytes = 100 + sum(map(len, values))
    await producer.topic(topic)
    await producer.send(topic, partition, all_of(ArrowRows(pa.array(values))), size_bytes, 5)


@asynccontextmanager
async def producing(address: str, **options: Any) -> AsyncIterator[ArrowProducer]:
    async with ArrowProducer(address, OPTIONS, **options) as producer:
        yield producer


async def send_numbers(
    broker: FakeBroker, count: int, *, seed: int = 0, codec: Codec = Codec.NONE
) -> dict[int, list[bytes]]:
    """Send batches of one to three numbers to random partitions; what each partition must have."""
    dice = random.Random(seed)
    sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    async with producing(broker.address, codec=codec) as producer:
        for number in range(count):
            values = [b"%d.%d" % (number, index) for index in range(dice.randrange(1, 4))]
            partition = dice.choice([0, 0, 0, 1, 2])
            sent[partition] += values
            await send(producer, values, partition)
        await producer.flush()
        assert producer.records == sum(map(len, sent.values()))
    return sent


def stored(broker: FakeBroker) -> dict[int, list[bytes | None]]:
    return {number: partition.values() for number, partition in enumerate(broker.topics["t"])}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
async def test_batches_arrive_in_order_under_one_producer_id(broker: FakeBroker, codec: Codec) -> None:
    sent = await send_numbers(broker, 60, codec=codec)
    assert stored(broker) == sent
    headers = [batch.header for partition in broker.topics["t"] for batch in partition.read_all()]
    assert {(header.producer_id, header.producer_epoch, header.codec) for header in headers} == {(4001, 0, codec)}
    assert all(request.acks == -1 for request in broker.produced)


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.STORAGE_ERROR, Fault.IGNORE])
@pytest.mark.parametrize("position", [0, 1, 4])
async def test_one_fault_loses_nothing_and_repeats_nothing(broker: FakeBroker, fault: Fault, position: int) -> None:
    broker.faults.extend([Fault.NONE] * position + [fault])
    assert await send_numbers(broker, 30) == stored(broker)


@pytest.mark.parametrize("seed", range(6))
async def test_faults_lose_and_repeat_nothing(broker: FakeBroker, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_producer, "MAX_UNACKNOWLEDGED_BYTES", 1500)
    dice = random.Random(seed)
    choices = [Fault.NONE] * 4 + [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.STORAGE_ERROR]
    broker.faults.extend(dice.choice(choices) for _ in range(40))
    assert await send_numbers(broker, 120, seed=seed) == stored(broker)


async def send_and_flush(producer: ArrowProducer, *batches: list[bytes]) -> None:
    for values in batches:
        await send(producer, values)
    await producer.flush()


async def test_a_batch_that_is_refused_for_good_is_an_error_that_names_its_partition(broker: FakeBroker) -> None:
    broker.faults.extend([Fault.NONE, Fault.TOO_LARGE])
    async with producing(broker.address) as producer:
        with pytest.raises(warmlog.MessageTooLarge, match=r"2 records for t-0: as ordered"):
            await send_and_flush(producer, *[[b"a", b"b"] for _ in range(3)])


async def test_records_that_no_batch_takes_are_named_with_their_partition(broker: FakeBroker) -> None:
    rows = ArrowRows(pa.array([b"a"]), timestamps=pa.array([-5000], pa.timestamp("us")))
    message = r"1 records for t-1: a timestamp of -5 ms is before 1970"
    async with producing(broker.address) as producer:
        await producer.topic("t")
        await producer.send("t", 1, all_of(rows), 100, 5)
        with pytest.raises(warmlog.InvalidTimestamp, match=message):
            await producer.flush()


@pytest.mark.parametrize("refused", [HandshakeRequest, InitProducerIdRequest, MetadataRequest])
async def test_refusals_that_pass_lose_nothing_and_repeat_nothing(broker: FakeBroker, refused: type[Message]) -> None:
    """As of a broker to which all tasks come back at once after an outage."""
    dice = random.Random(1)
    busy = warmlog.TooManyConnections("so many are open")
    broker.refusal = lambda message: busy if isinstance(message, refused) and dice.random() < 0.7 else None
    broker.faults.extend([Fault.NONE, Fault.LOSE_REQUEST, Fault.NONE, Fault.LOSE_ANSWER] * 4)
    assert await send_numbers(broker, 40) == stored(broker)


async def test_a_refusal_that_stays_is_given_up_in_time(broker: FakeBroker) -> None:
    async with producing(broker.address, delivery_timeout_ms=1000) as producer:
        await producer.topic("t")
        broker.faults.extend([Fault.STORAGE_ERROR] * 1000)
        with pytest.raises(warmlog.DeliveryTimeout, match=r"1 records for t-0 were not acknowledged .*as ordered"):
            await send_and_flush(producer, [b"a"])


async def test_a_topic_that_is_not_there_is_an_error_at_once(broker: FakeBroker) -> None:
    async with producing(broker.address) as producer:
        with pytest.raises(warmlog.UnknownTopicOrPartition, match="nowhere"):
            await producer.topic("nowhere")


async def test_a_topic_that_is_gone_is_an_error_at_once(broker: FakeBroker) -> None:
    async with producing(broker.address) as producer:
        await send_and_flush(producer, [b"a"])
        broker.topics["other"] = broker.topics.pop("t")
        with pytest.raises(warmlog.UnknownTopicOrPartition, match="1 records for t-0"):
            await send_and_flush(producer, [b"a"])


async def test_a_broker_that_stays_away_is_given_up_in_time(broker: FakeBroker) -> None:
    async with producing(broker.address, delivery_timeout_ms=1000) as producer:
        await send_and_flush(producer, [b"a"])
        broker.faults.extend([Fault.LOSE_REQUEST] * 100_000)
        with pytest.raises(warmlog.DeliveryTimeout, match=r"1 records for t-0 were not acknowledged .*lost"):
            await send_and_flush(producer, [b"b"])


async def test_no_broker_at_all_is_given_up_in_time() -> None:
    async with producing("127.0.0.1:1", delivery_timeout_ms=50) as producer:
        with pytest.raises(warmlog.BrokerUnavailable):
            await producer.topic("t")


async def test_after_a_batch_that_was_refused_for_good_every_call_fails(broker: FakeBroker) -> None:
    async with producing(broker.address) as producer:
        await send_and_flush(producer, [b"a"])
        broker.faults.append(Fault.TOO_LARGE)
        for _ in range(3):
            with pytest.raises(warmlog.MessageTooLarge, match="1 records for t-0: as ordered"):
                await send_and_flush(producer, [b"b"])
