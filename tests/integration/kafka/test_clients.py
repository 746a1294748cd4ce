"""Three clients of Kafka from PyPI, one fast test each: they write, read, and read what warmlog's client wrote."""

import asyncio
import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest

import kafka
from certificates import Certificates
from warmlog.blocking import Admin, Consumer, Producer
from warmlog.testing import EmbeddedBroker, embedded
from warmlog_protocol.errors import InvalidConfig

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
VALUES = [b"one", b"", None, b"four" * 100]
HEADERS = [("trace", b"7"), ("empty", b"")]
TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded(kafka_listen="127.0.0.1:0", auto_create_topics_enable=True) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _unclosed() -> Iterator[None]:
    """kafka-python leaves some sockets to the garbage collector."""
    yield
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


def written_here(broker: EmbeddedBroker, topic: str, codec: str) -> None:
    """Append columns after what a client of Kafka wrote."""
    with Producer(broker.address, compression=codec) as producer:
        for value in VALUES:
            producer.send(topic, value, key=b"here", headers=HEADERS)
        producer.flush()


def assert_read_here(broker: EmbeddedBroker, topic: str, key: bytes) -> None:
    with Consumer(broker.address, topics=[topic]) as consumer:
        records = list(consumer.records(until="latest"))
    assert [record.value for record in records] == 2 * VALUES
    assert [record.key for record in records] == 4 * [key] + 4 * [b"here"]
    assert [list(record.headers) for record in records] == 8 * [HEADERS]
    assert [record.offset for record in records] == list(range(8))


@pytest.mark.parametrize("codec", CODECS)
def test_confluent_kafka(broker: EmbeddedBroker, codec: str) -> None:
    topic = f"confluent-{codec}"
    failures: list[Any] = []
    settings = {"bootstrap.servers": broker.kafka_address, "compression.type": codec, "enable.idempotence": True}
    producer = confluent_kafka.Producer(settings)
    for value in VALUES:
        key = b"librdkafka"
        producer.produce(topic, value, key, headers=HEADERS, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert failures == 4 * [None]
    written_here(broker, topic, codec)
    settings = {"bootstrap.servers": broker.kafka_address, "group.id": "unused", "check.crcs": True}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    read: list[Any] = []
    while len(read) < 8:
        read += consumer.consume(8 - len(read), TIMEOUT_S)
    consumer.close()
    assert [message.error() for message in read] == 8 * [None]
    assert [message.value() for message in read] == 2 * VALUES
    assert [message.headers() for message in read] == 8 * [HEADERS]
    assert [message.offset() for message in read] == list(range(8))
    assert_read_here(broker, topic, b"librdkafka")


@pytest.mark.parametrize("codec", CODECS)
async def test_aiokafka(broker: EmbeddedBroker, codec: str) -> None:
    topic = f"aiokafka-{codec}"
    compression = None if codec == "none" else codec
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=broker.kafka_address, compression_type=compression, enable_idempotence=True
    ) as producer:
        for value in VALUES:
            await producer.send_and_wait(topic, value, key=b"aiokafka", headers=HEADERS)
    await asyncio.to_thread(written_here, broker, topic, codec)
    async with aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=broker.kafka_address, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        read = [await asyncio.wait_for(consumer.getone(), TIMEOUT_S) for _ in range(8)]
        assert await consumer.end_offsets([aiokafka.TopicPartition(topic, 0)]) == {aiokafka.TopicPartition(topic, 0): 8}
    assert [record.value for record in read] == 2 * VALUES
    assert [list(record.headers) for record in read] == 8 * [HEADERS]
    assert [record.offset for record in read] == list(range(8))
    await asyncio.to_thread(assert_read_here, broker, topic, b"aiokafka")


@pytest.mark.parametrize("codec", ["none", "gzip"])  # the others need more libraries
def test_kafka_python(broker: EmbeddedBroker, codec: str) -> None:
    topic = f"kafka-python-{codec}"
    compression = None if codec == "none" else codec
    producer = kafka.KafkaProducer(bootstrap_servers=broker.kafka_address, compression_type=compression)
    for offset, value in enumerate(VALUES):
        sent = producer.send(topic, value, key=b"kafka-python", headers=HEADERS)
        assert sent.get(TIMEOUT_S).offset == offset
    producer.close()
    written_here(broker, topic, codec)
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.kafka_address, auto_offset_reset="earliest", group_id=None)
    consumer.assign([kafka.TopicPartition(topic, 0)])
    read = [next(consumer) for _ in range(8)]
    consumer.close()
    assert [record.value for record in read] == 2 * VALUES
    assert [list(record.headers) for record in read] == 8 * [HEADERS]
    assert [record.offset for record in read] == list(range(8))
    assert_read_here(broker, topic, b"kafka-python")


def test_the_time_of_appending_is_the_same_for_all(broker: EmbeddedBroker) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("appended", configs={"message.timestamp.type": "LogAppendTime"})
    written_here(broker, "appended", "none")
    producer = kafka.KafkaProducer(bootstrap_servers=broker.kafka_address)
    told = producer.send("appended", b"by kafka-python", timestamp_ms=1).get(TIMEOUT_S)
    producer.close()
    with Consumer(broker.address, topics=["appended"]) as own:
        times_ms = [record.timestamp_ms for record in own.records(until="latest")]
    assert times_ms[-1] == told.timestamp > 1_700_000_000_000
    reader = kafka.KafkaConsumer(bootstrap_servers=broker.kafka_address, auto_offset_reset="earliest", group_id=None)
    reader.assign([kafka.TopicPartition("appended", 0)])
    read = [next(reader) for _ in range(5)]
    reader.close()
    assert [(record.timestamp_type, record.timestamp) for record in read] == [(1, time_ms) for time_ms in times_ms]


def test_a_restart_keeps_the_address() -> None:
    with embedded(kafka_listen="127.0.0.1:0", auto_create_topics_enable=True) as broker:
        address = broker.kafka_address
        broker.stop()
        broker.start()
        assert broker.kafka_address == address
        producer = kafka.KafkaProducer(bootstrap_servers=address)
        assert producer.send("after", b"a restart").get(TIMEOUT_S).offset == 0
        producer.close()


def test_pytest_has_a_broker_for_clients_of_kafka(warmlog_kafka_address: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=warmlog_kafka_address)
    assert producer.send("orders", b"one").get(TIMEOUT_S).offset == 0
    producer.close()


def test_a_broker_for_tests_has_tls_for_clients_of_kafka_too(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    with embedded(
        kafka_listen="localhost:0", tls_cert_file=certificates.broker, auto_create_topics_enable=True
    ) as broker:
        settings = {"security.protocol": "ssl", "ssl.ca.location": certificates.ca}
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka_address, **settings})
        producer.produce("encrypted", b"one")
        assert producer.flush(TIMEOUT_S) == 0


def test_without_kafka_listen_there_is_no_address_for_clients_of_kafka() -> None:
    with embedded() as broker, pytest.raises(RuntimeError, match="kafka_listen"):
        _ = broker.kafka_address
    with pytest.raises(InvalidConfig, match=r"kafka\.listen"):
        embedded(kafka_listen="nowhere")
