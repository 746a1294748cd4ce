"""A data source of 100 rows that takes the filter `offset >= n`. Pickled by value: workers do not see the tests."""

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, GreaterThanOrEqual


class LeakingReader(DataSourceReader):  # type: ignore[misc]
    start = 0

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name
        for pushed in filters:
            if isinstance(pushed, GreaterThanOrEqual):
                self.start = max(self.start, pushed.value)
            else:
                yield pushed

    def read(self, partition: Any) -> Iterator[tuple[int]]:
        return ((offset,) for offset in range(self.start, 100))


class LeakingSource(DataSource):  # type: ignore[misc]
    @classmethod
    def name(cls) -> str:
        return "leaking"

    def schema(self) -> str:
        return "offset bigint"

    def reader(self, schema: Any) -> LeakingReader:
        return LeakingReader()
