"""A consumer with a group and a few seconds of patience, for tests against `FakeCoordinator`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import warmlog
from fake_broker import FakeBroker
from fake_coordinator import owned
from warmlog_protocol.batch import encode_batch

ALL = owned(("t", 0), ("t", 1))
FIRST = owned(("t", 0))
PATIENCE_S = 25


def fill(broker: FakeBroker, partition: int, *counts: int) -> None:
    """Batches of so many records, whose values are the offsets."""
    for count in counts:
        start = broker.topics["t"][partition].next_offset
        values = [b"%d" % number for number in range(start, start + count)]
        broker.add_batch("t", partition, encode_batch(values, timestamps_ms=[1000] * count))


def consumer(broker: FakeBroker, **options: Any) -> warmlog.Consumer:
    if "partitions" not in options and "pattern" not in options:
        options.setdefault("topics", ["t"])
    options = {"retry_backoff_ms": 5, "max_wait_ms": 20, "group": "etl", **options}
    if options["group"] is not None:
        options.setdefault("commit_interval_ms", 60_000)
    return warmlog.Consumer(broker.address, **options)


async def take(batches: AsyncIterator[warmlog.Batch], count: int) -> list[warmlog.Batch]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(batches) for _ in range(count)]


def place(batch: warmlog.Batch) -> tuple[int, int]:
    return batch.partition, batch.next_offset


class Calls:
    """Callbacks that note how they were called."""

    def __init__(self) -> None:
        self.all: list[tuple[str, list[int]]] = []

    def __getattr__(self, name: str) -> Callable[[list[tuple[str, int]]], None]:
        return lambda partitions: self.all.append((name, [partition for _, partition in partitions]))

    @property
    def options(self) -> dict[str, Any]:
        return {f"on_{name}": getattr(self, name) for name in ("assigned", "revoked", "lost")}
