"""The stream reader as every Spark from 4.0 on calls it, without a session."""

import json
from typing import Any

from unit.client.spark.stream.test_planner import FakeDiscovery
from unit.client.spark.stream_readers import SCHEMA, reader_of
from warmlog.spark.source import WarmlogDataSource
from warmlog.spark.stream.reader import WarmlogStreamReader


def ranges(reader: WarmlogStreamReader, start: Any, end: Any) -> list[str]:
    return [str(planned) for partition in reader.partitions(start, end) for planned in partition.value]


def test_offsets_are_kafkas_json_sorted_by_number() -> None:
    reader = reader_of(FakeDiscovery(**{f"p{number}": (0, number) for number in range(12)}))
    end = reader.latestOffset(reader.initialOffset())
    assert json.dumps(end) == json.dumps({"t": {str(number): number for number in range(12)}})
    assert reader.reportLatestOffset() == end


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
