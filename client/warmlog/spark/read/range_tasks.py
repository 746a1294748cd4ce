"""The ranges that one task of a load() or micro-batch reads, and reading them."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from warmlog.ranges.offset_range import OffsetRange
from warmlog.ranges.read_settings import Projection, ReadSettings
from warmlog.spark.read.typed_values import TypedValues
from warmlog.spark.read.worker_process import hide_modules_from_collector

if TYPE_CHECKING:
    from pyarrow import RecordBatch


class RangesPartition(InputPartition):  # type: ignore[misc]
    """What one task reads; empty in the only partition of a plan without records, as Spark needs at least one."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        super().__init__(tuple(ranges))


def read_partition(
    partition: InputPartition, columns: Projection | TypedValues, settings: ReadSettings
) -> "Iterator[RecordBatch]":
    """Yield the records of `partition` with these columns."""
    from warmlog.ranges.range_reader import read_ranges  # numpy and pyarrow: only where records are read

    hide_modules_from_collector()
    if isinstance(columns, TypedValues):
        return columns.decode(read_ranges(partition.value or (), columns.projection, settings))
    return read_ranges(partition.value or (), columns, settings)
