"""Producing: one record at a time, many at a time, and how long one record takes."""

import asyncio
import time
from collections.abc import Callable
from statistics import quantiles
from typing import Any

from benchmarks.measurement import VALUE_BYTES, Run
from warmlog import Admin, Producer

CALL_RECORDS = 100_000
"""Records of one `send_many`. The values are that many different ones: the same one would lie in the cache."""


def distinct_values(count: int = CALL_RECORDS) -> list[bytes]:
    return [f"{index:0{VALUE_BYTES}d}".encode() for index in range(count)]


async def create_topic(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=1)


async def delete_topic(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.delete_topic(topic)


async def end_offset(bootstrap: str, topic: str, **connection: Any) -> int:
    """Records of the topic that are on disk."""
    async with Admin(bootstrap, **connection) as admin:
        found = await admin.list_offsets(topic, "latest")
    return found[0].offset


async def send(bootstrap: str, topic: str, records: int) -> Run:
    """The plain loop: `send`, then `drain`, for each record; until all are acknowledged."""
    values = distinct_values(min(records, CALL_RECORDS))
    async with Producer(bootstrap) as producer:
        await producer.send(topic, values[0])
        start = time.perf_counter()
        for index in range(records):
            producer.send(topic, values[index % len(values)])
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
