"""Runs of reading: each takes a session and says how many records it has read in how many seconds."""

import json
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.measurement import VALUE_BYTES, Run
from benchmarks.spark import plain_source
from benchmarks.spark.session import cpu_since, spark_processes

JVM_CPU, PYTHON_CPU = "jvm_cpu_us", "python_cpu_us"


def load(session: Any, bootstrap: str, topic: str, columns: str | None = None) -> Any:
    reader = session.read.format("warmlog").option("bootstrap.servers", bootstrap).option("subscribe", topic)
    return (reader.option("columns", columns) if columns else reader).load()


def timed(records: int, action: Callable[[], int]) -> Run:
    """`action`, which returns what must be `records`, with the processor time that a record took."""
    before = spark_processes()
    start = time.perf_counter()
    found = action()
    seconds = time.perf_counter() - start
    used = cpu_since(before)
    assert found == records, f"{found} of {records} records"
    return Run(
        records,
        seconds,
        {
            JVM_CPU: used.jvm / records * 1e6,
            PYTHON_CPU: used.python / records * 1e6,
        },
    )


def count(session: Any, bootstrap: str, topic: str, records: int) -> Run:
    """count() of the values."""
    return timed(records, lambda: load(session, bootstrap, topic, "value").count())


def sum_length(session: Any, bootstrap: str, topic: str, records: int) -> Run:
    """sum(length(value)) of key, value and timestamp."""

    def action() -> int:
        frame = load(session, bootstrap, topic, "key, value, timestamp")
        return int(frame.selectExpr("sum(length(value))").first()[0]) // VALUE_BYTES

    return timed(records, action)


def seven_columns(session: Any, bootstrap: str, topic: str, records: int) -> Run:
    """count() of Kafka's seven columns, all of which are built and sent to the JVM."""
    return timed(records, lambda: load(session, bootstrap, topic).count())


def parquet(session: Any, bootstrap: str, topic: str, records: int, path: Path) -> Run:
    """Key, value and timestamp to Parquet, with Spark's writer."""
    return write_parquet(session, lambda: load(session, bootstrap, topic, "key, value, timestamp"), records, path)


def parquet_seven(session: Any, bootstrap: str, topic: str, records: int, path: Path) -> Run:
    """Kafka's seven columns to Parquet, with Spark's writer."""
    return write_parquet(session, lambda: load(session, bootstrap, topic), records, path)


def write_parquet(session: Any, frame: Callable[[], Any], records: int, path: Path) -> Run:
    """What `frame` loads, to Parquet with Spark's writer."""

    def action() -> int:
        frame().write.mode("overwrite").parquet(str(path))
        return records

    run = timed(records, action)
    assert session.read.parquet(str(path)).count() == records
    return run


class SameBytes:
    """What the reader makes of a topic's values, in mapped files of Arrow batches, one for each partition."""

    def __init__(self, session: Any, bootstrap: str, topic: str, directory: Path) -> None:
        self._session = session
        self._bootstrap = bootstrap
        self._topic = topic
        self._directory = directory
        self._paths: list[str] = []

    def count(self, records: int) -> Run:
        """count() of mapInArrow over them: all that is left is Spark. The first run makes the files."""
        paths = self._made()

        def batches_from_memory(parts: Iterator[Any]) -> Iterator[Any]:
            for part in parts:
                for number in part["id"].to_pylist():
                    with pa.memory_map(paths[number]) as memory, pa.ipc.open_stream(memory) as stream:
                        yield from stream

        def action() -> int:
            numbers = self._session.range(0, len(paths), 1, len(paths))
            return int(numbers.mapInArrow(batches_from_memory, "value binary").count())

        return timed(records, action)

    def count_of_source(self, records: int, port: int | None = None) -> Run:
        """count() of a data source over them: what no source can be faster than. With the `port` of a plain_server
        it has them from there: what no source that reads by TCP can be faster than."""
        plain_source.register(self._session)
        reader = self._session.read.format("warmlog_plain").option("paths", json.dumps(self._made()))
        if port is not None:
            reader = reader.option("port", port)
        return timed(records, lambda: reader.load().count())

    def _made(self) -> list[str]:
        self._paths = self._paths or list(self._write())
        return self._paths

    def _write(self) -> Iterator[str]:
        from warmlog.arrow.reader import arrow_schema
        from warmlog.ranges.arrow_reader import arrow_reader

        with arrow_reader(self._bootstrap, [self._topic], columns=["partition", "value"]) as reader:
            for number, batches in groupby(reader, key=lambda batch: batch["partition"][0].as_py()):
                path = str(self._directory / f"values-{number}.arrows")
                with pa.ipc.new_stream(path, arrow_schema(["value"])) as file:
                    for batch in batches:
                        file.write_batch(batch.select(["value"]))
                yield path


def tuples(session: Any, bootstrap: str, topic: str, records: int, ends: dict[str, dict[str, int]]) -> Run:
    """count() of the values up to `ends`, given to Spark as tuples: what a source without Arrow would do."""
    from pyspark import cloudpickle

    from benchmarks.spark import tuple_source

    cloudpickle.register_pickle_by_value(tuple_source)
    session.dataSource.register(tuple_source.TupleSource)
    reader = session.read.format("warmlog_tuples").option("bootstrap.servers", bootstrap).option("subscribe", topic)
    frame = reader.option("columns", "value").option("endingOffsets", json.dumps(ends))
    return timed(records, lambda: frame.load().count())
