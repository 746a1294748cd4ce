"""Consumer groups in Spark: loads and streams that start where a group has got to, and streams that commit to one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from broker_process import BrokerProcess
from group_member import member_of
from spark.drivers import committed as committed_batches
from spark.drivers import kill_while_streaming
from spark.test_stream import WAIT_S, fill, found, once, run, start, wait_until
from spark.topics import Topics
from warmlog.blocking import Admin

COMMITS_THE_LAST = pyspark.__version__ >= "4.2"
"""Whether the last micro-batch of availableNow is committed at once; earlier versions do not say that it is done."""

Interrupt = Callable[[SparkSession, BrokerProcess, str, Path], int]
"""Ends a stream early that commits to the group with its topic's name; returns the last batch in its checkpoint."""


def committed(broker: BrokerProcess, group: str) -> dict[int, int]:
    with Admin(broker.address) as admin:
        return {partition: each.offset for (_, partition), each in admin.committed_offsets(group).items()}


def reset(broker: BrokerProcess, group: str, where: Any) -> None:
    with Admin(broker.address) as admin:
        admin.reset_offsets(group, where, dry_run=False)


def test_a_load_starts_where_the_group_has_got_to_and_commits_nothing(
    spark: SparkSession, broker: BrokerProcess, topics: Topics
) -> None:
    topics.create("loaded", partitions=2)
    fill(topics, "loaded", 0, 0, 100)
    fill(topics, "loaded", 1, 100, 50)
    reset(broker, "load", {"loaded-0": 70})
    options = {
        "bootstrap.servers": broker.address,
        "subscribe": "loaded",
        "group": "load",
        "startingOffsets": "committed",
    }
    rows = spark.read.format("warmlog").options(**options).load().select("partition", "offset").collect()
    assert sorted((row.partition, row.offset) for row in rows) == [
        *((0, offset) for offset in range(70, 100)),
        *((1, offset) for offset in range(50)),
    ]
    assert committed(broker, "load") == {0: 70}


def test_a_stream_commits_what_it_has_finished_with_and_another_starts_there(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("streamed", partitions=2)
    fill(topics, "streamed", 0, 0, 100)
    commits = {"subscribe": "streamed", "group": "stream", "commitOffsets": "true"}
    run(spark, broker, tmp_path / "a", **commits, maxOffsetsPerTrigger="60")
    if COMMITS_THE_LAST:
        assert committed(broker, "stream") == {0: 100, 1: 0}
    fill(topics, "streamed", 1, 100, 40)
    run(spark, broker, tmp_path / "a", **commits)
    assert found(spark, tmp_path / "a") == once(range(140))
    assert committed(broker, "stream") == ({0: 100, 1: 40} if COMMITS_THE_LAST else {0: 100, 1: 0})

    reset(broker, "stream", {"streamed-0": 90, "streamed-1": 40})
    run(spark, broker, tmp_path / "b", subscribe="streamed", group="stream", startingOffsets="committed")
    assert found(spark, tmp_path / "b") == once(range(90, 100))
    assert committed(broker, "stream") == {0: 90, 1: 40}, "it was not told to commit"


def test_a_group_with_members_ends_the_query_and_the_error_names_them(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("shared")
    fill(topics, "shared", 0, 0, 100)
    options = {"subscribe": "shared", "group": "shared", "commitOffsets": "true"}
    query = start(spark, broker, tmp_path, available_now=False, **options)
    wait_until(lambda: query.lastProgress is not None and query.lastProgress.numInputRows > 0, query)
    with member_of(broker.address, "shared", "shared", 1, instance_id="worker-1"):
        fill(topics, "shared", 0, 100, 100)
        with pytest.raises(PySparkException, match=r"group 'shared' has 1 member: worker-1 .* option commitOffsets"):
            query.awaitTermination(WAIT_S)
    run(spark, broker, tmp_path, **options)
    assert found(spark, tmp_path) == once(range(200)), "without the member it continues where it was"


INTERRUPTED = """
reader = session.readStream.format("warmlog").option("bootstrap.servers", broker).option("subscribe", "TOPIC")
reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "50")
reader = reader.option("group", "TOPIC").option("commitOffsets", "true")
values = reader.load().selectExpr("cast(cast(value as string) as long) as number", "partition", "offset")
writer = values.writeStream.format("parquet").option("checkpointLocation", directory + "/checkpoint")
writer.option("path", directory + "/data").trigger(processingTime="50 milliseconds").start().awaitTermination()
"""


def kill_driver(spark: SparkSession, broker: BrokerProcess, topic: str, directory: Path) -> int:
    return kill_while_streaming(INTERRUPTED.replace("TOPIC", topic), broker.address, directory, after=3)


def stop_query(spark: SparkSession, broker: BrokerProcess, topic: str, directory: Path) -> int:
    options = {"subscribe": topic, "group": topic, "commitOffsets": "true"}
    query = start(spark, broker, directory, available_now=False, maxOffsetsPerTrigger="50", **options)
    commits = directory / "checkpoint" / "commits"
    wait_until(lambda: len(committed_batches(commits)) >= 3, query)
    query.stop()
    return committed_batches(commits)[-1]


@pytest.mark.parametrize("interrupt", [stop_query, pytest.param(kill_driver, marks=pytest.mark.slow)])
def test_what_an_interrupted_stream_has_committed_is_in_its_checkpoint(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path, interrupt: Interrupt
) -> None:
    topic = interrupt.__name__.replace("_", "-")
    topics.create(topic)
    fill(topics, topic, 0, 0, 5_000)
    last = interrupt(spark, broker, topic, tmp_path)
    done = committed(broker, topic)[0]
    assert 0 < done <= 50 * (last + 1), "no more than the micro-batches whose commit is in the checkpoint"
    run(spark, broker, tmp_path, subscribe=topic, group=topic, commitOffsets="true")
    assert found(spark, tmp_path) == once(range(5_000))
    assert not COMMITS_THE_LAST or committed(broker, topic) == {0: 5_000}
