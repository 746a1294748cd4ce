"""The same data source on Sail, a Spark in Rust: only where it is installed (`pip install pysail pyspark-client`)."""

from collections.abc import Iterator

import pytest

from broker_process import BrokerProcess
from spark.topics import Record, Topics

pysail = pytest.importorskip("pysail", reason="pysail is not installed: pip install pysail pyspark-client")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def sail() -> Iterator[object]:
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    from warmlog.spark.source import WarmlogDataSource

    server = SparkConnectServer()
    server.start(background=True)
    _, port = server.listening_address
    session = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    session.dataSource.register(WarmlogDataSource)
    yield session
    session.stop()
    server.stop()


def test_sail_reads_the_columns_that_are_asked_for(sail: object, broker: BrokerProcess, topics: Topics) -> None:
    topics.create("sail", partitions=2)
    stored = [
        each
        for number in range(10)
        for each in topics.fill("sail", number % 2, [Record(b"k", b"%d" % i, 1_000 * i) for i in range(100)])
    ]
    reader = sail.read.format("warmlog").option("bootstrap.servers", broker.address).option("subscribe", "sail")  # type: ignore[attr-defined]
    assert reader.load().count() == len(stored)
    rows = reader.option("columns", "partition, offset, value string, timestamp").load().collect()
    assert sorted((row.partition, row.offset, row.value) for row in rows) == sorted(
        (record.partition, record.offset, (record.value or b"").decode()) for record in stored
    )
