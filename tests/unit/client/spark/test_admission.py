"""What Spark 4.2 and later ask of a stream's reader: limits of a micro-batch, and all that is available now."""

import inspect
from typing import Any

import pytest

from unit.client.spark.stream.test_planner import FakeDiscovery
from unit.client.spark.stream_readers import reader_of

spark: Any = pytest.importorskip(
    "pyspark.sql.streaming.datasource", reason="Spark 4.0 and 4.1 have no admission control"
)


def test_spark_4_2_sees_admission_control_and_available_now() -> None:
    reader = reader_of(FakeDiscovery(p0=(0, 10)))
    assert list(inspect.signature(reader.latestOffset).parameters) == ["start", "limit"]
    assert isinstance(reader, spark.SupportsTriggerAvailableNow)


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, spark.ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5"}, spark.ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "1k"}, spark.ReadMaxBytes(1024)),
        ({"minOffsetsPerTrigger": "7"}, spark.ReadMinRows(7)),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "7", "maxBytesPerTrigger": "1k"}, spark.ReadMaxRows(5)),
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
    assert reader.latestOffset({"t": {"0": 9_950}}, spark.ReadAllAvailable()) == {"t": {"0": 10_000}}
