"""A broker whose second listener speaks Kafka's protocol, and a connection to it."""

from collections.abc import Iterator

import pytest

from broker_thread import BrokerThread
from kafka_client import KafkaClient


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    data_dir = tmp_path_factory.mktemp("broker") / "data"
    settings = {"kafka_listen": "127.0.0.1:0", "auto_create_topics_enable": "true"}
    # The records of `rows` are old enough to be given up.
    with BrokerThread(data_dir, **settings, log_retention_check_interval_ms=3_600_000) as running:
        yield running


@pytest.fixture
def kafka_address(broker: BrokerThread) -> str:
    return broker.broker.listening.addresses["kafka"]


@pytest.fixture
def client(kafka_address: str) -> Iterator[KafkaClient]:
    with KafkaClient(kafka_address) as kafka_client:
        yield kafka_client
