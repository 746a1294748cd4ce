"""Brokers for tests of clients of Kafka: `embedded` and the fixture. What clients read and write: `test_crossings`."""

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

import kafka
from certificates import Certificates
from warmlog.testing import embedded
from warmlog_protocol.errors import InvalidConfig

TIMEOUT_S = 40


@pytest.fixture(autouse=True)
def _unclosed() -> Iterator[None]:
    """kafka-python leaves some sockets to the garbage collector."""
    yield
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


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
