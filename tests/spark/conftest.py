"""One Spark session and one real broker for all tests here: a session takes ten seconds to start."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker_process import BrokerProcess
from spark.quick_start import ClassArchive
from spark.topics import Topics


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
    directory = tmp_path_factory.mktemp("spark")
    # By its name: Spark finds no Python data sources where the path of the Python has a space in it.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["PYSPARK_PYTHON"] = Path(sys.executable).name
    paths = [str(Path(__file__).parent / "preloading"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    archive = ClassArchive()
    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(directory))
        .config("spark.driver.extraJavaOptions", f"{archive.java_options} -Dderby.system.home={directory}")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    archive.stop(session)


@pytest.fixture
def times_without_zone(spark: SparkSession) -> Iterator[None]:
    """In this session `timestamp` means TIMESTAMP_NTZ."""
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    yield
    spark.conf.unset("spark.sql.timestampType")
