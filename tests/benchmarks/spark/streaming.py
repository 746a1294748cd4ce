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
from benchmarks.spark.session import cpu_seconds
from warmlog import Admin, Producer

RECORDS_PER_S = 20_000
TICK_S = 0.05
WARM_UP_BATCHES = 5
"""The first ones start workers and compile."""


_numbers = itertools.count()


def trigger_ms(session: Any, bootstrap: str, seconds: float, directory: Path) -> Run:
    """Micro-batches one after another, to no sink, while RECORDS_PER_S come in; the figure is the median."""
    topic = f"bench-trigger-{next(_numbers)}"
    asyncio.run(_create(bootstrap, topic))
    before = cpu_seconds()
    reader = session.readStream.format("warmlog").option("bootstrap.servers", bootstrap).option("subscribe", topic)
    writer = reader.load().writeStream.format("noop").option("checkpointLocation", str(directory / topic))
    query = writer.trigger(processingTime="0 seconds").start()
    is_over = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_produce(bootstrap, topic, is_over)))
    thread.start()
    try:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and query.exception() is None:
            time.sleep(0.1)
    finally:
        is_over.set()
        thread.join()
        progresses = list(query.recentProgress)
        query.stop()
    assert query.exception() is None
    steady = [progress for progress in progresses if progress.numInputRows][WARM_UP_BATCHES:]
    taken_ms = sorted(progress.durationMs["triggerExecution"] for progress in steady)
    records = sum(progress.numInputRows for progress in steady)
    used = cpu_seconds()
    figures = {
        "trigger_ms": median(taken_ms),
        "trigger_p95_ms": taken_ms[len(taken_ms) * 95 // 100],
        JVM_CPU: (used.jvm - before.jvm) / records * 1e6,
        PYTHON_CPU: (used.python - before.python) / records * 1e6,
    }
    return Run(records, sum(taken_ms) / 1000, figures)


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
