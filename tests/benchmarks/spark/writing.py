"""Writing from Spark, and with a writer that throws everything away: the most that any writer can reach."""

import asyncio
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from benchmarks.measurement import VALUE_BYTES, Run
from benchmarks.spark import plain_source
from benchmarks.spark.reading import timed
from warmlog import Admin, Consumer

TASKS = 2
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
KEYED_PARTITIONS = 8
"""So that keys have something to choose from."""

_numbers = itertools.count()


class Discarded(WriterCommitMessage):  # type: ignore[misc]
    """Nothing to tell."""


class DiscardingWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Counts rows, so that every batch is received."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        sum(batch.num_rows for batch in iterator)
        return Discarded()


class DiscardingSource(DataSource):  # type: ignore[misc]
    """A format to write to and forget."""

    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return DiscardingWriter()


class CachedRows:
    """Rows of distinct values, and keys of 12 bytes, in Spark's memory from the first run on: making them is not
    measured."""

    def __init__(self, session: Any, records: int) -> None:
        self._session = session
        self.records = records
        self._frame: Any = None

    def frame(self, *, with_keys: bool) -> Any:
        if self._frame is None:
            columns = (
                f"lpad(cast(id as string), {VALUE_BYTES}, '0') as value",
                "lpad(cast(id as string), 12, 'k') as key",
            )
            self._frame = self._session.range(0, self.records, 1, TASKS).selectExpr(*columns).cache()
            self._session.dataSource.register(DiscardingSource)
        assert self._frame.count() == self.records
        return self._frame if with_keys else self._frame.select("value")

    def discard(self, *, with_keys: bool) -> Run:
        """The rows go to the Python workers and nowhere else."""
        writer = self.frame(with_keys=with_keys).write.format("discard").mode("append")
        return timed(self.records, lambda: writer.save() or self.records)

    def write(self, bootstrap: str, *, with_keys: bool, delivery: str = EXACTLY_ONCE) -> Run:
        """The rows are on the broker's disk when this returns, and committed; to a topic of their own."""
        topic = f"bench-write-{next(_numbers)}"
        frame = self.frame(with_keys=with_keys)
        asyncio.run(_create(bootstrap, topic, KEYED_PARTITIONS if with_keys else TASKS))
        writer = frame.write.format("warmlog").mode("append").option("bootstrap.servers", bootstrap)
        writer = writer.option("delivery", delivery)
        run = timed(self.records, lambda: writer.option("topic", topic).save() or self.records)
        written = asyncio.run(_count_and_delete(bootstrap, topic))
        assert written == self.records, f"{written} of {self.records} records"
        return run

    def store(self, port: int, directory: Path, *, with_keys: bool) -> Run:
        """The rows go by TCP to a plain_server and are on disk when this returns: what no writer that sends them there
        can be faster than."""
        plain_source.register(self._session)
        writer = self.frame(with_keys=with_keys).write.format("warmlog_plain").mode("append").option("port", port)
        directory.mkdir()
        try:
            return timed(self.records, lambda: writer.option("directory", str(directory)).save() or self.records)
        finally:
            shutil.rmtree(directory)


async def _create(bootstrap: str, topic: str, partitions: int) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=partitions)


async def _count_and_delete(bootstrap: str, topic: str) -> int:
    """Delete the topic; how many committed records it had."""
    async with Consumer(bootstrap, topics=[topic], isolation="read_committed") as consumer:
        count = sum([len(batch) async for batch in consumer.batches(until="latest")])
    async with Admin(bootstrap) as admin:
        await admin.delete_topic(topic)
    return count
