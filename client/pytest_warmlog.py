"""pytest's fixtures: a broker for the session, a topic for each test, and clients without an event loop.

::

    def test_orders_are_written(warmlog_topic, warmlog_producer, warmlog_consumer):
        warmlog_producer.send(warmlog_topic, b"one").result()
        assert [record.value for record in warmlog_consumer.records(until="latest")] == [b"one"]

pytest loads this module in every project that has warmlog installed. So it is outside the package and imports nothing
of it until a fixture is used. A project that needs a broker with settings defines its own `warmlog_broker`:

::

    @pytest.fixture(scope="session")
    def warmlog_broker():
        with warmlog.testing.embedded(num_partitions=3) as broker:
            yield broker
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from warmlog.blocking import Admin, Consumer, Producer
    from warmlog.testing import EmbeddedBroker

NAME_CHARACTERS = 100
"""Characters of a test's name in that of its topic, which may have 249."""


@pytest.fixture(scope="session")
def warmlog_broker() -> "Iterator[EmbeddedBroker]":
    """A broker in this process, with its data in a temporary directory: `.address` is where clients connect."""
    from warmlog.testing import embedded

    with embedded() as broker:
        yield broker


@pytest.fixture(scope="session")
def warmlog_kafka_address() -> "Iterator[str]":
    """HOST:PORT of a broker of its own for clients of Kafka, which creates topics that they ask for."""
    from warmlog.testing import embedded

    with embedded(kafka_listen="127.0.0.1:0", auto_create_topics_enable=True) as broker:
        yield broker.kafka_address


@pytest.fixture
def warmlog_admin(warmlog_broker: "EmbeddedBroker") -> "Iterator[Admin]":
    """A `warmlog.blocking.Admin`."""
    from warmlog.blocking import Admin

    with Admin(warmlog_broker.address) as admin:
        yield admin


@pytest.fixture
def warmlog_topic(request: pytest.FixtureRequest, warmlog_admin: "Admin") -> str:
    """The name of a topic of this test alone. It stays until the broker ends, as clients may still use it."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:NAME_CHARACTERS].strip("-")
    name = f"{stem}-{uuid4().hex[:8]}"
    warmlog_admin.create_topic(name)
    return name


@pytest.fixture
def warmlog_producer(warmlog_broker: "EmbeddedBroker") -> "Iterator[Producer]":
    """A `warmlog.blocking.Producer`."""
    from warmlog.blocking import Producer

    with Producer(warmlog_broker.address) as producer:
        yield producer


@pytest.fixture
def warmlog_consumer(warmlog_broker: "EmbeddedBroker", warmlog_topic: str) -> "Iterator[Consumer]":
    """A `warmlog.blocking.Consumer` of `warmlog_topic`, from its first record on."""
    from warmlog.blocking import Consumer

    with Consumer(warmlog_broker.address, topics=[warmlog_topic]) as consumer:
        yield consumer
