"""Consuming a topic from its beginning to its end: batches of objects, single records, Arrow, Spark."""

import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from benchmarks.measurement import VALUE_BYTES, Run
from benchmarks.produce import create_topic, distinct_values, end_offset
from benchmarks.rows import READ_TOPIC, Bench, Benchmark
from warmlog import Consumer, Producer


def benchmarks(bench: Bench) -> Iterator[Benchmark]:
    many, few = bench.scale.read_records, bench.scale.single_records

    def row(name: str, api: str, run: Callable[[], Coroutine[Any, Any, Run]], **settings: object) -> Benchmark:
        settings = bench.settings(**bench.client, api=api, **settings)
        return Benchmark(name, settings, run, reads=True, is_secured="ssl" in settings)

    yield row(
        "consume.objects",
        "Consumer.batches, keys and values",
        lambda: objects(bench.bootstrap, READ_TOPIC, many),
    )
    yield row(
        "consume.records",
        "async for record in Consumer",
        lambda: single_records(bench.bootstrap, READ_TOPIC, few),
    )
    yield row("consume.arrow", "Consumer.arrow, all columns", lambda: arrow(bench.bootstrap, READ_TOPIC, many))
    yield row(
        "tls.consume.arrow",
        "Consumer.arrow, all columns",
        lambda: arrow(bench.secured.tls_address, READ_TOPIC, many, **bench.secured.tls_options),
        ssl=True,
    )


async def fill(bootstrap: str, topic: str, records: int) -> None:
    """Create the topic, with `records` records."""
    values = distinct_values()
    await create_topic(bootstrap, topic)
    async with Producer(bootstrap) as producer:
        for start in range(0, records, len(values)):
            await producer.send_many(topic, values[: records - start])
    assert await end_offset(bootstrap, topic) == records


async def objects(bootstrap: str, topic: str, records: int) -> Run:
    """Batches, with every key and value as a Python object."""
    start = time.perf_counter()
    async with Consumer(bootstrap, topics=[topic], start="earliest") as consumer:
        await read_batches(consumer, records)
    return Run(records, time.perf_counter() - start)


async def single_records(bootstrap: str, topic: str, records: int) -> Run:
    """`async for record`, the first `records` of the topic."""
    start = time.perf_counter()
    async with Consumer(bootstrap, topics=[topic], start="earliest") as consumer:
        await read_records(consumer, records)
    return Run(records, time.perf_counter() - start)


async def read_batches(consumer: Consumer, records: int) -> None:
    """Read `records` records of one partition in whole batches, with every key and value as a Python object."""
    count = 0
    async for batch in consumer.batches():
        keys, values = batch.keys, batch.values
        assert batch.base_offset == count
        assert len(keys) == len(values)
        assert len(values[-1] or b"") == VALUE_BYTES
        count += len(values)
        if count >= records:
            break
    assert count == records, f"{count} of {records} records"


async def read_records(consumer: Consumer, records: int) -> None:
    """Read the first `records` records of one partition, one by one."""
    count = 0
    async for record in consumer:
        if record.offset != count:
            raise AssertionError(f"offset {record.offset} where {count} was due")
        count += 1
        if count == records:
            break


async def arrow(bootstrap: str, topic: str, records: int, **connection: Any) -> Run:
    """Arrow record batches with all columns."""
    import pyarrow as pa

    assert pa.cpu_count()  # loaded now: the first import takes as long as reading a million records
    start = time.perf_counter()
    count = 0
    async with Consumer(bootstrap, topics=[topic], start="earliest", **connection) as consumer:
        async for batch in consumer.arrow(until="latest"):
            assert batch.column("offset")[0].as_py() == count
            assert len(batch.column("value")[-1].as_py()) == VALUE_BYTES
            count += batch.num_rows
    seconds = time.perf_counter() - start
    assert count == records, f"{count} of {records} records"
    return Run(records, seconds)


def spark_session() -> Any:
    """A session with a thread for each core."""
    from pyspark.sql import SparkSession

    # Spark takes the first python3 on the PATH otherwise, and finds no data sources by a path with a space in it.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["PYSPARK_PYTHON"] = Path(sys.executable).name
    builder = SparkSession.builder.master("local[*]").appName("warmlog benchmark")
    return (
        builder.config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )


def spark_count(session: Any, bootstrap: str, topic: str, records: int, *, min_partitions: int) -> Run:
    """`count()` of the topic in Spark."""
    start = time.perf_counter()
    frame = (
        session.read.format("warmlog")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("minPartitions", str(min_partitions))
        .load()
    )
    count = frame.count()
    seconds = time.perf_counter() - start
    assert count == records, f"{count} of {records} records"
    return Run(records, seconds)
