"""Exactly once with real Spark: pipelines between topics, drivers killed by kill -9, checkpoints copied and deleted."""

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from broker_process import BrokerProcess
from spark.drivers import PATIENCE_S, PREAMBLE
from spark.reading import committed
from spark.topics import Record, Topics


def fill(topics: Topics, topic: str, start: int, stop: int) -> None:
    for number in range(start, stop):
        topics.fill(topic, number % 2, [Record(b"%d" % number, b"%d" % number)])


def values(start: int, stop: int) -> Counter[bytes | None]:
    return Counter(b"%d" % number for number in range(start, stop))


def copy_stream(
    spark: SparkSession, broker: BrokerProcess, source: str, sink: str, checkpoint: Path, at_most: int = 20
) -> None:
    """Copy what is new in micro-batches of about `at_most` records, each of whose tasks is killed once."""

    def kill_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    stream = (
        spark.readStream.format("warmlog")
        .option("bootstrap.servers", broker.address)
        .options(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=str(at_most))
        .load()
        .select("key", "value")
    )
    query = (
        stream.mapInArrow(kill_once, stream.schema)
        .writeStream.format("warmlog")
        .option("bootstrap.servers", broker.address)
        .option("topic", sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def copy_all(
    spark: SparkSession,
    broker: BrokerProcess,
    source: str,
    sink: str,
    checkpoint: Path,
    total: int,
    at_most: int = 20,
) -> None:
    """Copy until the sink has so many records: in PySpark 4.0 and 4.1 a run of `copy_stream` is one micro-batch."""
    while sum(committed(broker, sink).values()) < total:
        before = sum(committed(broker, sink).values())
        copy_stream(spark, broker, source, sink, checkpoint, at_most)
        assert sum(committed(broker, sink).values()) > before


def test_a_stream_from_topic_to_topic_is_exactly_once_although_tasks_are_killed_and_only_its_checkpoint_counts(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    source, sink = topics.create("piped-source", partitions=2), topics.create("piped-sink", partitions=3)
    checkpoint, old = tmp_path / "checkpoint", tmp_path / "old"
    fill(topics, source, 0, 40)
    copy_all(spark, broker, source, sink, checkpoint, 40)
    assert committed(broker, sink) == values(0, 40)
    shutil.copytree(checkpoint, old)
    for count in (60, 80):
        fill(topics, source, count - 20, count)
        copy_all(spark, broker, source, sink, checkpoint, count)
    assert committed(broker, sink) == values(0, 80)
    frame = spark.read.format("warmlog").option("bootstrap.servers", broker.address).option("subscribe", sink)
    assert Counter(bytes(row.value) for row in frame.load().collect()) == values(0, 80)

    other = topics.create("piped-elsewhere", partitions=3)
    copy_all(spark, broker, source, other, shutil.copytree(old, tmp_path / "elsewhere"), 40, 40)
    assert committed(broker, other) == values(40, 80), "a copied checkpoint with another topic is another stream"
    with pytest.raises(PySparkException, match="its state was restored from an old copy"):
        copy_stream(spark, broker, source, sink, old)
    assert committed(broker, sink) == values(0, 80)
    copy_all(spark, broker, source, sink, tmp_path / "new", 160, 40)
    assert committed(broker, sink) == values(0, 80) + values(0, 80), "a new checkpoint is another stream"


def test_a_batch_with_a_name_and_a_version_is_written_once_to_a_topic_however_often_it_is_run(
    spark: SparkSession, broker: BrokerProcess, topics: Topics
) -> None:
    topic, other = topics.create("named", partitions=2), topics.create("named-too", partitions=2)

    def write(version: int, start: int, stop: int, topic: str = topic) -> None:
        frame = spark.range(start, stop, 1, 3).selectExpr("cast(id as string) as value")
        options = {"topic": topic, "txnAppId": "nightly", "txnVersion": str(version)}
        writer = frame.write.format("warmlog").option("bootstrap.servers", broker.address)
        writer.options(**options).mode("append").save()

    for version, start, stop in [(3, 0, 50), (3, 0, 50), (4, 50, 50), (4, 50, 50), (7, 50, 90), (7, 50, 90)]:
        write(version, start, stop)
    assert committed(broker, topic) == values(0, 90)
    write(7, 50, 90, other)
    assert committed(broker, other) == values(50, 90), "as with Delta, one name serves several destinations"
    with pytest.raises(PySparkException, match="has committed version 7, and is asked for version 3"):
        write(3, 0, 50)
    assert committed(broker, topic) == values(0, 90)


DYING = """
import os
import signal

from warmlog.spark.source import WarmlogDataSource

DRIVER = os.getpid()

class Dying(WarmlogDataSource):
    @classmethod
    def name(cls):
        return "dying"

    def streamWriter(self, schema, overwrite):
        writer = super().streamWriter(schema, overwrite)
        commit, dies_before = writer.commit, self.options["topic"] == "died-before"

        def die():
            os.killpg(DRIVER, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

        def commit_and_die(messages, batchId):
            if batchId == 2 and dies_before:
                die()
            commit(messages, batchId)
            if batchId == 2:
                die()

        writer.commit = commit_and_die
        return writer

session.dataSource.register(Dying)
source = session.readStream.format("rate-micro-batch").options(rowsPerBatch="100", numPartitions="2").load()
writer = source.selectExpr("cast(value as string) as value").writeStream.format("dying")
writer = writer.option("topic", "died-" + directory.rpartition("/")[2]).option("bootstrap.servers", broker)
writer = writer.option("checkpointLocation", directory + "/checkpoint")
writer.trigger(processingTime="0 seconds").start().awaitTermination()
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_killed_right_before_or_after_its_commit_writes_the_micro_batch_once(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path, moment: str
) -> None:
    topic, directory = topics.create(f"died-{moment}", partitions=2), tmp_path / moment
    died = subprocess.run(
        [sys.executable, "-c", PREAMBLE + DYING, broker.address, str(directory)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYSPARK_PYTHON": Path(sys.executable).name},
        timeout=PATIENCE_S,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    commits = directory / "checkpoint" / "commits"
    assert not (commits / "2").exists()
    assert (commits / "1").exists()
    assert committed(broker, topic) == values(0, 300 if moment == "after" else 200)
    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch="100", numPartitions="2").load()
    query = (
        source.selectExpr("cast(value as string) as value")
        .writeStream.format("warmlog")
        .option("bootstrap.servers", broker.address)
        .option("topic", topic)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = committed(broker, topic)
    assert found == values(0, len(found))
    assert len(found) >= 300
    assert (commits / "2").exists()
