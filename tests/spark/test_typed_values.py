"""`valueFormat` json in a real session: what the reader decodes is what Spark's `from_json` makes of it."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from broker_process import BrokerProcess
from spark.topics import Record, Topics

FIELDS = (
    "id bigint, name string, v double, flag boolean, day date, at timestamp, tags array<string>, "
    "place struct<city: string, zip: int>, price decimal(10,2)"
)


def some_document(random: Random, number: int) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": number,
        "name": random.choice(["a", "größe", None, 'quote " and \\']),
        "v": random.choice([1.5, -2, 1e100]),
        "flag": random.choice([True, False]),
        "day": f"2026-0{random.randrange(1, 10)}-11",
        "at": f"2026-11-21T10:{random.randrange(10, 60)}:00.{random.randrange(100, 999)}Z",
        "tags": random.choice([[], ["x", None], None]),
        "place": random.choice([None, {"city": "Zürich"}, {"city": "x", "zip": 8000, "more": [1]}]),
        "price": random.choice([1.25, 3]),
        "unknown": {"nested": [{"a": "}"}]},
    }
    return {name: value for name, value in document.items() if random.random() < 0.9}


def load(spark: SparkSession, broker: BrokerProcess, topic: str, schema: str | None, **options: str) -> DataFrame:
    reader = spark.read.format("warmlog").option("bootstrap.servers", broker.address).option("subscribe", topic)
    return (reader.schema(schema) if schema else reader).options(**options).load()


@pytest.fixture(scope="module")
def typed(topics: Topics) -> str:
    """3,000 documents, every 100th of which is no JSON, with tombstones in between."""
    random = Random(3)
    topics.create("typed", partitions=2)
    for first in range(0, 3_000, 250):
        records = []
        for number in range(first, first + 250):
            value: bytes | None = json.dumps(some_document(random, number), ensure_ascii=False).encode()
            if number % 100 == 0:
                value = b'{"id": broken'
            elif number % 100 == 1:
                value = None
            records.append(Record(b"%d" % number, value))
        topics.fill("typed", first // 250 % 2, records)
    return "typed"


def test_what_the_reader_decodes_is_what_from_json_makes_of_it(
    spark: SparkSession, broker: BrokerProcess, typed: str
) -> None:
    plain = load(spark, broker, typed, None)
    parsed = plain.selectExpr(f"from_json(cast(value as string), '{FIELDS}') as j", "partition", "offset")
    expected = parsed.selectExpr("j.*", "partition as _partition", "offset as _offset")
    found = load(spark, broker, typed, f"{FIELDS}, _partition int, _offset bigint", valueFormat="json")
    assert found.schema == expected.schema
    order = ["_partition", "_offset"]
    assert found.sort(order).collect() == expected.sort(order).collect()


def test_records_that_do_not_fit_are_kept_apart_or_end_the_query(
    spark: SparkSession, broker: BrokerProcess, typed: str
) -> None:
    found = load(spark, broker, typed, "_key string, id bigint, _corrupt string", valueFormat="json")
    corrupt = found.where("_corrupt is not null").collect()
    assert sorted(int(row._key) for row in corrupt) == list(range(0, 3_000, 100))
    assert {(row.id, row._corrupt) for row in corrupt} == {(None, '{"id": broken')}
    assert found.count() == 3_000
    with pytest.raises(
        PySparkException, match=r"typed-0 offset 0: the value b'\{\"id\": broken' does not fit the schem"
    ):
        load(spark, broker, typed, "id bigint", valueFormat="json", mode="failfast").count()
    with pytest.raises(PySparkException, match=r"column place.zip may be null: leave out NOT NULL"):
        load(spark, broker, typed, "place struct<zip: int NOT NULL>", valueFormat="json").count()
    with pytest.raises(PySparkException, match="valueFormat json needs the columns"):
        load(spark, broker, typed, None, valueFormat="json")


@pytest.mark.usefixtures("times_without_zone")
def test_a_records_own_time_has_a_zone_whatever_timestamp_means_in_the_session(
    spark: SparkSession, broker: BrokerProcess, typed: str
) -> None:
    assert load(spark, broker, typed, "_timestamp timestamp_ltz", valueFormat="json").count() == 3_000
    with pytest.raises(PySparkException, match="column _timestamp is timestamp_ltz, the schema says timestamp_ntz"):
        load(spark, broker, typed, "_timestamp timestamp", valueFormat="json").count()


def test_a_stream_decodes_as_well(spark: SparkSession, broker: BrokerProcess, typed: str, tmp_path: Path) -> None:
    reader = spark.readStream.format("warmlog").schema("id bigint, _offset bigint").option("subscribe", typed)
    stream = reader.options(valueFormat="json", startingOffsets="earliest", **{"bootstrap.servers": broker.address})
    writer = stream.load().writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.option("path", str(tmp_path / "data")).trigger(availableNow=True).start()
    assert query.awaitTermination(180)
    frame = spark.read.parquet(str(tmp_path / "data"))
    assert (frame.count(), frame.where("id is not null").count()) == (
        3_000,
        load(spark, broker, typed, "id bigint", valueFormat="json").where("id is not null").count(),
    )
