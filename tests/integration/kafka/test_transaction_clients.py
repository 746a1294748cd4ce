"""Transactions of Kafka's clients from PyPI, of version 1, and of warmlog's: each reads what all have written."""

import asyncio
import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress

import aiokafka
import confluent_kafka
import pytest

import kafka
from pypi_clients import READERS, TIMEOUT_S
from warmlog.blocking import Admin, Producer
from warmlog.testing import EmbeddedBroker, embedded

INPUT = "input"
COMMITTED = [b"one", b"two", b"three"]
WRITTEN = [b"one", b"two", b"aborted", b"three"]
"""By each of the writers, in three transactions."""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded(kafka_listen="127.0.0.1:0") as broker:
        with Admin(broker.address) as admin:
            admin.create_topic(INPUT)
        with Producer(broker.address) as producer:
            for number in range(20):
                producer.send(INPUT, b"%d" % number)
        yield broker


@pytest.fixture(autouse=True)
def _unclosed() -> Iterator[None]:
    """kafka-python leaves some sockets to the garbage collector."""
    yield
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


def by_aiokafka(broker: EmbeddedBroker, topic: str) -> None:
    asyncio.run(_by_aiokafka(broker, topic))


async def _by_aiokafka(broker: EmbeddedBroker, topic: str) -> None:
    partition = aiokafka.TopicPartition(INPUT, 0)
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=broker.kafka_address, transactional_id="aiokafka"
    ) as producer:
        async with producer.transaction():
            await producer.send(topic, b"one")
            await producer.send(topic, b"two")
            await producer.send_offsets_to_transaction({partition: 2}, "aiokafka")
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"aborted")
        await producer.send_offsets_to_transaction({partition: 9}, "aiokafka")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send(topic, b"three")
            await producer.send_offsets_to_transaction({partition: 3}, "aiokafka")


def by_confluent(broker: EmbeddedBroker, topic: str) -> None:
    settings = {"bootstrap.servers": broker.kafka_address, "transactional.id": "confluent"}
    producer = confluent_kafka.Producer(settings)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.kafka_address, "group.id": "confluent"})
    group = consumer.consumer_group_metadata()

    def write(offset: int, *values: bytes) -> None:
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value)
        offsets = [confluent_kafka.TopicPartition(INPUT, 0, offset)]
        producer.send_offsets_to_transaction(offsets, group, TIMEOUT_S)

    producer.init_transactions(TIMEOUT_S)
    write(2, b"one", b"two")
    producer.commit_transaction(TIMEOUT_S)
    write(9, b"aborted")
    producer.flush(TIMEOUT_S)
    producer.abort_transaction(TIMEOUT_S)
    write(3, b"three")
    producer.commit_transaction(TIMEOUT_S)
    consumer.close()


def by_kafka_python(broker: EmbeddedBroker, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=broker.kafka_address, transactional_id="kafka-python")
    group = kafka.structs.ConsumerGroupMetadata("kafka-python", -1, "", None)

    def write(offset: int, *values: bytes) -> None:
        producer.begin_transaction()
        for value in values:
            producer.send(topic, value).get(TIMEOUT_S)
        offsets = {kafka.TopicPartition(INPUT, 0): kafka.OffsetAndMetadata(offset, "", -1)}
        producer.send_offsets_to_transaction(offsets, group)

    producer.init_transactions()
    write(2, b"one", b"two")
    producer.commit_transaction()
    write(9, b"aborted")
    producer.abort_transaction()
    write(3, b"three")
    producer.commit_transaction()
    producer.close()


def by_warmlog(broker: EmbeddedBroker, topic: str) -> None:
    """Version 2, in columns."""
    with Producer(broker.address, transactional_id="warmlog") as producer:
        with producer.transaction():
            producer.send(topic, b"one")
            producer.send(topic, b"two")
        with suppress(KeyError), producer.transaction():
            producer.send(topic, b"aborted").result()
            raise KeyError
        with producer.transaction():
            producer.send(topic, b"three")


WRITERS: list[Callable[[EmbeddedBroker, str], None]] = [by_aiokafka, by_confluent, by_kafka_python, by_warmlog]


def test_all_read_what_each_has_committed_and_the_offsets_with_it(broker: EmbeddedBroker) -> None:
    """One partition, so that transactions of both versions follow one another in it."""
    with Admin(broker.address) as admin:
        admin.create_topic("both")
        for write in WRITERS:
            write(broker, "both")
        for name in ("aiokafka", "confluent", "kafka-python"):
            (committed,) = admin.committed_offsets(name).values()
            assert committed.offset == 3, name
        states = {each.transactional_id: each.state for each in admin.list_transactions()}
    assert set(states.values()) == {"empty"}
    assert len(states) == len(WRITERS)
    for name, read in READERS.items():
        for isolation, expected in (("read_committed", COMMITTED), ("read_uncommitted", WRITTEN)):
            records = read(broker, "both", isolation, len(WRITERS) * len(expected))
            assert [each.value for each in records] == len(WRITERS) * expected, name


def test_the_next_incarnation_of_a_producer_aborts_what_the_one_before_has_left_open(broker: EmbeddedBroker) -> None:
    settings = {"bootstrap.servers": broker.kafka_address, "transactional.id": "replaced"}
    with Admin(broker.address) as admin:
        admin.create_topic("replaced")
    old, new = confluent_kafka.Producer(settings), confluent_kafka.Producer(settings)
    old.init_transactions(TIMEOUT_S)
    old.begin_transaction()
    old.produce("replaced", b"left open")
    assert old.flush(TIMEOUT_S) == 0
    new.init_transactions(TIMEOUT_S)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        old.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].fatal(), "the old one is fenced"
    new.begin_transaction()
    new.produce("replaced", b"new")
    new.commit_transaction(TIMEOUT_S)
    (record,) = READERS["warmlog"](broker, "replaced", "read_committed", 1)
    assert record.value == b"new"
