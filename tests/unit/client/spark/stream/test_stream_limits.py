"""What the stream reader makes of the limits that Spark hands it, which it does since 4.2."""

import inspect
from typing import Any

import pytest

from unit.client.spark.stream.test_planner import FakeDiscovery
from unit.client.spark.stream_readers import reader_of

pytest.importorskip("pyspark.sql.streaming.datasource", reason="Spark hands no limits before 4.2")

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)


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
