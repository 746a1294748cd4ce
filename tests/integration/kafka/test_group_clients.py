"""Groups of three clients of Kafka from PyPI: they share partitions, hand them over, and go on where they stopped."""

import asyncio
import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Event, Thread
from typing import Any, ClassVar

import aiokafka
import confluent_kafka
import pytest

import kafka
from waiting import wait_until
from warmlog.blocking import Admin, Producer
from warmlog.testing import EmbeddedBroker, embedded
from warmlog_broker.coordinator.group.coordinator import GroupCoordinator
from warmlog_protocol.errors import ApiError, CoordinatorLoadInProgress, NotCoordinator

TIMEOUT_S = 40
PARTITIONS = 4
Read = dict[int, list[int]]
"""Offsets by partition."""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    settings = {"group_heartbeat_interval_ms": 300, "group_initial_rebalance_delay_ms": 100}
    with embedded(kafka_listen="127.0.0.1:0", **settings) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _unclosed() -> Iterator[None]:
    """kafka-python leaves some sockets to the garbage collector."""
    yield
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


class Reader:
    """A thread with a consumer, which reads and commits until it is told to stop."""

    def __init__(self, address: str, group: str, topic: str) -> None:
        self.settings = address, group, topic
        self.assigned: frozenset[int] = frozenset()
        self.read: Read = {}
        self._stop = Event()
        self._problem: BaseException | None = None
        self._thread = Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the group."""
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        if self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        try:
            self.poll(self._stop.is_set)
        except BaseException as error:
            self._problem = error

    def poll(self, is_over: Callable[[], bool]) -> None:
        raise NotImplementedError

    def note(self, partition: int, offset: int) -> None:
        self.read.setdefault(partition, []).append(offset)


class AioKafka(Reader):
    def poll(self, is_over: Callable[[], bool]) -> None:
        asyncio.run(self._poll(is_over))

    async def _poll(self, is_over: Callable[[], bool]) -> None:
        address, group, topic = self.settings
        async with aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
        ) as consumer:
            while not is_over():
                found = await consumer.getmany(timeout_ms=50)
                for records in found.values():
                    for record in records:
                        self.note(record.partition, record.offset)
                if found:
                    await consumer.commit()
                self.assigned = frozenset(each.partition for each in consumer.assignment())


class KafkaPython(Reader):
    def poll(self, is_over: Callable[[], bool]) -> None:
        address, group, topic = self.settings
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
        )
        while not is_over():
            found = consumer.poll(timeout_ms=50)
            for records in found.values():
                for record in records:
                    self.note(record.partition, record.offset)
            if found:
                consumer.commit()
            self.assigned = frozenset(each.partition for each in consumer.assignment())
        consumer.close()


class Confluent(Reader):
    more: ClassVar[dict[str, Any]] = {"partition.assignment.strategy": "range,roundrobin", "heartbeat.interval.ms": 200}

    def poll(self, is_over: Callable[[], bool]) -> None:
        address, group, topic = self.settings
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **self.more,
            }
        )
        consumer.subscribe([topic])
        while not is_over():
            message = consumer.poll(0.05)
            if message is not None:
                assert message.error() is None, message.error()
                self.note(message.partition(), message.offset())
                consumer.commit(message, asynchronous=False)
            self.assigned = frozenset(each.partition for each in consumer.assignment())
        consumer.close()


class Cooperative(Confluent):
    more: ClassVar[dict[str, Any]] = {
        "partition.assignment.strategy": "cooperative-sticky",
        "heartbeat.interval.ms": 200,
    }


class Kip848(Confluent):
    more: ClassVar[dict[str, Any]] = {"group.protocol": "consumer"}


def filled(broker: EmbeddedBroker, topic: str, records: int) -> None:
    """Append records to each partition of a topic, which is created if need be."""
    with Admin(broker.address) as admin:
        if topic not in {each.name for each in admin.list_topics()}:
            admin.create_topic(topic, partitions=PARTITIONS)
    with Producer(broker.address) as producer:
        for number in range(records):
            for partition in range(PARTITIONS):
                producer.send(topic, b"%d" % number, partition=partition)
        producer.flush()


def are_shared(*readers: Reader) -> bool:
    found = [partition for reader in readers for partition in reader.assigned]
    return sorted(found) == list(range(PARTITIONS)) and all(reader.assigned for reader in readers)


def offsets_of(*readers: Reader) -> Read:
    return {
        partition: sorted(offset for reader in readers for offset in reader.read.get(partition, []))
        for partition in range(PARTITIONS)
    }


def every(count: int) -> Read:
    """So many offsets of each partition, each once."""
    return {partition: list(range(count)) for partition in range(PARTITIONS)}


@pytest.mark.parametrize("kind", [AioKafka, KafkaPython, Confluent, Cooperative, Kip848])
def test_members_share_partitions_and_go_on_where_another_stopped(broker: EmbeddedBroker, kind: type[Reader]) -> None:
    topic = f"shared-{kind.__name__}"
    filled(broker, topic, 5)
    with kind(broker.kafka_address, topic, topic) as first:
        wait_until(lambda: offsets_of(first) == every(5))
        with kind(broker.kafka_address, topic, topic) as second:
            wait_until(lambda: are_shared(first, second))
            filled(broker, topic, 5)
            wait_until(lambda: offsets_of(first, second) == every(10))
        wait_until(lambda: are_shared(first))
    with Admin(broker.address) as admin:
        assert admin.describe_group(topic).state == "empty"
        committed = admin.committed_offsets(topic)
        assert {place: each.offset for place, each in committed.items()} == {
            (topic, partition): 10 for partition in range(PARTITIONS)
        }


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (AioKafka, CoordinatorLoadInProgress),
        (AioKafka, NotCoordinator),
        (KafkaPython, CoordinatorLoadInProgress),
        (KafkaPython, NotCoordinator),
        (Confluent, CoordinatorLoadInProgress),  # after the other it reads nothing more, with Kafka too
    ],
)
def test_a_member_goes_on_at_what_is_committed_although_its_coordinator_cannot_tell_at_first(
    broker: EmbeddedBroker, kind: type[Reader], error: type[ApiError], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"untold-{kind.__name__}-{error.__name__}"
    filled(broker, topic, 2)
    with kind(broker.kafka_address, topic, topic) as first:
        wait_until(lambda: offsets_of(first) == every(2))
    refusals = iter([error("retry")])
    fetch_offsets = GroupCoordinator.fetch_offsets

    def refused_at_first(*arguments: Any) -> Any:
        for refusal in refusals:
            raise refusal
        return fetch_offsets(*arguments)

    monkeypatch.setattr(GroupCoordinator, "fetch_offsets", refused_at_first)
    with kind(broker.kafka_address, topic, topic) as second:
        wait_until(lambda: bool(second.assigned))
        filled(broker, topic, 1)
        wait_until(lambda: all(offsets_of(second).values()))
    assert offsets_of(second) == {partition: [2] for partition in range(PARTITIONS)}
    assert next(refusals, None) is None


def test_members_of_three_clients_share_one_group(broker: EmbeddedBroker) -> None:
    filled(broker, "mixed", 3)
    with ExitStack() as members:
        readers = [
            members.enter_context(kind(broker.kafka_address, "mixed", "mixed"))
            for kind in (AioKafka, KafkaPython, Confluent)
        ]
        wait_until(lambda: are_shared(*readers))
        filled(broker, "mixed", 3)
        wait_until(lambda: {place: sorted({*read}) for place, read in offsets_of(*readers).items()} == every(6))


def test_a_killed_client_is_replaced_by_its_next_process_at_once(broker: EmbeddedBroker) -> None:
    filled(broker, "static", 2)
    settings = {
        "bootstrap.servers": broker.kafka_address,
        "group.id": "static",
        "group.instance.id": "one",
        "auto.offset.reset": "earliest",
    }
    first, second = confluent_kafka.Consumer(settings), confluent_kafka.Consumer(settings)
    first.subscribe(["static"])
    assert first.poll(TIMEOUT_S) is not None
    second.subscribe(["static"])
    assert second.poll(TIMEOUT_S) is not None, "the session of the first lasts 45 s"
    second.close()
    error = None
    while error is None:
        message = first.poll(TIMEOUT_S)
        assert message is not None
        error = message.error()
    assert "fenced" in error.str()
    first.close()
