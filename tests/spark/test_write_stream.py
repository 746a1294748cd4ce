"""`df.writeStream.format("warmlog")` in a real session, against a real broker.

Tests make Spark run micro-batches again, with both kinds of delivery.
"""

import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from broker_process import BrokerProcess
from spark.drivers import committed, kill_while_streaming
from spark.reading import committed as committed_values
from spark.reading import read_back
from spark.topics import Topics

WAIT_S = 600.0


def counted(broker: BrokerProcess, topic: str) -> Counter[bytes | None]:
    """How often each value is in the log."""
    return Counter(record.value for record in read_back(broker, topic))


def numbers_of(*batches: int) -> set[bytes | None]:
    """The values of these micro-batches of `start_stream`."""
    return {b"%d" % number for batch in batches for number in range(100 * batch, 100 * batch + 100)}


def start_stream(
    spark: SparkSession, broker: BrokerProcess, topic: str, checkpoint: Path, **options: Any
) -> StreamingQuery:
    """100 numbers in each micro-batch, the same ones whenever it is run again."""
    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch="100", numPartitions="2").load()
    writer = source.selectExpr("cast(value as string) as value").writeStream.format("warmlog").options(topic=topic)
    writer = writer.option("bootstrap.servers", broker.address).option("checkpointLocation", str(checkpoint))
    return writer.options(**options).trigger(processingTime="100 milliseconds").start()


def run_until(query: StreamingQuery, commit_file: Path) -> None:
    """Stops the query once the micro-batch of that commit file is done."""
    deadline = time.monotonic() + WAIT_S
    while not commit_file.exists():
        assert query.exception() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    query.stop()


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_micro_batch_that_is_run_again_is_written_again_only_at_least_once(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path, delivery: str
) -> None:
    topic = topics.create(f"stream-{delivery}", partitions=2)
    commits = tmp_path / "commits"
    run_until(start_stream(spark, broker, topic, tmp_path, delivery=delivery), commits / "2")
    done = committed(commits)
    found = counted(broker, topic)
    assert all(found[value] == 1 for value in numbers_of(*done))

    last = done[-1]
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink(missing_ok=True)
    for name in (str(last + 1), f".{last + 1}.crc"):  # planned, not done when the query was stopped
        (tmp_path / "offsets" / name).unlink(missing_ok=True)
    run_until(start_stream(spark, broker, topic, tmp_path, delivery=delivery), commits / str(last))
    found = counted(broker, topic)
    assert all(found[value] == (1 if delivery == "exactly-once" else 2) for value in numbers_of(last))
    assert all(found[value] == 1 for value in numbers_of(*range(last)))
    shutil.rmtree(tmp_path)


def test_a_stream_that_would_overwrite_is_refused_in_words(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch="10").load()
    counts = source.groupBy("value").count().selectExpr("cast(value as string) as value")
    writer = counts.writeStream.format("warmlog").options(topic=topics.create("complete")).outputMode("complete")
    writer = writer.option("bootstrap.servers", broker.address).option("checkpointLocation", str(tmp_path))
    query = writer.start()
    with pytest.raises(PySparkException, match=r"a log can only be appended to: write with \.outputMode"):
        query.awaitTermination(WAIT_S)


DRIVER = """
delivery = directory.rpartition("/")[2]
source = session.readStream.format("rate-micro-batch").options(rowsPerBatch="100", numPartitions="2").load()
writer = source.selectExpr("cast(value as string) as value").writeStream.format("warmlog")
writer = writer.option("topic", "killed-stream-" + delivery).option("bootstrap.servers", broker)
writer = writer.option("delivery", delivery)
writer = writer.option("checkpointLocation", directory + "/checkpoint")
writer.trigger(processingTime="0 seconds").start().awaitTermination()
"""


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_after_kill_9_of_the_driver_every_record_is_there_and_at_least_once_unfinished_micro_batches_are_repeated(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path, delivery: str
) -> None:
    topic = topics.create(f"killed-stream-{delivery}", partitions=2)
    directory = tmp_path / delivery
    unfinished = [kill_while_streaming(DRIVER, broker.address, directory, after=3) + 1 for _ in range(2)]
    checkpoint = directory / "checkpoint"
    query = start_stream(spark, broker, topic, checkpoint, delivery=delivery)
    run_until(query, checkpoint / "commits" / str(unfinished[-1] + 1))
    found = committed_values(broker, topic)
    done = committed(checkpoint / "commits")
    assert numbers_of(*done) <= set(found)
    repeated = {value for value, count in found.items() if count > 1}
    assert repeated & numbers_of(*done) <= numbers_of(*unfinished)
    assert max(found.values()) <= 2
    assert delivery == "at-least-once" or not repeated
