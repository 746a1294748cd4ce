"""`spark.read.format("warmlog")` in a real session, against a real broker."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from random import Random

import pyspark
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, Row, SparkSession

from broker_process import BrokerProcess
from spark.reading import in_utc, stored_of
from spark.topics import Record, Stored, Topics, some_records
from warmlog import Consumer
from warmlog import Record as Consumed
from warmlog.spark import register
from warmlog_protocol.codec.compression import Codec

PLANS_ONCE = pyspark.__version__ >= "4.1"
only_where_it_plans_once = pytest.mark.skipif(
    not PLANS_ONCE, reason="Spark 4.0 plans at every action: what was planned before is not read"
)

KAFKA_SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
)


def load(
    spark: SparkSession, broker: BrokerProcess, topics: str, *, schema: str | None = None, **options: str
) -> DataFrame:
    reader = spark.read.format("warmlog").option("bootstrap.servers", broker.address).option("subscribe", topics)
    return (reader.schema(schema) if schema else reader).options(**options).load()


@pytest.fixture(scope="module")
def mixed(topics: Topics) -> list[Stored]:
    """A topic of three partitions, one of them empty, with batches of every codec in columns and in rows."""
    topics.create("mixed", partitions=3)
    random = Random(7)
    stored: list[Stored] = []
    for number in range(20):
        records = some_records(random, random.randrange(1, 60))
        stored += topics.fill("mixed", number % 2, records, codec=Codec(number % 5), as_rows=number % 3 == 0)
    return sorted(stored, key=lambda record: (record.partition, record.offset))


@pytest.fixture(scope="module")
def plain(topics: Topics) -> list[Stored]:
    """A topic of two partitions with 5,000 and 1,000 records in batches of 100."""
    topics.create("plain", partitions=2)
    stored: list[Stored] = []
    for partition, count in ((0, 5_000), (1, 1_000)):
        for first in range(0, count, 100):
            records = [Record(None, b"%d" % value) for value in range(first, first + 100)]
            stored += topics.fill("plain", partition, records)
    return stored


def test_the_format_is_found_without_registering_and_has_kafkas_columns(
    spark: SparkSession, broker: BrokerProcess, plain: list[Stored]
) -> None:
    frame = load(spark, broker, "plain")
    assert frame.schema.simpleString() == KAFKA_SCHEMA
    assert frame.count() == len(plain)


def test_every_column_of_every_record_is_what_was_produced(
    spark: SparkSession, broker: BrokerProcess, mixed: list[Stored]
) -> None:
    frame = load(spark, broker, "mixed", includeHeaders="true")
    assert stored_of(in_utc(frame).collect()) == mixed
    no_headers = [record.offset for record in mixed if not record.headers]
    assert sorted(row.offset for row in frame.where("headers is null").collect()) == sorted(no_headers)


@pytest.mark.parametrize("seed", [1, 2])
def test_spark_shows_the_records_that_the_plain_client_reads(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, seed: int
) -> None:
    random = Random(seed)
    topic = topics.create(f"seeded-{seed}", partitions=seed + 1, segment_bytes="16384")
    for _ in range(30):
        records, codec = some_records(random, random.randrange(1, 40)), random.choice(list(Codec))
        topics.fill(topic, random.randrange(seed + 1), records, codec=codec, as_rows=random.random() < 0.5)

    async def consume() -> list[Consumed]:
        async with Consumer(broker.address, topics=[topic], start="earliest") as consumer:
            return [record async for record in consumer.records(until="latest")]

    plain = sorted(asyncio.run(consume()), key=lambda record: (record.partition, record.offset))
    shown = stored_of(in_utc(load(spark, broker, topic, includeHeaders="true", minPartitions="5")).collect())
    assert shown == [
        Stored(each.key, each.value, topic, each.partition, each.offset, each.timestamp_ms, 0, tuple(each.headers))
        for each in plain
    ]


@pytest.mark.usefixtures("times_without_zone")
def test_times_have_a_zone_whatever_timestamp_means_in_the_session(
    spark: SparkSession, broker: BrokerProcess, mixed: list[Stored]
) -> None:
    frame = load(spark, broker, "mixed", includeHeaders="true")
    assert frame.schema["timestamp"].dataType.typeName() == "timestamp"
    assert stored_of(in_utc(frame).collect()) == mixed
    for options in ({"columns": "timestamp timestamp"}, {"schema": "timestamp timestamp_ltz"}):
        assert load(spark, broker, "mixed", **options).distinct().count() == len({each.timestamp_ms for each in mixed})
    with pytest.raises(AnalysisException, match="column timestamp is timestamp_ltz, the schema says timestamp_ntz"):
        load(spark, broker, "mixed", schema="timestamp timestamp").collect()


def test_a_schema_chooses_columns_in_any_order(spark: SparkSession, broker: BrokerProcess, mixed: list[Stored]) -> None:
    frame = load(spark, broker, "mixed", schema="offset bigint, value binary, partition int")
    assert frame.columns == ["offset", "value", "partition"]
    rows = sorted((row.partition, row.offset, row.value) for row in frame.where("value is not null").collect())
    assert [(partition, offset, bytes(value)) for partition, offset, value in rows] == [
        (record.partition, record.offset, record.value) for record in mixed if record.value is not None
    ]


def test_aggregates_over_null_and_empty_values_are_right(
    spark: SparkSession, broker: BrokerProcess, mixed: list[Stored]
) -> None:
    (row,) = load(spark, broker, "mixed").selectExpr("count(key)", "count(value)", "sum(length(value))").collect()
    assert row[0] == sum(record.key is not None for record in mixed)
    assert row[1] == sum(record.value is not None for record in mixed)
    assert row[2] == sum(len(record.value) for record in mixed if record.value is not None)


def test_min_partitions_splits_ranges_and_keeps_every_record(
    spark: SparkSession, broker: BrokerProcess, plain: list[Stored]
) -> None:
    frame = load(spark, broker, "plain", minPartitions="5", schema="partition int, offset bigint")
    assert frame.rdd.getNumPartitions() == 5
    found = sorted((row.partition, row.offset) for row in frame.collect())
    assert found == [(record.partition, record.offset) for record in plain]


def test_offsets_may_be_given_for_each_partition(
    spark: SparkSession, broker: BrokerProcess, plain: list[Stored]
) -> None:
    frame = load(
        spark,
        broker,
        "plain",
        startingOffsets='{"plain": {"0": 4321, "1": -2}}',
        endingOffsets='{"plain": {"0": -1, "1": 7}}',
    )
    found = sorted((row.partition, row.offset, int(row.value)) for row in frame.collect())
    assert found == [(0, offset, offset) for offset in range(4321, 5_000)] + [
        (1, offset, offset) for offset in range(7)
    ]


def test_several_topics_can_be_read_at_once(
    spark: SparkSession, broker: BrokerProcess, plain: list[Stored], mixed: list[Stored]
) -> None:
    counts = load(spark, broker, "plain, mixed").groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in counts} == {"plain": len(plain), "mixed": len(mixed)}


def test_an_empty_topic_has_one_partition_and_no_records(
    spark: SparkSession, broker: BrokerProcess, topics: Topics
) -> None:
    frame = load(spark, broker, topics.create("empty", partitions=3))
    assert frame.rdd.getNumPartitions() == 1
    assert frame.collect() == []


def test_a_topic_that_takes_the_time_of_appending_says_so(
    spark: SparkSession, broker: BrokerProcess, topics: Topics
) -> None:
    topics.create("stamped", message_timestamp_type="LogAppendTime")
    stored = topics.fill("stamped", 0, [Record(None, b"a", 5), Record(None, b"b", 6)])
    assert {record.timestamp_type for record in stored} == {1}
    assert stored_of(in_utc(load(spark, broker, "stamped", includeHeaders="true")).collect()) == stored


def test_a_temporary_view_works_in_sql(spark: SparkSession, broker: BrokerProcess, plain: list[Stored]) -> None:
    spark.sql(
        "create or replace temporary view plain_view using warmlog "
        f"options ('kafka.bootstrap.servers' '{broker.address}', subscribe 'plain')"
    )
    (row,) = spark.sql("select count(*), max(offset) from plain_view where partition = 1").collect()
    assert tuple(row) == (1_000, 999)


def test_two_scans_of_one_load_do_not_disturb_each_other(
    spark: SparkSession, broker: BrokerProcess, plain: list[Stored]
) -> None:
    """As they would if filters were pushed down."""
    frame = load(spark, broker, "plain")
    assert frame.where("offset >= 4990").count() == 10
    assert frame.where("offset >= 4990").union(frame.where("offset >= 4980")).count() == 30
    assert frame.count() == len(plain)


def test_values_are_strings_where_the_schema_says_so(
    spark: SparkSession, broker: BrokerProcess, topics: Topics
) -> None:
    values = [b"plain", "größe".encode(), b"", None, b"broken \xff\xfe"]
    topics.create("texts")
    topics.fill("texts", 0, [Record(b"k", value) for value in values])
    topics.fill("texts", 0, [Record(b"k", b"more")], codec=Codec.ZSTD)
    frame = load(spark, broker, "texts", columns="value string, key, offset")
    assert frame.schema.simpleString() == "struct<value:string,key:binary,offset:bigint>"
    expected = ["plain", "größe", "", None, "broken \ufffd\ufffd", "more"]
    assert [row.value for row in frame.orderBy("offset").collect()] == expected
    assert load(spark, broker, "texts", schema="key string").distinct().collect() == [Row(key="k")]


def test_times_are_exact_for_each_record_whatever_their_order(
    spark: SparkSession, broker: BrokerProcess, topics: Topics
) -> None:
    topics.create("times", partitions=3, segment_bytes="16384")  # the last one stays empty
    random = Random(3)
    stored: list[Stored] = []
    for number in range(60):
        around_ms = 1_700_000_000_000 + 1_000 * number
        records = [Record(None, b"x" * 20, around_ms + random.randrange(-4_000, 4_000)) for _ in range(50)]
        stored += topics.fill("times", number % 2, records, codec=Codec(number % 5), as_rows=number % 7 == 0)
    for start, end in ((1_700_000_010_000, 1_700_000_020_000), (1_700_000_058_000, 1_700_000_058_001)):
        frame = load(spark, broker, "times", startingTimestamp=str(start), endingTimestamp=str(end))
        found = [(row.partition, row.offset) for row in frame.collect()]
        assert sorted(found) == sorted((r.partition, r.offset) for r in stored if start <= r.timestamp_ms < end)
    frame = load(spark, broker, "times", endingTimestamp="2023-11-14T22:13:30Z", columns="offset, value")
    assert frame.count() == sum(record.timestamp_ms < 1_700_000_010_000 for record in stored)
    frame = load(spark, broker, "times", endingTimestamp="-1s")
    assert frame.count() == len(stored)


def test_times_may_be_relative_and_in_words(spark: SparkSession, broker: BrokerProcess, topics: Topics) -> None:
    topics.create("aged")
    now_ms = time.time_ns() // 1_000_000
    for minutes in (600, 60, 30, 0):
        topics.fill("aged", 0, [Record(None, b"%d" % minutes, now_ms - minutes * 60_000)] * 3)
    half_an_hour_ago = datetime.fromtimestamp(now_ms / 1000 - 1_800, UTC)
    for options, expected in (
        ({"startingTimestamp": "-45m"}, (30, 0)),
        ({"startingTimestamp": "-2h", "endingTimestamp": "-15m"}, (60, 30)),
        ({"startingTimestamp": (half_an_hour_ago - timedelta(seconds=1)).isoformat()}, (30, 0)),
        ({"endingTimestamp": (half_an_hour_ago - timedelta(seconds=1)).isoformat()}, (600, 60)),
    ):
        rows = load(spark, broker, "aged", columns="value string, offset", **options).orderBy("offset").collect()
        assert [int(row.value) for row in rows] == [minutes for minutes in expected for _ in range(3)], options


def test_damage_on_the_disk_is_an_error_unless_checksums_are_not_wanted(
    spark: SparkSession, broker: BrokerProcess, topics: Topics
) -> None:
    topics.create("damaged")
    for first in range(0, 30, 10):
        topics.fill("damaged", 0, [Record(None, b"value %02d" % number) for number in range(first, first + 10)])
    (log,) = (broker.data_dir / "damaged-0").glob("*.log")
    content = log.read_bytes()
    with log.open("r+b") as file:
        file.seek(content.index(b"value 15"))
        file.write(b"VALUE")
    with pytest.raises(PythonException, match=r"damaged-0 offsets 0 to 30, stopped at 10, .*batch at offset 10: CRC"):
        load(spark, broker, "damaged").collect()
    frame = load(spark, broker, "damaged", columns="value string", verifyChecksums="false")
    assert frame.where("value = 'VALUE 15'").count() == 1
    around = load(spark, broker, "damaged", startingOffsets='{"damaged": {"0": 20}}')
    assert around.count() == 10


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "-10"}, [(0, 4_990, 5_000), (1, 990, 1_000)]),
        ({"startingOffsets": "-10", "endingOffsets": "-5"}, [(0, 4_990, 4_995), (1, 990, 995)]),
        ({"partitions": "1"}, [(1, 0, 1_000)]),
        ({"limit": "7"}, [(0, 0, 7)]),
        ({"limit": "5500"}, [(0, 0, 5_000), (1, 0, 500)]),
        ({"subscribe": "", "assign": '{"plain": [1]}'}, [(1, 0, 1_000)]),
        ({"subscribe": "", "subscribePattern": "pl.i?n", "partitions": "1"}, [(1, 0, 1_000)]),
        ({"maxRecordsPerPartition": "900"}, [(0, 0, 5_000), (1, 0, 1_000)]),
        ({"maxBytesPerPartition": "8k"}, [(0, 0, 5_000), (1, 0, 1_000)]),
        ({"fetch.maxBytes": "1k", "fetch.inFlight": "3", "fetch.timeoutMs": "1m"}, [(0, 0, 5_000), (1, 0, 1_000)]),
    ],
)
def test_options_choose_what_is_read(
    spark: SparkSession,
    broker: BrokerProcess,
    plain: list[Stored],
    options: dict[str, str],
    expected: list[tuple[int, int, int]],
) -> None:
    given = {name: value for name, value in options.items() if name != "subscribe"}
    reader = spark.read.format("warmlog").option("bootstrap.servers", broker.address).options(**given)
    frame = (reader if "subscribe" in options else reader.option("subscribe", "plain")).load()
    found = sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())
    assert found == [(partition, offset) for partition, start, end in expected for offset in range(start, end)]
    if "maxRecordsPerPartition" in options:
        counts = frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()
        assert max(counts) <= 900
        assert len(counts) == 8
    if "maxBytesPerPartition" in options:
        assert frame.rdd.getNumPartitions() > 3


def test_take_stops_early_and_leaves_the_broker_and_the_session_whole(
    spark: SparkSession, broker: BrokerProcess, plain: list[Stored]
) -> None:
    frame = load(spark, broker, "plain", minPartitions="4")
    assert len(frame.take(5)) == 5
    assert frame.limit(10).count() == 10
    assert frame.count() == len(plain)
    assert "Traceback" not in broker.output


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        (
            {"startingOfsets": "earliest"},
            None,
            "format warmlog has no option startingofsets: did you mean starting",
        ),
        ({"startingOffsets": "latest"}, None, "option startingOffsets cannot be latest: a batch cannot start"),
        ({"subscribe": "plian"}, None, "topic plian does not exist; did you mean plain?"),
        ({"startingOffsets": '{"plain": {"0": 1}}'}, None, "option startingOffsets leaves out plain-1"),
        (
            {"startingOffsetsByTimestamp": '{"plain": {"0": 1}}', "startingOffsets": "earliest"},
            None,
            "option startingOffsetsByTimestamp leaves out plain-1",
        ),
        (
            {"endingOffsetsByTimestamp": '{"plain": {"0": 1}}'},
            None,
            "option endingOffsetsByTimestamp leaves out plain-1",
        ),
        ({"endingOffsets": '{"plain": {"0": 6000, "1": 1}}'}, None, "plain-0 offsets 0 to 6000: not there yet (broker"),
        (
            {"bootstrap.servers": "127.0.0.1:1", "fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "10"},
            None,
            "is the broker running at 127.0.0.1:1?",
        ),
        ({"partitions": "0-2"}, None, "topic plain has the partitions 0 to 1, not 2"),
        ({"partitions": "0,2-2147483647,5"}, None, "the partitions 0 to 1, not 2 to 2147483647, 5"),
        (
            {"failOnDataLoss": ""},
            None,
            "option failOnDataLoss is empty: whether offsets that are gone or unreadable are an error",
        ),
        ({"startingTimestamp": "2099-01-01"}, None, "a time without a UTC offset: write one"),
        (
            {"startingTimestamp": "2099-01-01T00:00Z", "startingOffsetsByTimestampStrategy": "error"},
            None,
            "no record at or after the start, 2099-01-01T00:00:00.000+00:00",
        ),
        ({}, "value bigint", "column value is binary or string, the schema says bigint"),
        ({}, "valeu binary", "format warmlog has no column valeu: did you mean value?"),
        ({}, "value binary not null", "column value may be null: leave out NOT NULL"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(
    spark: SparkSession, broker: BrokerProcess, plain: list[Stored], options: dict[str, str], schema: str, message: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        load(spark, broker, "plain", schema=schema, **options).count()
    assert message in str(caught.value)


def test_a_table_is_refused_as_spark_would_lose_its_options(spark: SparkSession, broker: BrokerProcess) -> None:
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW … USING warmlog"):
        spark.sql(f"create table t using warmlog options ('bootstrap.servers' '{broker.address}', subscribe 'plain')")


def test_a_dataframe_keeps_its_plan_from_spark_4_1_on(
    spark: SparkSession, broker: BrokerProcess, topics: Topics
) -> None:
    topics.create("growing")
    topics.fill("growing", 0, [Record(None, b"a")] * 3)
    frame = load(spark, broker, "growing")
    assert frame.count() == 3
    topics.fill("growing", 0, [Record(None, b"b")] * 2)
    assert frame.count() == (3 if PLANS_ONCE else 5)
    assert load(spark, broker, "growing").count() == 5


@only_where_it_plans_once
def test_a_topic_deleted_after_planning_is_named_with_its_range(
    spark: SparkSession, broker: BrokerProcess, topics: Topics
) -> None:
    topics.create("fleeting")
    topics.fill("fleeting", 0, [Record(None, b"a")] * 3)
    frame = load(spark, broker, "fleeting")
    assert frame.count() == 3
    topics.delete("fleeting")
    with pytest.raises(PythonException) as caught:
        frame.count()  # reads what the first count() planned
    assert "fleeting-0 offsets 0 to 3, stopped at 0, broker" in str(caught.value)
    assert "the topic was deleted or recreated after these ranges were planned: load() again" in str(caught.value)


@only_where_it_plans_once
def test_a_topic_made_anew_is_skipped_where_data_loss_is_allowed(
    spark: SparkSession, broker: BrokerProcess, topics: Topics
) -> None:
    topics.create("renewed")
    topics.fill("renewed", 0, [Record(None, b"a")] * 3)
    frame = load(spark, broker, "renewed", failOnDataLoss="false")
    strict = load(spark, broker, "renewed")
    assert frame.count() == strict.count() == 3
    topics.delete("renewed")
    topics.create("renewed")
    topics.fill("renewed", 0, [Record(None, b"b")] * 9)
    assert frame.count() == 0
    with pytest.raises(PythonException, match="or set failOnDataLoss to false"):
        strict.count()
    gone = load(spark, broker, "renewed", startingOffsets='{"renewed": {"0": 20}}', failOnDataLoss="false")
    assert gone.count() == 0


def test_registering_a_format_that_was_found_already_does_no_harm(
    spark: SparkSession, broker: BrokerProcess, plain: list[Stored]
) -> None:
    register(spark)
    assert load(spark, broker, "plain").count() == len(plain)
