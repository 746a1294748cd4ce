"""`warmlog.blocking`: what a call through the producer's thread costs a record, and how long one record takes."""

import asyncio
import time
from collections.abc import Iterator
from statistics import quantiles

from benchmarks.measurement import VALUE_BYTES, Run
from benchmarks.produce import CALL_RECORDS, distinct_values, end_offset
from benchmarks.rows import Bench, Benchmark
from warmlog.blocking import Producer


def benchmarks(bench: Bench) -> Iterator[Benchmark]:
    scale = bench.scale
    settings = bench.settings(**bench.producer) | {"client_loop": "asyncio", "api": "warmlog.blocking"}
    yield Benchmark(
        "blocking.send", settings, lambda topic: send(bench.bootstrap, topic, scale.send_records), partitions=1
    )
    yield Benchmark(
        "blocking.result",
        settings | {"in_flight": 1},
        lambda topic: result(bench.bootstrap, topic, scale.latency_records),
        partitions=1,
    )


def send(bootstrap: str, topic: str, records: int) -> Run:
    """The plain loop: `send` for each record, then `flush`; until all are acknowledged."""
    values = distinct_values(min(records, CALL_RECORDS))
    with Producer(bootstrap) as producer:
        producer.send(topic, values[0]).result()
        start = time.perf_counter()
        for index in range(records):
            producer.send(topic, values[index % len(values)])
        producer.flush()
        seconds = time.perf_counter() - start
    assert asyncio.run(end_offset(bootstrap, topic)) == records + 1
    return Run(records, seconds)


def result(bootstrap: str, topic: str, records: int) -> Run:
    """One record after another, each waited for: `send(…).result()`, with the time of each call."""
    value = b"x" * VALUE_BYTES
    latencies_ms: list[float] = []
    with Producer(bootstrap) as producer:
        producer.send(topic, value).result()
        start = before = time.perf_counter()
        for _ in range(records):
            producer.send(topic, value).result()
            now = time.perf_counter()
            latencies_ms.append((now - before) * 1000)
            before = now
    assert asyncio.run(end_offset(bootstrap, topic)) == records + 1
    cuts = quantiles(latencies_ms, n=100)
    return Run(records, before - start, {"p50_ms": cuts[49], "p99_ms": cuts[98]})
