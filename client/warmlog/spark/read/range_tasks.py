"""Reading the ranges of one task of a load() or micro-batch, in a worker process of Spark."""

import gc
import os
import sys
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from warmlog.ranges.read_settings import Projection, ReadSettings
from warmlog.spark.read.typed_values import TypedValues

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_WORKER = "pyspark.worker"
_IS_REUSED = "SPARK_REUSE_WORKER"
"""Set by Spark if workers are reused; pyspark.daemon checks it too."""


def read_partition(
    partition: InputPartition, columns: Projection | TypedValues, settings: ReadSettings
) -> "Iterator[RecordBatch]":
    """Yield the records of the ranges that are the value of `partition`."""
    from warmlog.ranges.range_reader import read_ranges  # numpy and pyarrow: only where records are read

    hide_modules_from_collector()
    if isinstance(columns, TypedValues):
        return columns.decode(read_ranges(partition.value, columns.projection, settings))
    return read_ranges(partition.value, columns, settings)


@cache
def hide_modules_from_collector() -> None:
    """Freeze all present objects, once, in a worker that Spark reuses.

    Such a process, forked by pyspark.daemon, runs a full collection after each task. Nearly all objects that it visits
    belong to the modules of pyspark, numpy and pyarrow, which stay.
    Reference cycles among objects that exist now, also those of other tasks, will not be collected; later ones will.
    https://docs.python.org/3/library/gc.html#gc.freeze
    """
    if _WORKER in sys.modules and _IS_REUSED in os.environ:
        gc.collect()
        gc.freeze()
