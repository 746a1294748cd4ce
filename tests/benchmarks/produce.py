"""Producing: one record at a time, many at a time, and how long one record takes."""

import asyncio
import time
from collections.abc import Callable, Iterator
from statistics import quantiles
from typing import Any

from benchmarks.measurement import VALUE_BYTES, Run
from benchmarks.rows import Bench, Benchmark
from warmlog import Admin, Producer

CALL_RECORDS = 100_000
"""Records of one `send_many`. The values are that many different ones: the same one would stay in the cache."""
BATCH_RECORDS = 2_000
"""Records of one `send_many` that is a batch."""
BATCHES_AT_ONCE = 100
LATENCY_PER_S = 1_000
MANY_PARTITIONS = 100


def benchmarks(bench: Bench) -> Iterator[Benchmark]:
    scale = bench.scale
    settings = bench.settings(**bench.producer)
    calls = settings | {"call_records": CALL_RECORDS}
    batches = settings | {"call_records": BATCH_RECORDS, "calls_at_once": BATCHES_AT_ONCE}
    yield Benchmark(
        "produce.send", settings, lambda topic: send(bench.bootstrap, topic, scale.send_records), partitions=1
    )
    yield Benchmark(
        f"produce.send.{MANY_PARTITIONS}_partitions",
        settings | {"partitions": MANY_PARTITIONS},
        lambda topic: send(bench.bootstrap, topic, scale.send_records, partitions=MANY_PARTITIONS),
        partitions=MANY_PARTITIONS,
    )
    yield Benchmark(
        "produce.send_many",
        calls,
        lambda topic: send_many(bench.bootstrap, topic, scale.send_many_records),
        partitions=1,
    )
    for name, partitions in (("1_partition", 1), (f"{MANY_PARTITIONS}_partitions", MANY_PARTITIONS)):
        yield Benchmark(
            f"produce.batches.{name}",
            batches | {"partitions": partitions},
            lambda topic, partitions=partitions: send_batches(
                bench.bootstrap, topic, scale.send_many_records, partitions=partitions
            ),
            partitions=partitions,
        )
    yield Benchmark(
        "tls.send_many",
        calls | {"ssl": True},
        lambda topic: send_many(bench.secured.tls_address, topic, scale.send_many_records, **bench.secured.tls_options),
        partitions=1,
        is_secured=True,
    )
    yield Benchmark(
        "produce.latency",
        settings | {"linger_ms": 0, "open_loop_per_s": LATENCY_PER_S},
        lambda topic: latency(bench.bootstrap, topic, scale.latency_records, per_s=LATENCY_PER_S),
        partitions=1,
    )


def distinct_values(count: int = CALL_RECORDS) -> list[bytes]:
    return [f"{index:0{VALUE_BYTES}d}".encode() for index in range(count)]


async def create_topic(bootstrap: str, topic: str, partitions: int = 1) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=partitions)


async def delete_topic(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.delete_topic(topic)


async def end_offset(bootstrap: str, topic: str, **connection: Any) -> int:
    """Records of the topic that are on disk."""
    async with Admin(bootstrap, **connection) as admin:
        found = await admin.list_offsets(topic, "latest")
    return sum(each.offset for each in found.values())


async def send(bootstrap: str, topic: str, records: int, *, partitions: int = 0) -> Run:
    """The plain loop: `send`, then `drain`, for each record, until all are acknowledged.

    With `partitions`, to one partition after another; without, the producer chooses.
    """
    values = distinct_values(min(records, CALL_RECORDS))
    async with Producer(bootstrap) as producer:
        await producer.send(topic, values[0])
        start = time.perf_counter()
        for index in range(records):
            partition = index % partitions if partitions else None
            producer.send(topic, values[index % len(values)], partition=partition)
            await producer.drain()
        await producer.flush()
        seconds = time.perf_counter() - start
    assert await end_offset(bootstrap, topic) == records + 1
    return Run(records, seconds)


async def send_many(bootstrap: str, topic: str, records: int, **connection: Any) -> Run:
    """`send_many` of CALL_RECORDS values, one call after another; each returns when all of its records are on disk."""
    values = distinct_values(min(records, CALL_RECORDS))
    calls = records // len(values)
    async with Producer(bootstrap, **connection) as producer:
        await producer.send(topic, values[0])
        start = time.perf_counter()
        for _ in range(calls):
            placed = await producer.send_many(topic, values)
            assert placed.count == len(values)
        seconds = time.perf_counter() - start
    assert await end_offset(bootstrap, topic, **connection) == calls * len(values) + 1
    return Run(calls * len(values), seconds)


async def send_batches(bootstrap: str, topic: str, records: int, *, partitions: int) -> Run:
    """`send_many` of BATCH_RECORDS values, one partition after another, with BATCHES_AT_ONCE calls under way."""
    values = distinct_values(BATCH_RECORDS)
    calls = records // BATCH_RECORDS
    async with Producer(bootstrap) as producer:
        await producer.send(topic, values[0], partition=0)

        async def send_every(first: int) -> None:
            for number in range(first, calls, BATCHES_AT_ONCE):
                placed = await producer.send_many(topic, values, partition=number % partitions)
                assert placed.count == BATCH_RECORDS

        start = time.perf_counter()
        await asyncio.gather(*(send_every(first) for first in range(BATCHES_AT_ONCE)))
        seconds = time.perf_counter() - start
    assert await end_offset(bootstrap, topic) == calls * BATCH_RECORDS + 1
    return Run(calls * BATCH_RECORDS, seconds)


async def latency(bootstrap: str, topic: str, records: int, *, per_s: int) -> Run:
    """Records at a fixed rate, whatever the answers do; the time of each counts from when it was due."""
    value = b"x" * VALUE_BYTES
    latencies_ms: list[float] = []
    async with Producer(bootstrap, linger_ms=0) as producer:
        await producer.send(topic, value)
        start = time.perf_counter()
        tasks = []
        for index in range(records):
            due = start + index / per_s
            if (wait_s := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            tasks.append(asyncio.create_task(_timed_send(producer, topic, value, due, latencies_ms.append)))
        await asyncio.gather(*tasks)
        seconds = time.perf_counter() - start
    assert len(latencies_ms) == records
    assert await end_offset(bootstrap, topic) == records + 1
    cuts = quantiles(latencies_ms, n=100)
    return Run(records, seconds, {"p50_ms": cuts[49], "p95_ms": cuts[94], "p99_ms": cuts[98]})


async def _timed_send(producer: Producer, topic: str, value: bytes, due: float, note: Callable[[float], Any]) -> None:
    await producer.send(topic, value)
    note((time.perf_counter() - due) * 1000)
