"""The same source, but with a tuple for each record. Pickled by value: workers do not see the benchmarks."""

from collections.abc import Iterator
from typing import Any

from warmlog.spark.source import WarmlogDataSource, WarmlogReader


class TupleReader(WarmlogReader):
    def read(self, partition: Any) -> Iterator[Any]:
        for batch in super().read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class TupleSource(WarmlogDataSource):
    @classmethod
    def name(cls) -> str:
        return "warmlog_tuples"

    def reader(self, schema: Any) -> TupleReader:
        planned = super().reader(schema)
        return TupleReader(planned._options, planned._columns)
