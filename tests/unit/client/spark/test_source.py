"""The data source and its stream reader as Spark ships and calls them; how a micro-batch's limit is shared out."""

import json
import pickle
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructField, StructType

import pyspark_warmlog
from unit.client.spark.stream.test_planner import FakeDiscovery
from unit.client.spark.stream_readers import SCHEMA, reader_of
from warmlog.errors import InvalidConfig
from warmlog.ranges.offset_range import OffsetRange, Piece
from warmlog.ranges.read_settings import Projection
from warmlog.spark.options.read_options import parse_read_options
from warmlog.spark.source import WarmlogDataSource, WarmlogReader
from warmlog.spark.stream.ranges import admit_bytes, admit_offsets, begin_of, is_enough
from warmlog.spark.stream.reader import WarmlogStreamReader
from warmlog_transport.responses import TopicPartition

places = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 12))
starts = st.dictionaries(places, st.integers(0, 1000), max_size=8)
growths = st.dictionaries(places, st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 10**6)), max_size=8)


@given(start=starts, growth=growths, limit=st.integers(1, 10_000))
def test_the_limit_is_shared_in_proportion_and_nobody_is_left_out(
    start: dict[TopicPartition, int], growth: dict[TopicPartition, int], limit: int
) -> None:
    available = {place: start.get(place, 0) + more for place, more in growth.items()}
    end = admit_offsets(start, available, limit)
    taken = {place: end[place] - start.get(place, 0) for place in available}
    new = {place: more for place, more in growth.items() if more}
    assert end.keys() == available.keys()
    assert all(0 <= taken[place] <= growth[place] for place in available)
    assert all(taken[place] >= 1 for place in new)
    assert sum(taken.values()) <= max(limit, len(new))
    assert sum(taken.values()) >= min(limit, sum(new.values())) - len(new)


@given(start=starts, growth=growths, limit=st.integers(1000, 10**6))
def test_micro_batches_end(start: dict[TopicPartition, int], growth: dict[TopicPartition, int], limit: int) -> None:
    available = {place: start.get(place, 0) + more for place, more in growth.items()}
    position = dict(start)
    for _ in range(sum(growth.values()) // (limit // 2) + 8 + 1):
        position |= admit_offsets(position, available, limit)
    assert {place: position.get(place, 0) for place in available} == available


piece_lists = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 10_000)), max_size=10)


@given(lists=st.dictionaries(places, piece_lists, max_size=5), limit=st.integers(1, 30_000))
def test_a_limit_in_bytes_is_between_batches(lists: dict[TopicPartition, list[tuple[int, int]]], limit: int) -> None:
    pieces: dict[TopicPartition, list[Piece]] = {}
    for place, own in lists.items():
        ends = [sum(count for count, _ in own[: number + 1]) for number in range(len(own))]
        pieces[place] = [Piece(end, size) for end, (_, size) in zip(ends, own, strict=True)]
    available = {place: own[-1].end if own else 0 for place, own in pieces.items()}
    end = admit_bytes(available, pieces, limit)
    taken = 0
    for place, own in pieces.items():
        inside = [piece for piece in own if piece.end <= end[place]]
        assert not own or (inside and inside[-1].end == end[place])
        taken += sum(piece.size_bytes for piece in inside[1:])
    assert taken <= limit


def test_a_partition_that_is_new_or_made_anew_begins_at_0() -> None:
    start = {("t", 0): 50}
    assert begin_of(start, ("t", 0), 60) == 50
    assert begin_of(start, ("t", 0), 7) == 0
    assert begin_of(start, ("t", 1), 7) == 0
    assert admit_offsets(start, {("t", 0): 7, ("t", 1): 7}, 6) == {("t", 0): 3, ("t", 1): 3}


def test_enough_is_counted_over_all_partitions() -> None:
    start = {("t", 0): 50}
    assert is_enough(start, {("t", 0): 55, ("t", 1): 5}, 10)
    assert not is_enough(start, {("t", 0): 55, ("t", 1): 5}, 11)


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


# Spark 4.0 loads numpy itself.
HEAVY_MODULES = """
import sys
import pyspark.sql.datasource
before = set(sys.modules)
import pyspark_warmlog
print([name for name in ("numpy", "pyarrow", "pandas") if name in set(sys.modules) - before])
"""

OPTIONS = {"bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}


def test_spark_finds_the_format_in_a_module_that_loads_nothing_heavy() -> None:
    assert pyspark_warmlog.DefaultSource is WarmlogDataSource
    assert issubclass(WarmlogDataSource, DataSource)
    assert WarmlogDataSource.name() == "warmlog"
    done = subprocess.run([sys.executable, "-c", HEAVY_MODULES], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_headers_are_a_column_only_when_asked_for() -> None:
    assert "headers" not in WarmlogDataSource(OPTIONS).schema()
    assert "headers" in WarmlogDataSource({**OPTIONS, "includeHeaders": "true"}).schema()


def test_columns_are_an_option_or_a_schema_but_not_two_of_them() -> None:
    source = WarmlogDataSource({**OPTIONS, "columns": "value string, offset"})
    assert source.schema() == "value string, offset bigint"
    source.reader(StructType([StructField("value", StringType()), StructField("offset", LongType())]))
    with pytest.raises(InvalidConfig, match="the columns are given twice"):
        source.reader(StructType([StructField("value", BinaryType())]))
    with pytest.raises(InvalidConfig, match="leave out the option includeHeaders"):
        WarmlogDataSource({**OPTIONS, "columns": "value", "includeHeaders": "true"}).schema()


def test_headers_that_are_asked_for_must_be_in_the_schema() -> None:
    source = WarmlogDataSource({**OPTIONS, "includeHeaders": "true"})
    with pytest.raises(InvalidConfig, match="includeHeaders is true, but the schema names no headers"):
        source.reader(StructType([StructField("value", BinaryType())]))
    pair = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    named = StructType([StructField("value", BinaryType()), StructField("headers", ArrayType(pair))])
    assert vars(source.reader(named))["_columns"].names == ("value", "headers")
    WarmlogDataSource({**OPTIONS, "includeHeaders": "false"}).reader(StructType([StructField("value", BinaryType())]))


def test_reader_and_partitions_travel_to_the_tasks_by_pickle() -> None:
    reader = WarmlogDataSource(OPTIONS).reader(StructType([StructField("value", BinaryType())]))
    assert vars(pickle.loads(pickle.dumps(reader))) == {
        "_options": parse_read_options(OPTIONS, 0),
        "_columns": Projection(("value",)),
        "_arrow_schema": None,
    }
    ranges = (OffsetRange("t", 0, 5, 10, "b:1", b"id"),)
    assert pickle.loads(pickle.dumps(InputPartition(ranges))).value == ranges
    assert list(reader.read(InputPartition(()))) == []


def test_the_reader_takes_no_filters() -> None:
    """One that did would fail every read where Spark has them switched off, and give wrong results where on."""
    assert issubclass(WarmlogReader, DataSourceReader)
    assert "pushFilters" not in vars(WarmlogReader)
