"""A small coordinator for tests: numbers by name, and a shard of them on a real log whose flushes a test decides."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from unit.broker.conftest import NOW_MS
from warmlog_broker.coordinator.framework.decision import Decision, Record
from warmlog_broker.coordinator.framework.shard import Shard, ShardSurroundings
from warmlog_broker.replica.partition import Partition


class Numbers:
    """The state: the last number of each name, and everything that was replayed."""

    def __init__(self) -> None:
        self.by_name: dict[str, int] = {}
        self.replayed: list[tuple[str, int | None]] = []

    def replay(self, record: Record) -> None:
        name = record.key.decode()
        number = None if record.value is None else int(record.value)
        self.replayed.append((name, number))
        if number is None:
            self.by_name.pop(name, None)
        else:
            self.by_name[name] = number


def put(name: str, number: int | None) -> Callable[[Numbers], Decision[int | None]]:
    """A decision to set `name`; its result is the number that it had when that was decided."""
    value = None if number is None else b"%d" % number
    return lambda state: Decision([Record(name.encode(), value)], state.by_name.get(name))


def add(name: str, number: int) -> Callable[[Numbers], Decision[int]]:
    """A decision to add to `name`; its result is the sum."""

    def decide(state: Numbers) -> Decision[int]:
        total = state.by_name.get(name, 0) + number
        return Decision([Record(name.encode(), b"%d" % total)], total)

    return decide


def get(name: str) -> Callable[[Numbers], Decision[int | None]]:
    """A decision without records."""
    return lambda state: Decision([], state.by_name.get(name))


class Events:
    """Notes what a watcher of shards is told."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def loaded(self, shard: Shard[Numbers]) -> None:
        self.seen.append("loaded")

    def unloaded(self, shard: Shard[Numbers]) -> None:
        self.seen.append("unloaded")

    def changed(self, shard: Shard[Numbers], key: str) -> None:
        self.seen.append(f"changed {key}")


def make_shard(
    partition: Partition,
    threads: Executor,
    events: Events | None = None,
    *,
    reading: asyncio.Lock | None = None,
) -> Shard[Numbers]:
    around = ShardSurroundings(Numbers, events or Events(), threads, lambda: NOW_MS, reading or asyncio.Lock())
    return Shard(partition, around)


async def turn() -> None:
    """Let the event loop go round once, so that decisions are appended."""
    await asyncio.sleep(0)


@contextmanager
def closing(shard: Shard[Numbers]) -> Iterator[Shard[Numbers]]:
    try:
        yield shard
    finally:
        shard.close("the test is over")
