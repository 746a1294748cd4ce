"""The stream reader as Spark calls it, new and old, without a session."""

import inspect
import json
import pickle
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import BinaryType, StructField, StructType

from unit.spark.test_stream_planner import FakeDiscovery, planner_of
from warmlog.spark.source import WarmlogDataSource
from warmlog.spark.stream_reader import WarmlogStreamReader

SCHEMA = StructType([StructField("value", BinaryType())])


def reader_of(broker: FakeDiscovery, **options: str) -> WarmlogStreamReader:
    given = {"bootstrap.servers": "b:1", "subscribe": "t", "startingOffsets": "earliest", **options}
    reader = WarmlogDataSource(given).streamReader(SCHEMA)
    reader = pickle.loads(pickle.dumps(reader))  # as it comes to the process that plans
    assert isinstance(reader, WarmlogStreamReader)
    reader._opened = planner_of(broker, **{name: value for name, value in given.items() if "." not in name})
    return reader


def ranges(reader: WarmlogStreamReader, start: Any, end: Any) -> list[str]:
    return [str(planned) for partition in reader.partitions(start, end) for planned in partition.value]


def test_offsets_are_kafkas_json_sorted_by_number() -> None:
    reader = reader_of(FakeDiscovery(**{f"p{number}": (0, number) for number in range(12)}))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert json.dumps(end) == json.dumps({"t": {str(number): number for number in range(12)}})
    assert reader.reportLatestOffset() == end


def test_spark_4_2_sees_admission_control_and_available_now() -> None:
    reader = reader_of(FakeDiscovery(p0=(0, 10)))
    assert list(inspect.signature(reader.latestOffset).parameters) == ["start", "limit"]
    assert isinstance(reader, SupportsTriggerAvailableNow)


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "1k"}, ReadMaxBytes(1024)),
        ({"minOffsetsPerTrigger": "7"}, ReadMinRows(7)),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "7", "maxBytesPerTrigger": "1k"}, ReadMaxRows(5)),
    ],
)
def test_the_limit_for_spark_is_that_of_the_options(options: dict[str, str], limit: Any) -> None:
    assert reader_of(FakeDiscovery(p0=(0, 10)), **options).getDefaultReadLimit() == limit


def test_limits_of_the_options_are_kept_beside_sparks_unless_it_asks_for_all() -> None:
    options = {"maxOffsetsPerTrigger": "500", "minOffsetsPerTrigger": "100", "maxBytesPerTrigger": "10k"}
    broker = FakeDiscovery(p0=(0, 10_000))
    reader = reader_of(broker, **options)
    start = {"t": {"0": 0}}
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert 0 < end["t"]["0"] < 500
    assert reader.latestOffset({"t": {"0": 9_950}}, reader.getDefaultReadLimit()) == {"t": {"0": 9_950}}
    assert reader.latestOffset({"t": {"0": 9_950}}, ReadAllAvailable()) == {"t": {"0": 10_000}}


def test_spark_4_0_asks_without_a_start_and_limits_are_kept_from_where_the_last_micro_batch_ended() -> None:
    broker = FakeDiscovery(p0=(0, 100))
    reader = reader_of(broker, maxOffsetsPerTrigger="40")
    assert reader.latestOffset() == {"t": {"0": 40}}, "the first question, before initialOffset"
    assert reader.initialOffset() == {"t": {"0": 0}}
    assert ranges(reader, {"t": {"0": 0}}, {"t": {"0": 40}}) == ["t-0 offsets 0 to 40"]
    assert [reader.latestOffset()["t"]["0"] for _ in range(3)] == [80, 100, 100]

    again = reader_of(broker, maxOffsetsPerTrigger="40")
    assert ranges(again, {"t": {"0": 80}}, {"t": {"0": 80}}) == [], "what a restart asks first"
    assert again.latestOffset() == {"t": {"0": 100}}


def test_a_reader_that_was_never_used_can_be_stopped() -> None:
    WarmlogDataSource({"bootstrap.servers": "b:1", "subscribe": "t"}).streamReader(SCHEMA).stop()
