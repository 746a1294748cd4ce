"""In place of tests/conftest.py of aiokafka: its integration tests against the broker at BOOTSTRAP=HOST:PORT."""

import asyncio
import gc
import os
from collections.abc import Iterator

import pytest

HOST, PORT = os.environ["BOOTSTRAP"].split(":")
KAFKA_VERSION = "2.8.1"
"""What the tests take the broker for: the newest version that they know."""
UNUSED_PORT = 1


def pytest_addoption(parser: pytest.Parser) -> None:
    """Tests that ask for an image ask for the broker."""
    parser.addoption("--docker-image", default=f"image:2.13_{KAFKA_VERSION}")


@pytest.fixture(scope="class")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    if not loop.is_closed():
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    gc.collect()
    asyncio.set_event_loop(None)


@pytest.fixture(autouse=True)
def collect_garbage() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(scope="session")
def ssl_folder() -> None:
    pytest.skip("the tests with TLS bring their own certificates")


@pytest.fixture(scope="class")
def setup_test_class_serverless(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> None:
    request.cls.loop = loop


@pytest.fixture(scope="class")
def setup_test_class(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> None:
    given = request.cls
    given.loop = loop
    given.hosts = [f"{HOST}:{PORT}"]
    given.kafka_host, given.kafka_port, given.kafka_version = HOST, int(PORT), KAFKA_VERSION
    given.kafka_ssl_port = given.kafka_sasl_plain_port = given.kafka_sasl_ssl_port = UNUSED_PORT
    given.ssl_folder = given.acl_manager = given.kerberos_utils = given.kafka_config = None
