"""The data source as Spark finds and ships it, without a session."""

import pickle
import subprocess
import sys

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructField, StructType

import pyspark_warmlog
from warmlog.errors import InvalidConfig
from warmlog.ranges.offset_range import OffsetRange
from warmlog.ranges.read_settings import Projection
from warmlog.spark.options.read_options import parse_read_options
from warmlog.spark.source import RangesPartition, WarmlogDataSource, WarmlogReader

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
    ranges = [OffsetRange("t", 0, 5, 10, "b:1", b"id")]
    partition = pickle.loads(pickle.dumps(RangesPartition(ranges)))
    assert isinstance(partition, InputPartition)
    assert partition.value == tuple(ranges)
    assert list(reader.read(pickle.loads(pickle.dumps(RangesPartition([]))))) == []


def test_the_reader_takes_no_filters() -> None:
    """One that did would fail every read where Spark has them switched off, and give wrong results where on."""
    assert issubclass(WarmlogReader, DataSourceReader)
    assert "pushFilters" not in vars(WarmlogReader)
