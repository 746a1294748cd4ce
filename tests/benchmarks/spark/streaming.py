"""How long a micro-batch takes while records come in at a steady rate."""

import asyncio
import itertools
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measurement import Run
from benchmarks.produce import distinct_values
from benchmarks.spark.reading import JVM_CPU, PYTHON_CPU
from benchmarks.spark.session import cpu_since, spark_processes
from process_tree import Processes
from warmlog import Admin, Producer

RECORDS_PER_S = 20_000
TICK_S = 0.05
WARM_UP_BATCHES = 5
"""The first ones start workers and compile."""
FEWEST_BATCHES = 5
PATIENCE = 10
"""So many times as long as asked for, on a machine that does other things as well, until there are enough batches."""


_numbers = itertools.count()


def trigger_ms(session: Any, bootstrap: str, seconds: float, directory: Path) -> Run:
    """Micro-batches one after another, to no sink, while RECORDS_PER_S come in; the figure is the median."""
    topic = f"bench-trigger-{next(_numbers)}"
    asyncio.run(_create(bootstrap, topic))
    before = spark_processes()
    reader = session.readStream.format("warmlog").option("bootstrap.servers", bootstrap).option("subscribe", topic)
    writer = reader.load().writeStream.format("noop").option("checkpointLocation", str(directory / topic))
    query = writer.trigger(processingTime="0 seconds").start()
    is_over = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_produce(bootstrap, topic, is_over)))
    thread.start()
    try:
        return watch(query, seconds, before)
    finally:
        is_over.set()
        thread.join()


def watch(query: Any, seconds: float, before: Processes) -> Run:
    """What micro-batches of `query` took. It is stopped after `seconds`; `before` are Spark's processes before it."""
    try:
        time.sleep(seconds)
        deadline = time.monotonic() + PATIENCE * seconds
        while len(steady := _steady_batches(query)) < FEWEST_BATCHES:
            assert query.exception() is None
            assert time.monotonic() < deadline, f"only {len(steady)} micro-batches"
            time.sleep(0.5)
    finally:
        query.stop()
    taken_ms = sorted(progress.durationMs["triggerExecution"] for progress in steady)
    records = sum(progress.numInputRows for progress in steady)
    used = cpu_since(before)
    figures = {
        "trigger_ms": median(taken_ms),
        "trigger_p95_ms": taken_ms[len(taken_ms) * 95 // 100],
        JVM_CPU: used.jvm / records * 1e6,
        PYTHON_CPU: used.python / records * 1e6,
    }
    return Run(records, sum(taken_ms) / 1000, figures)


def _steady_batches(query: Any) -> list[Any]:
    return [progress for progress in query.recentProgress if progress.numInputRows][WARM_UP_BATCHES:]


async def _create(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=2)


async def _produce(bootstrap: str, topic: str, is_over: threading.Event) -> None:
    values = distinct_values(int(RECORDS_PER_S * TICK_S))
    async with Producer(bootstrap) as producer:
        due = time.monotonic()
        while not is_over.is_set():
            await producer.send_many(topic, values)
            due += TICK_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))
