"""A source that yields Arrow batches out of mapped files, one task a file: all that is left of a read is Spark.

Pickled by value: workers do not see the benchmarks.
"""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from warmlog.spark.worker_process import hide_modules_from_collector


class MappedReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(path) for path in self._paths]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        hide_modules_from_collector()
        with pa.memory_map(partition.value) as memory, pa.ipc.open_stream(memory) as stream:
            yield from stream


class MappedSource(DataSource):  # type: ignore[misc]
    @classmethod
    def name(cls) -> str:
        return "warmlog_mapped"

    def schema(self) -> str:
        return "value binary"

    def reader(self, schema: Any) -> MappedReader:
        return MappedReader(json.loads(self.options["paths"]))
