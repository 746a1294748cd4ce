"""Runs of reading: each takes a session and says how many records it has read in how many seconds."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.measurement import VALUE_BYTES, Run
from benchmarks.spark.session import cpu_seconds

JVM_CPU, PYTHON_CPU = "jvm_cpu_us", "python_cpu_us"
CEILING_ROWS = 10_000
"""Of one Arrow batch: 1 MiB of values, as the reader makes them."""


def load(session: Any, bootstrap: str, topic: str, columns: str | None = None) -> Any:
    reader = session.read.format("warmlog").option("bootstrap.servers", bootstrap).option("subscribe", topic)
    return (reader.option("columns", columns) if columns else reader).load()


def timed(records: int, action: Callable[[], int]) -> Run:
    """`action`, which returns what must be `records`, with the processor time that a record took."""
    before = cpu_seconds()
    start = time.perf_counter()
    found = action()
    seconds = time.perf_counter() - start
    after = cpu_seconds()
    assert found == records, f"{found} of {records} records"
    return Run(
        records,
        seconds,
        {
            JVM_CPU: (after.jvm - before.jvm) / records * 1e6,
            PYTHON_CPU: (after.python - before.python) / records * 1e6,
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


def ceiling(session: Any, records: int) -> Run:
    """count() of mapInArrow that yields the same batch of values from memory again and again: the JVM's limit."""
    batches = records // CEILING_ROWS

    def batches_from_memory(parts: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        batch = pa.record_batch([pa.array([b"x" * VALUE_BYTES] * CEILING_ROWS, pa.binary())], ["value"])
        for part in parts:
            for _ in range(part.num_rows):
                yield batch

    def action() -> int:
        frame = session.range(0, batches, 1, 2)
        return int(frame.mapInArrow(batches_from_memory, "value binary").count())

    return timed(batches * CEILING_ROWS, action)


def tuples(session: Any, bootstrap: str, topic: str, records: int, ends: dict[str, dict[str, int]]) -> Run:
    """count() of the values up to `ends`, given to Spark as tuples: what a source without Arrow would do."""
    from pyspark import cloudpickle

    from benchmarks.spark import tuple_source

    cloudpickle.register_pickle_by_value(tuple_source)
    session.dataSource.register(tuple_source.TupleSource)
    reader = session.read.format("warmlog_tuples").option("bootstrap.servers", bootstrap).option("subscribe", topic)
    frame = reader.option("columns", "value").option("endingOffsets", json.dumps(ends))
    return timed(records, lambda: frame.load().count())
