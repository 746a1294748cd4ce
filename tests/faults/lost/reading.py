"""Reading a topic in each way that there is, from its start to its end, around what cannot be read.

Each way gives the records of every partition in the order in which they came, and the ranges of offsets that it was
told it cannot have. One that takes longer than LIMIT_S hangs, which is a failure.
"""

import asyncio
import re
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import warmlog
from integration.command_line import CommandLine
from warmlog.errors import UnreadableBatch
from warmlog.ranges.discover import Discovery
from warmlog.ranges.offset_range import OffsetRange
from warmlog.ranges.range_reader import read_ranges
from warmlog.ranges.read_settings import Projection, ReadSettings
from warmlog.ranges.resolve import Loss

LIMIT_S = 180.0
COLUMNS = ["partition", "offset", "value"]
TOLD = re.compile(rb"^warmlog: skipped: \w+-(\d+), offsets (\d+) to (\d+): ", re.MULTILINE)


@dataclass
class Found:
    """What a read gave, by partition."""

    records: dict[int, list[tuple[int, bytes]]] = field(default_factory=lambda: defaultdict(list))
    told: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """First offset and next offset of each range, in the order in which they came."""

    def add(self, partition: int, offset: int, value: bytes | None) -> None:
        assert value is not None
        self.records[partition].append((offset, value))

    def add_table(self, table: Any) -> None:
        """Of Arrow: a table or a batch with COLUMNS."""
        for record in zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True):
            self.add(*record)


Way = Callable[[str, str], Awaitable[Found]]
"""Address and topic."""


async def read_within_limit(way: Way, address: str, topic: str) -> Found:
    try:
        return await asyncio.wait_for(way(address, topic), LIMIT_S)
    except TimeoutError:
        raise AssertionError(f"{way.__name__} of {topic} hangs") from None


async def by_record(address: str, topic: str) -> Found:
    found = Found()
    async with warmlog.Consumer(address, topics=[topic]) as consumer:
        async for record in _around_damage(consumer.records("latest"), found):
            found.add(record.partition, record.offset, record.value)
    return found


async def by_batch(address: str, topic: str) -> Found:
    found = Found()
    async with warmlog.Consumer(address, topics=[topic], partition_max_bytes=700) as consumer:
        async for batch in _around_damage(consumer.batches("latest"), found):
            for offset, value in zip(batch.offsets, batch.values, strict=True):
                found.add(batch.partition, offset, value)
    return found


async def by_arrow_batch(address: str, topic: str) -> Found:
    found = Found()
    async with warmlog.Consumer(address, topics=[topic]) as consumer:
        async for batch in _around_damage(consumer.arrow("latest", columns=COLUMNS), found):
            found.add_table(batch)
    return found


async def _around_damage(items: AsyncIterator[Any], found: Found) -> AsyncIterator[Any]:
    """The items, from the same iterator after each error."""
    while True:
        try:
            yield await anext(items)
        except UnreadableBatch as error:
            found.told[error.partition].append((error.base_offset, error.next_offset))
        except StopAsyncIteration:
            return


async def by_table(address: str, topic: str) -> Found:
    """What comes before the damage, and then what comes after it, partition after partition."""
    found = Found()
    async with warmlog.Admin(address) as admin:
        count = len((await admin.describe_topic(topic)).partitions)
    for place in [(topic, partition) for partition in range(count)]:
        async with warmlog.Consumer(address, partitions=[place]) as consumer:
            while True:
                try:
                    found.add_table(await consumer.to_arrow(columns=COLUMNS))
                    break
                except UnreadableBatch as error:
                    found.add_table(await consumer.to_arrow({place: error.base_offset}, columns=COLUMNS))
                    found.told[error.partition].append((error.base_offset, error.next_offset))
                    consumer.seek(*place, error.next_offset)
    return found


async def by_range(address: str, topic: str) -> Found:
    """As Spark's tasks read with failOnDataLoss=false."""
    return await asyncio.to_thread(_read_ranges, address, topic)


def _read_ranges(address: str, topic: str) -> Found:
    found = Found()

    def note(loss: Loss) -> None:
        found.told[loss.partition].append((loss.start, loss.end))

    with Discovery([address]) as discovery:
        states = discovery.states(discovery.topics([topic]))
    ranges = [OffsetRange(*state.tp, state.earliest, state.latest, address, state.topic_id) for state in states]
    settings = ReadSettings(fails_on_data_loss=False, fetch_bytes=700)
    for batch in read_ranges(ranges, Projection(tuple(COLUMNS)), settings, on_loss=note):
        found.add_table(batch)
    return found


async def by_command(address: str, topic: str) -> Found:
    """`warmlog consume`, whose exit code says whether anything could not be read."""
    command = ("consume", topic, "--to", "latest", "--format", "%p %o %v")
    try:
        done = await asyncio.to_thread(CommandLine(address), *command)
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    found = Found()
    for line in done.stdout.splitlines():
        partition, offset, value = line.split()
        found.add(int(partition), int(offset), value)
    for told in TOLD.finditer(done.stderr):
        found.told[int(told[1])].append((int(told[2]), int(told[3]) + 1))
    assert done.returncode == (1 if found.told else 0), done.stderr.decode()
    return found


WAYS: tuple[Way, ...] = (by_record, by_batch, by_arrow_batch, by_table, by_range, by_command)
