"""Transactions: `send_many` within them and without, in turns, and how long a commit takes."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from statistics import median, quantiles
from typing import Any
from uuid import uuid4

from benchmarks.loading import Load, open_connection
from benchmarks.measurement import Run
from benchmarks.produce import CALL_RECORDS, distinct_values
from benchmarks.rows import Bench, Benchmark
from benchmarks.transport import Connection
from warmlog import Admin, Producer
from warmlog_protocol import messages as m

PAIRS = 8
IDS = 10_000
CONNECTIONS = 50
TIMEOUT_MS = 900_000


def benchmarks(bench: Bench) -> Iterator[Benchmark]:
    yield Benchmark(
        "transaction.load",
        bench.settings(record="an open transaction with a transactional id of its own"),
        Load(bench.directory / "transactions", fill, listed, expected=IDS, records=IDS).run,
    )
    for records, calls in ((1_000, bench.scale.transactions), (CALL_RECORDS, 5)):
        yield Benchmark(
            f"transaction.send_many_{records}",
            bench.settings(**bench.producer, records_a_transaction=records, pairs_in_a_run=PAIRS),
            lambda topic, records=records, calls=calls: against_plain(bench.bootstrap, topic, records, calls),
            partitions=1,
        )


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


async def fill(bootstrap: str) -> None:
    """Begin IDS transactions, each with a transactional id of its own, and leave them open."""
    async with Admin(bootstrap) as admin:
        await admin.create_topic("bench-transactions", partitions=1)
    async with AsyncExitStack() as exits:
        connections = [await open_connection(bootstrap, exits) for _ in range(CONNECTIONS)]
        await asyncio.gather(*(_begin(c, range(n, IDS, CONNECTIONS)) for n, c in enumerate(connections)))


async def _begin(connection: Connection, numbers: Sequence[int]) -> None:
    offset = m.OffsetCommitPartition(b"", "bench-transactions", 0, 0)
    for number in numbers:
        name = f"bench-{number}"
        given = await connection.call(m.InitProducerIdRequest(name, TIMEOUT_MS), m.InitProducerIdResponse)
        request = m.TxnOffsetCommitRequest(name, given.producer_id, given.producer_epoch, f"group-{name}", [offset])
        response = await connection.call(request, m.OffsetCommitResponse)
        assert not response.partitions[0].error_code


async def listed(connection: Connection) -> int:
    """Return the number of open transactions."""
    found = await connection.call(m.ListTransactionsRequest(), m.ListTransactionsResponse)
    return sum(each.state == "ongoing" for each in found.transactions)
