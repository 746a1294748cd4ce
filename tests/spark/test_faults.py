"""A broker that dies, or gives records up, while Spark reads: each record exactly once, or an error with the range."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from broker_process import BrokerProcess
from spark.topics import Record, Topics
from warmlog import Admin

pytestmark = pytest.mark.slow

PARTITIONS, BATCHES, PER_BATCH = 2, 40, 1_000
RECORDS = PARTITIONS * BATCHES * PER_BATCH


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker to be killed. Its topic "long" has values that say where they are."""
    with BrokerProcess(tmp_path_factory.mktemp("own"), log_retention_check_interval_ms=100) as broker:
        fill(broker, "long")
        yield broker


def fill(broker: BrokerProcess, topic: str, **configs: str) -> None:
    with Topics(broker.host, broker.port) as topics:
        topics.create(topic, PARTITIONS, segment_bytes="1048576", **configs)
        for partition in range(PARTITIONS):
            for first in range(0, BATCHES * PER_BATCH, PER_BATCH):
                values = [b"%d:%0200d" % (partition, offset) for offset in range(first, first + PER_BATCH)]
                topics.fill(topic, partition, [Record(None, value) for value in values])


def load(spark: SparkSession, broker: BrokerProcess, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("warmlog").option("bootstrap.servers", broker.address).option("subscribe", topic)
    return reader.options(**options).load()


def test_a_broker_killed_and_started_again_while_spark_reads_costs_no_record(
    spark: SparkSession, own_broker: BrokerProcess
) -> None:
    """Small fetches, and a job that reads slowly, so that it is read when the broker dies."""
    options = {"fetch.maxBytes": "64k", "fetch.inFlight": "2", "minPartitions": "4"}
    frame = load(spark, own_broker, "long", **options)
    assert frame.select("value").rdd.getNumPartitions() == 4  # planned

    def kill_and_start() -> None:
        for _ in range(3):
            time.sleep(0.7)
            own_broker.kill()
            own_broker.start()

    killer = threading.Thread(target=kill_and_start)
    killer.start()
    try:
        while killer.is_alive():
            (row,) = frame.selectExpr(
                "count(*)", "count(distinct partition, offset)", "count_if(int(split(value, ':')[1]) = offset)"
            ).collect()
            assert tuple(row) == (RECORDS, RECORDS, RECORDS)
    finally:
        killer.join()


def test_what_is_removed_between_planning_and_reading_is_an_error_or_skipped(
    spark: SparkSession, own_broker: BrokerProcess
) -> None:
    """Spark 4.0 plans again before it reads, and finds the same then."""
    fill(own_broker, "removed")
    start = '{"removed": {"0": 0, "1": 0}}'
    strict, lenient = (
        load(spark, own_broker, "removed", startingOffsets=start, failOnDataLoss=fails) for fails in ("true", "false")
    )
    assert strict.count() == lenient.count() == RECORDS

    async def remove() -> None:
        async with Admin(own_broker.address) as admin:
            await admin.delete_records({("removed", 1): 15_500})

    asyncio.run(remove())
    gone = r"removed-1 offsets 0 to 40000.*(offsets 0 to 15499 are gone|gone before 15500)"
    with pytest.raises(Exception, match=gone):
        strict.count()
    first = "min(offset) filter (where partition = 1)"
    (row,) = lenient.selectExpr("count(*)", "count(distinct partition, offset)", first).collect()
    assert tuple(row) == (RECORDS - 15_500, RECORDS - 15_500, 15_500)


def test_what_retention_took_is_an_error_or_skipped(spark: SparkSession, own_broker: BrokerProcess) -> None:
    fill(own_broker, "trimmed", retention_bytes="4194304")
    strict, lenient = (
        load(spark, own_broker, "trimmed", startingOffsets='{"trimmed": {"0": 0, "1": 0}}', failOnDataLoss=fails)
        for fails in ("true", "false")
    )
    ends = {"endingOffsets": '{"trimmed": {"0": 40000, "1": 40000}}'}
    deadline = time.monotonic() + 60
    while (left := load(spark, own_broker, "trimmed", **ends).count()) == RECORDS and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left < RECORDS
    with pytest.raises(Exception, match=r"trimmed-0 offsets 0 to 40000.* gone before|are gone, the log starts at"):
        strict.count()
    (row,) = lenient.selectExpr("count(*)", "count(distinct partition, offset)", "max(offset)").collect()
    assert row[0] == row[1]
    assert 0 < row[0] < RECORDS
    assert row[2] == BATCHES * PER_BATCH - 1
