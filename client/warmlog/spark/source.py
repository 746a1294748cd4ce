"""The data source of `spark.read.format("warmlog")`.

Spark pickles these classes by name, so executors need warmlog. `load()` creates a WarmlogDataSource for its schema; the
first action plans the ranges, in another process on the driver, and each task reads some of them. Spark 4.1 and later
plan once for a load(), 4.0 at every action.

Filters are never pushed down: in all versions of Spark that can do that, a pushed filter leaks into the other scans of
the same load() and gives wrong results. Spark refuses a reader class that even has `pushFilters`.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from warmlog.ranges.read_settings import Projection
from warmlog.spark.options.option_table import Use
from warmlog.spark.options.options import take_options
from warmlog.spark.options.read_options import ReadOptions, parse_read_options, parse_stream_options, projection_of
from warmlog.spark.options.schema import chosen_columns, schema_of
from warmlog.spark.options.write_options import parse_write_options
from warmlog.spark.read.range_tasks import read_partition
from warmlog.spark.read.typed_values import TypedValues, typed_values
from warmlog_protocol.errors import InvalidConfig

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from warmlog.spark.stream.reader import WarmlogStreamReader
    from warmlog.spark.write.writer import WarmlogStreamWriter, WarmlogWriter


class WarmlogDataSource(DataSource):  # type: ignore[misc]
    """Topics of a warmlog broker, in the columns of Spark's Kafka connector."""

    @classmethod
    def name(cls) -> str:
        return "warmlog"

    def schema(self) -> str:
        """Return the columns of a load() without a schema; InvalidConfig for bad options."""
        options = take_options(self.options, Use.READ)
        if "valueFormat" in options:
            raise InvalidConfig('valueFormat json needs the columns: .schema("id long, name string, _offset long")')
        return schema_of(projection_of(options))

    def writer(self, schema: Any, overwrite: bool) -> "WarmlogWriter":
        """Return a writer of the columns in `schema`; asks the broker for the topic, so that a wrong name fails now."""
        from warmlog.spark.write.writer import batch_writer  # not in every process that looks up the format

        return batch_writer(parse_write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> "WarmlogStreamWriter":  # noqa: N802 - Spark's name
        """Return a writer of the columns in `schema`, for one micro-batch or for its commit."""
        from warmlog.spark.write.writer import stream_writer

        return stream_writer(parse_write_options(self.options), schema, overwrite=overwrite)

    def reader(self, schema: Any) -> "WarmlogReader":
        """Return a reader of the columns in `schema`; InvalidConfig for bad options or columns."""
        arrow_schema = None if hasattr(schema, "fields") else schema
        options = parse_read_options(self.options, time.time_ns() // 1_000_000)
        return WarmlogReader(options, self._made_of(schema), arrow_schema)

    def streamReader(self, schema: Any) -> "WarmlogStreamReader":  # noqa: N802 - Spark's name
        from warmlog.spark.stream.reader import WarmlogStreamReader

        return WarmlogStreamReader(
            parse_stream_options(self.options, time.time_ns() // 1_000_000), self._made_of(schema)
        )

    def _made_of(self, schema: Any) -> Projection | TypedValues:
        """Return the columns of `schema`, or how their values are decoded."""
        options = take_options(self.options, Use.READ)
        if (typed := typed_values(options, schema)) is not None:
            return typed
        projection = chosen_columns(schema)
        if "columns" not in options and options.boolean("includeHeaders") and "headers" not in projection.names:
            raise InvalidConfig("option includeHeaders is true, but the schema names no headers: add the column")
        if "columns" in options and projection != projection_of(options):
            raise InvalidConfig("the columns are given twice, by .schema(…) and by the option columns: leave out one")
        return projection


class WarmlogReader(DataSourceReader):  # type: ignore[misc]
    """Plans and reads one load(). Spark copies it to the tasks before it plans, so the partitions carry the plan."""

    def __init__(self, options: ReadOptions, columns: Projection | TypedValues, arrow_schema: Any = None) -> None:
        """`arrow_schema` is the one that Sail expects, whose types are not Spark's."""
        self._options = options
        self._columns = columns
        self._arrow_schema = arrow_schema

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each task, at least one, whose value is its ranges; asks the broker once."""
        from warmlog.spark.read.planning import plan_batch  # not in every process that looks up the format

        return [InputPartition(task) for task in plan_batch(self._options) or [()]]

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        """Yield the records of `partition` in offset order. Reading it again gives the same, or an error."""
        batches = read_partition(partition, self._columns, self._options.reading)
        if self._arrow_schema is None:
            return batches
        return (batch.cast(self._arrow_schema) for batch in batches)
