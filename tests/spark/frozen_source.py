"""Our source, which yields how many objects its worker hides from the garbage collector in place of the records.

Pickled by value: workers do not see the tests. The process that they are forks of hides its modules itself, so those of
the worker are shown again first.
"""

import gc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from warmlog.spark.read.range_tasks import hide_modules_from_collector
from warmlog.spark.source import WarmlogDataSource, WarmlogReader


class FrozenReader(WarmlogReader):
    def read(self, partition: Any) -> Iterator[Any]:
        gc.unfreeze()
        hide_modules_from_collector.cache_clear()
        for _ in super().read(partition):
            pass
        yield pa.RecordBatch.from_pydict({"offset": [gc.get_freeze_count()]})


class FrozenSource(WarmlogDataSource):
    @classmethod
    def name(cls) -> str:
        return "warmlog_frozen"

    def reader(self, schema: Any) -> FrozenReader:
        planned = super().reader(schema)
        return FrozenReader(planned._options, planned._columns)
