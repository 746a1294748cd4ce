"""Transactions: `send_many` within them and without, in turns, and how long a commit takes."""

import time
from collections.abc import Callable, Coroutine
from statistics import median, quantiles
from typing import Any
from uuid import uuid4

from benchmarks.measurement import Run
from benchmarks.produce import distinct_values
from warmlog import Producer

PAIRS = 8


async def against_plain(bootstrap: str, topic: str, call_records: int, calls: int) -> Run:
    """`calls` of `send_many`, each a transaction of its own, and as many without, PAIRS times in alternating order.

    The figures are the median of the pairs' ratios of rates, and the times of commits.
    """
    values = distinct_values(call_records)
    commits_ms: list[float] = []
    ratios, seconds = [], 0.0
    async with Producer(bootstrap) as plain, Producer(bootstrap, transactional_id=f"bench-{uuid4()}") as producer:

        async def in_transactions() -> None:
            for _ in range(calls):
                async with producer.transaction():
                    await producer.send_many(topic, values)
                    began_s = time.perf_counter()
                commits_ms.append((time.perf_counter() - began_s) * 1000)

        async def without() -> None:
            for _ in range(calls):
                await plain.send_many(topic, values)

        await without()
        await in_transactions()
        commits_ms.clear()
        for pair in range(PAIRS):
            took = {
                way: await _timed(way)
                for way in ((without, in_transactions) if pair % 2 else (in_transactions, without))
            }
            ratios.append(took[without] / took[in_transactions])
            seconds += took[in_transactions]
    cuts = quantiles(commits_ms, n=100)
    figures = {"of_plain": median(ratios), "commit_p50_ms": cuts[49], "commit_p99_ms": cuts[98]}
    return Run(call_records * calls * PAIRS, seconds, figures)


async def _timed(work: Callable[[], Coroutine[Any, Any, None]]) -> float:
    began_s = time.perf_counter()
    await work()
    return time.perf_counter() - began_s
