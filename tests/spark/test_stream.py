"""`spark.readStream.format("warmlog")` in a real session, against a real broker: each record exactly once, counted.

The sink is Parquet, which Spark commits together with the micro-batch.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from broker_process import BrokerProcess
from lost_end import create, lose_end, produce
from spark.drivers import kill_while_streaming
from spark.topics import Record, Topics

WAIT_S = 600.0


def fill(topics: Topics, topic: str, partition: int, first: int, count: int) -> None:
    """Numbers from `first` on, in batches of 50."""
    for start in range(first, first + count, 50):
        stop = min(start + 50, first + count)
        topics.fill(topic, partition, [Record(None, b"%d" % number) for number in range(start, stop)])


def start(
    spark: SparkSession, broker: BrokerProcess, directory: Path, *, available_now: bool = True, **options: Any
) -> StreamingQuery:
    given = {"startingOffsets": "earliest", "fetchOffset.retryIntervalMs": "100", **options}
    reader = spark.readStream.format("warmlog").option("bootstrap.servers", broker.address).options(**given)
    values = reader.load().selectExpr("cast(cast(value as string) as long) as number", "partition", "offset")
    writer = values.writeStream.format("parquet").option("checkpointLocation", str(directory / "checkpoint"))
    trigger: dict[str, Any] = {"availableNow": True} if available_now else {"processingTime": "100 milliseconds"}
    return writer.option("path", str(directory / "data")).trigger(**trigger).start()


def run(spark: SparkSession, broker: BrokerProcess, directory: Path, **options: Any) -> list[int]:
    """Everything that is there now is read; how many rows each micro-batch had."""
    rows = run_once(spark, broker, directory, **options)
    has_more = bool(rows) and pyspark.__version__ < "4.2"  # availableNow is one micro-batch: run it again for the rest
    return rows + run(spark, broker, directory, **options) if has_more else rows


def run_once(spark: SparkSession, broker: BrokerProcess, directory: Path, **options: Any) -> list[int]:
    query = start(spark, broker, directory, **options)
    assert query.awaitTermination(WAIT_S)
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def found(spark: SparkSession, directory: Path) -> Counter[int]:
    return Counter(row.number for row in spark.read.parquet(str(directory / "data")).collect())


def wait_until(is_done: Callable[[], bool], query: StreamingQuery) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_done():
        assert query.exception() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def logged_offsets(directory: Path, batch: int) -> str:
    """What the checkpoint has of our source."""
    return (directory / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[2]


def once(*ranges: range) -> Counter[int]:
    return Counter(number for numbers in ranges for number in numbers)


def test_micro_batches_are_bounded_come_to_the_end_and_go_on_after_a_restart(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("bounded", partitions=11)
    fill(topics, "bounded", 0, 0, 900)
    fill(topics, "bounded", 10, 900, 100)
    rows = run(spark, broker, tmp_path, subscribe="bounded", maxOffsetsPerTrigger="400")
    assert rows == [400, 400, 200]
    assert found(spark, tmp_path) == once(range(1_000))
    first = json.loads(logged_offsets(tmp_path, 0))["bounded"]
    assert list(first) == [str(number) for number in range(11)]
    assert (first["0"], first["10"]) == (360, 40)

    assert run(spark, broker, tmp_path, subscribe="bounded") == [], "nothing is new"
    fill(topics, "bounded", 0, 1_000, 60)
    assert run(spark, broker, tmp_path, subscribe="bounded") == [60]
    assert found(spark, tmp_path) == once(range(1_060))


@pytest.mark.usefixtures("times_without_zone")
def test_a_stream_has_times_with_a_zone_whatever_timestamp_means_in_the_session(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("zoned")
    fill(topics, "zoned", 0, 0, 100)
    given = {"bootstrap.servers": broker.address, "subscribe": "zoned"}
    frame = spark.readStream.format("warmlog").options(**given).load()
    assert frame.schema["timestamp"].dataType.typeName() == "timestamp"
    assert run(spark, broker, tmp_path, subscribe="zoned") == [100]


def test_bytes_a_micro_batch_are_bounded(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("heavy")
    for first in range(0, 2_000, 100):
        topics.fill("heavy", 0, [Record(None, b"%02000d" % number) for number in range(first, first + 100)])
    rows = run(spark, broker, tmp_path, subscribe="heavy", maxBytesPerTrigger="1m")
    assert len(rows) >= 4
    assert max(rows) <= 600
    assert found(spark, tmp_path) == once(range(2_000))


def test_partitions_and_topics_that_come_while_it_runs_are_read_from_their_first_record(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("grow-a")
    fill(topics, "grow-a", 0, 0, 100)
    query = start(spark, broker, tmp_path, available_now=False, subscribePattern="grow-.*")
    try:
        wait_until((tmp_path / "checkpoint" / "commits" / "0").exists, query)
        topics.create("grow-b", partitions=2)
        fill(topics, "grow-b", 0, 100, 50)
        fill(topics, "grow-b", 1, 150, 50)
        wait_until(lambda: found(spark, tmp_path).total() >= 200, query)
    finally:
        query.stop()
    assert found(spark, tmp_path) == once(range(200))


def test_a_micro_batch_whose_commit_is_lost_is_run_again_with_the_same_records(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("replayed", partitions=2)
    fill(topics, "replayed", 0, 0, 300)
    run(spark, broker, tmp_path, subscribe="replayed", maxOffsetsPerTrigger="200")
    assert logged_offsets(tmp_path, 1) == '{"replayed":{"0":300,"1":0}}'.replace(":", ": ").replace(",", ", ")
    for path in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        path.unlink()
    fill(topics, "replayed", 1, 300, 100)
    run(spark, broker, tmp_path, subscribe="replayed")
    run(spark, broker, tmp_path, subscribe="replayed")  # before Spark 4.2, the first one is the lost micro-batch alone
    assert found(spark, tmp_path) == once(range(400))


def test_a_first_micro_batch_whose_commit_is_lost_does_not_read_what_was_there_before_the_stream(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("late")
    fill(topics, "late", 0, 0, 300)
    assert run(spark, broker, tmp_path, subscribe="late", startingOffsets="latest") == []
    assert logged_offsets(tmp_path, 0) == '{"late": {"0": 300}}'
    for directory in (tmp_path / "checkpoint" / "commits", tmp_path / "data" / "_spark_metadata"):
        for path in directory.glob("*0*"):
            path.unlink()  # else the sink, which has written the micro-batch, passes over it
    fill(topics, "late", 0, 300, 100)
    run_once(spark, broker, tmp_path, subscribe="late", startingOffsets="latest")
    run_once(spark, broker, tmp_path, subscribe="late", startingOffsets="latest")  # as above
    assert found(spark, tmp_path) == once(range(300, 400))


def test_a_stream_that_starts_at_a_tail_goes_on_after_a_restart(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("tailed")
    fill(topics, "tailed", 0, 0, 300)
    assert run_once(spark, broker, tmp_path, subscribe="tailed", startingOffsets="-70") == [70]
    fill(topics, "tailed", 0, 300, 30)
    assert run_once(spark, broker, tmp_path, subscribe="tailed", startingOffsets="-70") == [30]
    assert found(spark, tmp_path) == once(range(230, 330))


@contextmanager
def reading(
    spark: SparkSession, directory: Path, topic: str, count: int
) -> Iterator[tuple[BrokerProcess, StreamingQuery]]:
    """A broker to be killed, and a stream that has read the `count` records of its topic; both are stopped."""
    with BrokerProcess(directory / "broker") as broker:
        with Topics(broker.host, broker.port) as topics:
            topics.create(topic)
            fill(topics, topic, 0, 0, count)
        query = start(spark, broker, directory, available_now=False, subscribe=topic)
        try:
            wait_until((directory / "checkpoint" / "commits" / "0").exists, query)
            yield broker, query
        finally:
            query.stop()


def test_a_query_that_waits_for_its_broker_stops_at_once(spark: SparkSession, tmp_path: Path) -> None:
    with reading(spark, tmp_path, "left", 50) as (broker, query):
        broker.kill()
        time.sleep(2)
        began_at = time.monotonic()
        query.stop()
        assert time.monotonic() - began_at < 60  # of 120 s for which it would wait
        assert query.exception() is None


def test_the_broker_may_be_killed_and_started_again_meanwhile(spark: SparkSession, tmp_path: Path) -> None:
    with reading(spark, tmp_path, "shaken", 200) as (broker, query):
        broker.kill()
        time.sleep(2)  # for longer than the retries of a first question last
        broker.start()
        with Topics(broker.host, broker.port) as topics:
            fill(topics, "shaken", 0, 200, 100)
        wait_until(lambda: found(spark, tmp_path).total() >= 300, query)
    assert found(spark, tmp_path) == once(range(300))


def test_a_topic_made_anew_is_an_error_or_read_from_its_first_record(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("phoenix")
    fill(topics, "phoenix", 0, 0, 200)
    run(spark, broker, tmp_path, subscribe="phoenix")
    topics.delete("phoenix")
    topics.create("phoenix")
    fill(topics, "phoenix", 0, 200, 100)
    query = start(spark, broker, tmp_path, subscribe="phoenix")
    with pytest.raises(PySparkException, match=r"phoenix-0 .*the topic was recreated, or lost its end"):
        query.awaitTermination(WAIT_S)
    run(spark, broker, tmp_path, subscribe="phoenix", failOnDataLoss="false")
    assert found(spark, tmp_path) == once(range(300))


def test_a_log_that_is_cut_under_a_stream_ends_it_or_is_read_from_there_on(spark: SparkSession, tmp_path: Path) -> None:
    numbers = [b"%d" % number for number in range(35)]
    with BrokerProcess(tmp_path / "broker") as broker:
        create(broker, "cut", numbers[:10])
        produce(broker, "cut", numbers[10:20])
        options: dict[str, Any] = {"available_now": False, "subscribe": "cut"}
        strict = start(spark, broker, tmp_path / "strict", **options)
        lenient = start(spark, broker, tmp_path / "lenient", **options, failOnDataLoss="false")
        try:
            for query, name in ((strict, "strict"), (lenient, "lenient")):
                wait_until((tmp_path / name / "checkpoint" / "commits" / "0").exists, query)
            lose_end(broker, "cut", 10)
            produce(broker, "cut", numbers[20:])
            wait_until(lambda: found(spark, tmp_path / "lenient").total() >= 35, lenient)
            assert found(spark, tmp_path / "lenient") == once(range(35)), "those that were lost had been read"
            with pytest.raises(PySparkException, match="cut-0: the log was cut at 10 after it had been read up to 20"):
                strict.awaitTermination(WAIT_S)
        finally:
            strict.stop()
            lenient.stop()


def test_what_a_stream_cannot_do_is_refused_in_words(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("words")
    for options, message in (
        ({"endingOffsets": "latest"}, "option endingOffsets is for a batch, not for a stream"),
        ({"maxOffsetPerTrigger": "5"}, "has no option maxoffsetpertrigger: did you mean maxOffsetsPerTrigger?"),
        ({"maxTriggerDelay": "soon"}, "option maxTriggerDelay is 'soon'"),
    ):
        with pytest.raises(PySparkException) as caught:
            start(spark, broker, tmp_path, subscribe="words", **options).awaitTermination(WAIT_S)
        assert message in str(caught.value)


DRIVER = """
reader = session.readStream.format("warmlog").option("bootstrap.servers", broker).option("subscribe", "killed-driver")
stream = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "100").load()
values = stream.selectExpr("cast(cast(value as string) as long) as number")
query = values.writeStream.format("parquet").option("checkpointLocation", directory + "/checkpoint")
query.option("path", directory + "/data").trigger(processingTime="0 seconds").start().awaitTermination()
"""


@pytest.mark.slow
def test_after_kill_9_of_the_driver_every_record_is_there_once(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("killed-driver", partitions=2)
    fill(topics, "killed-driver", 0, 0, 3_000)
    fill(topics, "killed-driver", 1, 3_000, 3_000)
    for _ in range(2):
        kill_while_streaming(DRIVER, broker.address, tmp_path, after=3)
    run(spark, broker, tmp_path, subscribe="killed-driver")
    assert found(spark, tmp_path) == once(range(6_000))
