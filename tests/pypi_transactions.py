"""Transactions of Kafka's clients from PyPI, which are of version 1, and of warmlog's, of version 2.

Each writer makes three of them, of which the second is aborted; Kafka's commit offsets of INPUT with them.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import aiokafka
import confluent_kafka

import kafka
from pypi_clients import TIMEOUT_S
from warmlog.blocking import Producer
from warmlog.testing import EmbeddedBroker

INPUT = "input"
COMMITTED = [b"one", b"two", b"three"]
WRITTEN = [b"one", b"two", b"aborted", b"three"]
"""By each of the writers, in three transactions."""


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
