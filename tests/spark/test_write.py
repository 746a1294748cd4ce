"""`df.write.format("warmlog")` and `writeStream` in a real session, against a real broker.

Tests make Spark run tasks again, with both kinds of delivery; `test_exactly_once.py` has more of that.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from broker_process import BrokerProcess, port_to_keep
from spark.reading import committed, read_back
from spark.topics import Stored, Topics
from warmlog.errors import ApiError, BrokerUnavailable, DeliveryTimeout, TooManyConnections, UnknownTopicOrPartition
from warmlog.producer.record_input import partition_of_key
from warmlog.ranges.discover import Discovery
from warmlog.spark.options.write_options import WriteOptions
from warmlog.spark.write.task import check_topic, write_batches

ROW = pa.RecordBatch.from_pydict({"value": [b"v"]})


def write(frame: DataFrame, broker: BrokerProcess, **options: str) -> None:
    frame.write.format("warmlog").option("bootstrap.servers", broker.address).options(**options).mode("append").save()


def values_of(stored: list[Stored]) -> Counter[bytes | None]:
    return Counter(record.value for record in stored)


def test_every_column_arrives_and_keys_choose_the_partition_that_the_producer_chooses(
    spark: SparkSession, broker: BrokerProcess, topics: Topics
) -> None:
    topics.create("columns", partitions=5)
    frame = spark.range(3_000).selectExpr(
        "if(id % 7 = 0, null, concat('key-', id % 100)) as key",
        "if(id % 11 = 0, null, cast(id as string)) as value",
        "if(id % 3 = 0, array(named_struct('key', 'h', 'value', cast(cast(id as string) as binary))), null) as headers",
        "if(id % 5 = 0, cast(id % 4 as int), null) as partition",
        "timestamp_millis(1700000000000 + id) as timestamp",
    )
    write(frame.repartition(3), broker, topic="columns", **{"compression.type": "lz4", "batch.size": "16k"})
    found = read_back(broker, "columns")
    expected = []
    for number in range(3_000):
        key = None if number % 7 == 0 else b"key-%d" % (number % 100)
        chosen = number % 4 if number % 5 == 0 else partition_of_key(key, 5) if key else None
        value = None if number % 11 == 0 else b"%d" % number
        headers = (("h", b"%d" % number),) if number % 3 == 0 else ()
        expected.append((chosen, key, value, 1_700_000_000_000 + number, headers))
    by_time = {record.timestamp_ms: record for record in found}
    assert len(found) == len(by_time) == 3_000
    for chosen, key, value, timestamp_ms, headers in expected:
        record = by_time[timestamp_ms]
        assert (record.key, record.value, record.headers) == (key, value, headers)
        assert chosen is None or record.partition == chosen


def test_rows_name_their_topics_and_without_a_timestamp_get_the_time_of_writing(
    spark: SparkSession, broker: BrokerProcess, topics: Topics
) -> None:
    topics.create("left"), topics.create("right", partitions=2)
    before_ms = time.time_ns() // 1_000_000
    frame = spark.range(100).selectExpr("if(id % 2 = 0, 'left', 'right') as topic", "cast(id as string) as value")
    write(frame, broker)
    assert values_of(read_back(broker, "left")) == Counter(b"%d" % number for number in range(0, 100, 2))
    assert values_of(read_back(broker, "right")) == Counter(b"%d" % number for number in range(1, 100, 2))
    assert all(before_ms <= record.timestamp_ms <= time.time_ns() // 1_000_000 for record in read_back(broker, "left"))


def test_a_topic_that_was_read_can_be_written_as_it_is(
    spark: SparkSession, broker: BrokerProcess, topics: Topics
) -> None:
    topics.create("source", partitions=2), topics.create("copy", partitions=2)
    write(spark.range(500).selectExpr("cast(id as string) key", "cast(id as string) value"), broker, topic="source")
    reader = spark.read.format("warmlog").option("bootstrap.servers", broker.address).option("subscribe", "source")
    write(reader.load(), broker, topic="copy")
    copied = [record._replace(topic="source") for record in read_back(broker, "copy")]
    assert copied == read_back(broker, "source")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["cast(id as string) as vaule"], {"topic": "refused"}, "column vaule cannot be written: did you mean value?"),
        (["cast(id as string) as value"], {"topic": "nowhere"}, "topic nowhere does not exist: create it first"),
        (
            ["cast(id as string) as value"],
            {},
            "there is no topic to write to: give the option topic, or a column topic",
        ),
        (["cast(id as string) as value"], {"tpoic": "refused"}, "has no option tpoic: did you mean topic?"),
        (["'v' as value", "7 as partition"], {"topic": "refused"}, "topic refused has partition 0, not 7"),
    ],
)
def test_what_cannot_be_written_is_refused_in_words(
    spark: SparkSession,
    broker: BrokerProcess,
    refused: str,
    columns: list[str],
    options: dict[str, str],
    message: str,
) -> None:
    with pytest.raises(PySparkException) as caught:
        write(spark.range(1).selectExpr(*columns), broker, **options)
    assert message in str(caught.value)


@pytest.fixture(scope="module")
def refused(topics: Topics) -> str:
    return topics.create("refused")


@pytest.mark.usefixtures("times_without_zone")
def test_a_time_without_a_zone_is_refused_with_what_to_cast_it_to(
    spark: SparkSession, broker: BrokerProcess, topics: Topics
) -> None:
    topics.create("cast")
    frame = spark.sql("select 'v' as value, timestamp '2023-11-14 22:13:20' as timestamp")
    with pytest.raises(
        AnalysisException, match="column timestamp is timestamp_ntz, and only timestamp_ltz can be written"
    ):
        write(frame, broker, topic="cast")
    write(frame.withColumn("timestamp", frame.timestamp.cast("timestamp_ltz")), broker, topic="cast")
    assert [record.timestamp_ms for record in read_back(broker, "cast")] == [1_700_000_000_000]


def test_modes_other_than_append_are_refused_in_words(spark: SparkSession, broker: BrokerProcess, refused: str) -> None:
    frame = spark.range(1).selectExpr("'v' as value")
    writer = frame.write.format("warmlog").options(topic="refused", **{"bootstrap.servers": broker.address})
    with pytest.raises(AnalysisException, match=r"a log can only be appended to: write with .mode\(\"append\"\)"):
        writer.mode("overwrite").save()
    for mode in ("ignore", "error"):
        with pytest.raises(AnalysisException, match=r'Please use either the "Append" or "Overwrite" mode'):
            writer.mode(mode).save()


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_task_that_is_killed_and_run_again_writes_its_records_again_and_no_other_task_does(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, delivery: str
) -> None:
    topic = topics.create(f"killed-{delivery}", partitions=2)
    address = broker.address

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        for start in range(0, 20_000, 1_000):
            values = [b"%d-%0100d" % (number, value) for value in range(start, start + 1_000)]
            yield pa.RecordBatch.from_pydict(
                {"value": values, "partition": pa.array([number] * 1_000, pa.int32())},
            )
        if number == 1 and context.attemptNumber() == 0:
            with Discovery([address]) as discovery:
                while discovery.states(discovery.topics([topic]))[1].latest == 0:
                    time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)

    frame = spark.range(0, 2, 1, 2).mapInArrow(rows, "value binary, partition int")
    write(frame, broker, topic=topic, delivery=delivery, **{"batch.size": "64k"})
    every = {b"%d-%0100d" % (number, value) for number in range(2) for value in range(20_000)}
    found = values_of(read_back(broker, topic))
    if delivery == "exactly-once":
        assert committed(broker, topic) == Counter(every)
        found = Counter({value: count for value, count in found.items() if value in every})
    assert set(found) == every
    again = {value for value, count in found.items() if count > 1}
    assert again
    assert all(value is not None and value.startswith(b"1-") for value in again)
    assert max(found.values()) == 2


def test_a_write_that_fails_for_good_is_an_error_and_leaves_what_its_attempts_had_sent(
    spark: SparkSession, broker: BrokerProcess, topics: Topics
) -> None:
    """At least once, nothing can take back what an attempt has appended."""
    topics.create("failing")

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for start in range(0, 3_000, 1_000):
            values = [b"%d-%0100d" % (context.attemptNumber(), value) for value in range(start, start + 1_000)]
            yield pa.RecordBatch.from_pydict({"value": values})
        raise ValueError("there is something wrong with this row")

    frame = spark.range(0, 1, 1, 1).mapInArrow(rows, "value binary")
    with pytest.raises(PySparkException, match="there is something wrong with this row"):
        write(frame, broker, topic="failing", delivery="at-least-once", **{"batch.size": "16k"})
    found = values_of(read_back(broker, "failing"))
    assert set(found) <= {b"%d-%0100d" % (attempt, value) for attempt in range(4) for value in range(3_000)}
    assert max(found.values(), default=1) == 1
    write(spark.range(1).selectExpr("'after' as value"), broker, topic="failing", delivery="at-least-once")
    assert values_of(read_back(broker, "failing")) == found + Counter([b"after"])
    with pytest.raises(PySparkException, match="there is something wrong with this row"):
        write(frame, broker, topic="failing", **{"batch.size": "16k"})
    write(spark.range(1).selectExpr("'committed' as value"), broker, topic="failing")
    assert committed(broker, "failing") == found + Counter([b"after", b"committed"]), "nothing holds its end back"


def test_a_broker_killed_and_started_again_while_a_task_writes_costs_nothing_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path) as broker, Topics(broker.host, broker.port) as topics:
        topics.create("steady", partitions=3)

        def batches() -> Iterator[pa.RecordBatch]:
            for start in range(0, 60_000, 1_000):
                values = [b"%0100d" % value for value in range(start, start + 1_000)]
                yield pa.RecordBatch.from_pydict({"value": values})
                if start in (20_000, 40_000):
                    broker.kill()
                    broker.start()

        written = write_batches(batches(), {"value": 0}, WriteOptions((broker.address,), "steady", batch_bytes=64_000))
        assert written.records == 60_000
        assert values_of(read_back(broker, "steady")) == Counter(b"%0100d" % value for value in range(60_000))


def test_a_broker_that_has_no_connection_left_for_a_while_costs_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    """As after an outage, when all tasks connect again at once."""
    with BrokerProcess(tmp_path, max_connections=2) as broker, ExitStack() as crowd:
        with Topics(broker.host, broker.port) as topics:
            topics.create("crowded", partitions=3)
        leaving = threading.Timer(1.0, crowd.close)

        def restarted_for_the_crowd() -> bool:
            """Whether the crowd was there before the task, which connects again by itself."""
            broker.kill()
            broker.start()
            try:
                for _ in range(2):
                    crowd.enter_context(Topics(broker.host, broker.port))
            except TooManyConnections:
                crowd.close()
                return False
            return True

        def batches() -> Iterator[pa.RecordBatch]:
            for start in range(0, 20_000, 1_000):
                values = [b"%0100d" % value for value in range(start, start + 1_000)]
                yield pa.RecordBatch.from_pydict({"value": values})
                if start == 10_000:
                    while not restarted_for_the_crowd():
                        pass
                    leaving.start()

        options = WriteOptions((broker.address,), "crowded", batch_bytes=16_000)
        assert write_batches(batches(), {"value": 0}, options).records == 20_000
        assert "max.connections" in broker.output
        leaving.join()
        assert values_of(read_back(broker, "crowded")) == Counter(b"%0100d" % value for value in range(20_000))


def test_a_broker_that_has_no_connection_left_is_named_with_the_topic(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, max_connections=1) as broker, Topics(broker.host, broker.port) as topics:
        topics.create("crowded")
        options = WriteOptions((broker.address,), "crowded", delivery_timeout_ms=1_000)
        message = rf"topic crowded at {broker.address}: .*max\.connections"
        with pytest.raises(TooManyConnections, match=message):
            check_topic(options)


@contextmanager
def started_after(broker: BrokerProcess, delay_s: float) -> Iterator[None]:
    """The broker, which does not run, is started in the background; it runs when the block is left."""
    timer = threading.Timer(delay_s, broker.start)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def test_a_broker_that_starts_while_a_task_has_its_first_row_costs_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with Topics(broker.host, broker.port) as topics:
            topics.create("late")
        broker.kill()
        rows = pa.RecordBatch.from_pydict({"value": [b"%d" % number for number in range(100)]})
        options = WriteOptions((broker.address,), "late")
        with started_after(broker, 1.0):
            assert write_batches(iter([rows]), {"value": 0}, options).records == 100
        assert values_of(read_back(broker, "late")) == Counter(b"%d" % number for number in range(100))


def test_a_broker_killed_before_the_first_row_of_a_further_topic_repeats_nothing_of_the_others(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with Topics(broker.host, broker.port) as topics:
            topics.create("one"), topics.create("two")
        stack = ExitStack()

        def batches() -> Iterator[pa.RecordBatch]:
            for topic in ("one", "two"):
                for start in range(0, 4_000, 1_000):
                    values = [b"%0100d" % value for value in range(start, start + 1_000)]
                    yield pa.RecordBatch.from_pydict({"value": values, "topic": [topic] * 1_000})
                if topic == "one":
                    broker.kill()
                    stack.enter_context(started_after(broker, 1.0))

        with stack:
            options = WriteOptions((broker.address,), batch_bytes=16_000)
            assert write_batches(batches(), {"value": 0, "topic": 1}, options).records == 8_000
        every = Counter(b"%0100d" % value for value in range(4_000))
        assert (values_of(read_back(broker, "one")), values_of(read_back(broker, "two"))) == (every, every)


def test_the_driver_asks_for_the_topic_until_the_broker_is_there(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with Topics(broker.host, broker.port) as topics:
            topics.create("checked")
        broker.kill()
        with started_after(broker, 1.0):
            check_topic(WriteOptions((broker.address,), "checked"))
        with pytest.raises(UnknownTopicOrPartition, match="topic nowhere does not exist: create it first"):
            check_topic(WriteOptions((broker.address,), "nowhere"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"value": [b"x" * 2_000_000], "topic": ["refused"]}, r"larger than max.message.bytes="),
        ({"value": [b"x"], "topic": pa.array([None], pa.string())}, "a row has null in the column topic"),
        ({"value": [b"x", b"y"], "topic": ["refused", "nowhere"]}, "topic nowhere does not exist: create it first"),
    ],
)
def test_rows_that_cannot_be_written_are_errors_of_the_task(
    broker: BrokerProcess, refused: str, rows: dict[str, Any], message: str
) -> None:
    with pytest.raises(ApiError, match=message):
        write_batches(
            iter([pa.RecordBatch.from_pydict(rows)]), {"value": 0, "topic": 1}, WriteOptions((broker.address,))
        )


@pytest.mark.parametrize("list_of", [pa.list_, pa.large_list, pa.list_view])
def test_views_are_written_as_what_they_show(broker: BrokerProcess, topics: Topics, list_of: Any) -> None:
    name = topics.create(f"views-{list_of.__name__}", partitions=3)
    keys = [b"k%d" % number for number in range(50)] + [None] * 50
    values = [None if number % 7 == 0 else "ä" * number for number in range(100)]
    headers = [[{"key": f"h{number}", "value": b"v" * number}] if number % 3 else None for number in range(100)]
    pair = pa.struct([("key", pa.string_view()), ("value", pa.binary_view())])
    columns = {
        "key": pa.array(keys, pa.binary_view()),
        "value": pa.array(values, pa.string_view()),
        "headers": pa.array(headers, list_of(pair)),
    }
    options = WriteOptions((broker.address,), name)
    batches, places = iter([pa.RecordBatch.from_pydict(columns)]), {"key": 0, "value": 1, "headers": 2}
    assert write_batches(batches, places, options).records == 100
    stored = read_back(broker, name)
    assert Counter(tuple(record.headers) for record in stored) == Counter(
        tuple((pair["key"], pair["value"]) for pair in pairs or ()) for pairs in headers
    )
    assert values_of(stored) == Counter(None if value is None else value.encode() for value in values)
    assert all(record.partition == partition_of_key(record.key, 3) for record in stored if record.key)


def test_a_broker_that_stays_away_is_an_error_that_names_the_partition(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with Topics(broker.host, broker.port) as topics:
            topics.create("gone")

        def batches() -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict({"value": [b"a"]})
            broker.kill()

        options = WriteOptions((broker.address,), "gone", delivery_timeout_ms=300)
        with pytest.raises(DeliveryTimeout, match=r"gone-0 were not acknowledged .*is the broker running"):
            write_batches(batches(), {"value": 0}, options)


@pytest.mark.parametrize("asked_by", [check_topic, lambda options: write_batches(iter([ROW]), {"value": 0}, options)])
def test_a_broker_that_is_not_there_is_an_error_after_the_delivery_timeout(
    asked_by: Callable[[WriteOptions], object],
) -> None:
    address = f"127.0.0.1:{port_to_keep()}"
    began_at = time.monotonic()
    with pytest.raises(BrokerUnavailable, match=rf"^topic t: no connection .*is the broker running at {address}\?$"):
        asked_by(WriteOptions((address,), "t", delivery_timeout_ms=700))
    assert 0.3 < time.monotonic() - began_at < 30
