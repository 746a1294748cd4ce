"""Transactions of Kafka's clients from PyPI, of version 1, and of warmlog's: each reads what all have written."""

import gc
import warnings
from collections.abc import Iterator

import confluent_kafka
import pytest

from pypi_clients import READERS, TIMEOUT_S
from pypi_transactions import COMMITTED, INPUT, WRITERS, WRITTEN
from warmlog.blocking import Admin, Producer
from warmlog.testing import EmbeddedBroker, embedded


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
