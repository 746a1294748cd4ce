"""One Spark session and one real broker for all tests here: a session takes ten seconds to start."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from broker_process import BrokerProcess
from spark.quick_start import start_session
from spark.topics import Topics

PYSPARK_LEAVES = ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning")
"""Sockets of its own to the garbage collector, which may come by in any test that shares its process."""


def pytest_itemcollected(item: pytest.Item) -> None:
    for warning in PYSPARK_LEAVES:
        item.add_marker(pytest.mark.filterwarnings(f"ignore::{warning}"))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(scope="session")
def topics(broker: BrokerProcess) -> Iterator[Topics]:
    with Topics(broker.host, broker.port) as topics:
        yield topics


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def times_without_zone(spark: SparkSession) -> Iterator[None]:
    """In this session `timestamp` means TIMESTAMP_NTZ."""
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    yield
    spark.conf.unset("spark.sql.timestampType")
