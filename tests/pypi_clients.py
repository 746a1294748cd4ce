"""warmlog's client and three clients of Kafka from PyPI, each as a writer and as a reader of one partition."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka

import kafka
from waiting import wait_until
from warmlog import Record
from warmlog.blocking import Consumer, Producer
from warmlog.testing import EmbeddedBroker

TIMEOUT_S = 40
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
KAFKA_PYTHON_CODECS = ["none", "gzip", "zstd"]
"""The others need more libraries."""

Headers = list[tuple[str, bytes]]


class Sent(NamedTuple):
    """A record as it is written."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp_ms: int = 1_700_000_000_000


class Read(NamedTuple):
    """A record as it is read."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


RECORDS = [
    Sent(b"key", b"one", [("trace", b"7"), ("empty", b"")]),
    Sent(b"", b"", [], 1_700_000_000_001),
    Sent(b"key", None, [("only", b"a tombstone")], 1_699_999_999_999),
    Sent(None, b"four" * 100, [("twice", b"1"), ("twice", b"2")], 1_700_000_000_000),
    Sent(None, bytes(range(256)), [], 1_600_000_000_000),
]
SMALL_SEGMENTS = {"cleanup.policy": "compact", "segment.bytes": "4096", "min.cleanable.dirty.ratio": "0"}

Write = Callable[[EmbeddedBroker, str, Sequence[Sent], str], None]
"""Writes records to a topic with a codec, and returns when they are acknowledged."""
ReadAll = Callable[[EmbeddedBroker, str, str, int], list[Read]]
"""Reads so many records of a topic, in an isolation level."""


def write_by_warmlog(broker: EmbeddedBroker, topic: str, records: Sequence[Sent], codec: Any) -> None:
    with Producer(broker.address, compression=codec) as producer:
        for each in records:
            producer.send(topic, each.value, key=each.key, headers=[*each.headers], timestamp_ms=each.timestamp_ms)
        producer.flush()


def read_by_warmlog(broker: EmbeddedBroker, topic: str, isolation: Any, count: int) -> list[Read]:
    with Consumer(broker.address, topics=[topic], isolation=isolation) as consumer:
        read = [_as_read(each) for each in consumer.records(until="latest")]
    assert len(read) == count
    return read


def _as_read(record: Record) -> Read:
    return Read(record.offset, record.key, record.value, list(record.headers), record.timestamp_ms)


def write_by_aiokafka(broker: EmbeddedBroker, topic: str, records: Sequence[Sent], codec: str) -> None:
    async def write() -> None:
        compression = None if codec == "none" else codec
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.kafka_address, compression_type=compression, enable_idempotence=True
        ) as producer:
            for each in records:
                more = {"headers": [*each.headers], "timestamp_ms": each.timestamp_ms}
                await producer.send(topic, each.value, key=each.key, **more)

    asyncio.run(write())


def read_by_aiokafka(broker: EmbeddedBroker, topic: str, isolation: str, count: int) -> list[Read]:
    async def read() -> list[Any]:
        async with aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=broker.kafka_address, auto_offset_reset="earliest", isolation_level=isolation
        ) as consumer:
            return [await asyncio.wait_for(consumer.getone(), TIMEOUT_S) for _ in range(count)]

    return [Read(each.offset, each.key, each.value, list(each.headers), each.timestamp) for each in asyncio.run(read())]


def write_by_librdkafka(broker: EmbeddedBroker, topic: str, records: Sequence[Sent], codec: str) -> None:
    failures: list[Any] = []
    settings = {"bootstrap.servers": broker.kafka_address, "compression.type": codec, "enable.idempotence": True}
    producer = confluent_kafka.Producer(settings)
    for each in records:
        more = {"headers": [*each.headers], "timestamp": each.timestamp_ms}
        producer.produce(topic, each.value, each.key, on_delivery=lambda error, _: failures.append(error), **more)
    assert producer.flush(TIMEOUT_S) == 0
    assert failures == len(records) * [None]


def read_by_librdkafka(broker: EmbeddedBroker, topic: str, isolation: str, count: int) -> list[Read]:
    settings = {"bootstrap.servers": broker.kafka_address, "group.id": "unused", "isolation.level": isolation}
    consumer = confluent_kafka.Consumer(settings | {"enable.auto.commit": False, "check.crcs": True})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    read: list[Any] = []
    while len(read) < count:
        some = consumer.consume(count - len(read), TIMEOUT_S)
        assert some, f"{len(read)} records of {count} came"
        read += some
    consumer.close()
    assert [each.error() for each in read] == count * [None]
    return [Read(each.offset(), each.key(), each.value(), each.headers() or [], each.timestamp()[1]) for each in read]


def write_by_kafka_python(broker: EmbeddedBroker, topic: str, records: Sequence[Sent], codec: str) -> None:
    compression = None if codec == "none" else codec
    producer = kafka.KafkaProducer(bootstrap_servers=broker.kafka_address, compression_type=compression)
    for each in records:
        sent = producer.send(
            topic, each.value, key=each.key, headers=[*each.headers], timestamp_ms=each.timestamp_ms, partition=0
        )
    sent.get(TIMEOUT_S)
    producer.close()


def read_by_kafka_python(broker: EmbeddedBroker, topic: str, isolation: str, count: int) -> list[Read]:
    settings = {"auto_offset_reset": "earliest", "group_id": None, "isolation_level": isolation}
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.kafka_address, **settings)
    consumer.assign([kafka.TopicPartition(topic, 0)])
    read = [next(consumer) for _ in range(count)]
    consumer.close()
    return [Read(each.offset, each.key, each.value, list(each.headers), each.timestamp) for each in read]


WRITERS: dict[str, Write] = {
    "warmlog": write_by_warmlog,
    "aiokafka": write_by_aiokafka,
    "librdkafka": write_by_librdkafka,
    "kafka-python": write_by_kafka_python,
}
READERS: dict[str, ReadAll] = {
    "warmlog": read_by_warmlog,
    "aiokafka": read_by_aiokafka,
    "librdkafka": read_by_librdkafka,
    "kafka-python": read_by_kafka_python,
}


def writers_of(codec: str) -> list[str]:
    return [name for name in WRITERS if name != "kafka-python" or codec in KAFKA_PYTHON_CODECS]


def read_at_rest(broker: EmbeddedBroker, topic: str, written: int) -> list[Read]:
    """What compaction has left of so many records, at most half of them, once it leaves no fewer."""
    seen: list[list[Read]] = []

    def is_at_rest() -> bool:
        with Consumer(broker.address, topics=[topic]) as consumer:
            seen.append([_as_read(each) for each in consumer.records(until="latest")])
        return len(seen[-1]) < written // 2 and seen[-3:] == 3 * [seen[-1]]

    wait_until(is_at_rest)
    return seen[-1]
