"""Who works with the broker during a run: producers, consumers and an administrator, each with the real client."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

from faults.history.notes import Notes, Place, WriterNotes, key_of, value_of
from warmlog import Admin, Consumer, Producer
from warmlog.errors import ApiError, WarmlogError, may_pass
from warmlog.producer.delivery import DeliveryFuture

MAX_UNSETTLED = 200
GIVE_UP_MS = 400_000
"""On a busy machine starts take long, and a writer may find the broker up only now and then."""


async def write(address: str, notes: WriterNotes, stopping: asyncio.Event, pause_s: float) -> None:
    """Sends numbered records until it is stopped, with a pause after every 20, and notes what became of each."""
    producer = Producer(
        address,
        idempotent=notes.is_idempotent,
        max_in_flight=5 if notes.is_idempotent else 1,
        linger_ms=1,
        batch_bytes=8192,
        delivery_timeout_ms=GIVE_UP_MS,
    )
    unsettled: deque[tuple[int, DeliveryFuture]] = deque()
    async with producer:
        while not stopping.is_set():
            number = notes.sent
            notes.sent += 1
            key = key_of(number) if notes.is_keyed else None
            sent = producer.send(notes.topic, value_of(notes.name, number), key=key, partition=notes.partition)
            unsettled.append((number, sent))
            if len(unsettled) >= MAX_UNSETTLED:
                await _settle(notes, *unsettled.popleft())
            if number % 20 == 0:
                await asyncio.sleep(pause_s)
        while unsettled:
            await _settle(notes, *unsettled.popleft())


async def _settle(notes: WriterNotes, number: int, sent: DeliveryFuture) -> None:
    try:
        placed = await sent
    except WarmlogError as error:
        notes.refused[number] = f"{type(error).__name__}: {error}"
    else:
        notes.acknowledged[number] = placed.offset


async def read(address: str, topics: list[str], notes: Notes) -> None:
    """Reads everything again and again, from the beginning to the end that there is then, until it is cancelled."""
    while True:
        consumer = Consumer(address, topics=topics, max_wait_ms=100, on_out_of_range="earliest")
        with contextlib.suppress(WarmlogError):  # while the broker is down; what was read until then is noted
            async with consumer:
                async for batch in consumer.batches(until="latest"):
                    for record in batch:
                        assert record.value is not None
                        notes.note_read(Place(record.topic, record.partition, record.offset), record.value)
        await asyncio.sleep(1)


async def tail(address: str, topics: list[str], notes: Notes) -> None:
    """One consumer that lives through everything, from the beginning to whatever comes, until it is cancelled.

    The topics must keep all their records: it has to see each offset once, in order, and nothing may end it.
    """
    try:
        await _follow(address, topics, notes)
    except WarmlogError as error:
        notes.contradictions.append(f"a consumer could not go on: {type(error).__name__}: {error}")


async def _follow(address: str, topics: list[str], notes: Notes) -> None:
    async with started(address, topics) as consumer:
        next_offsets = dict.fromkeys(consumer.assignment, 0)
        async for batch in consumer.batches():
            for record in batch:
                place = Place(record.topic, record.partition, record.offset)
                expected = next_offsets[record.topic, record.partition]
                if record.offset != expected:
                    notes.contradictions.append(f"{place} came where offset {expected} was to come")
                next_offsets[record.topic, record.partition] = record.offset + 1
                assert record.value is not None
                notes.note_read(place, record.value)


@contextlib.asynccontextmanager
async def started(address: str, topics: list[str], isolation: str = "read_uncommitted") -> AsyncIterator[Consumer]:
    """A consumer that has begun, however long the brokers are away before; from then on it must manage by itself."""
    while True:
        consumer = Consumer(
            address,
            topics=topics,
            isolation=isolation,
            start="earliest",
            max_wait_ms=100,
            unavailable_timeout_ms=GIVE_UP_MS,
        )
        try:
            await consumer.start()
            break
        except WarmlogError as error:
            if not may_pass(error):
                raise
        await asyncio.sleep(0.1)
    try:
        yield consumer
    finally:
        await consumer.close()


async def administer(address: str, notes: Notes, stopping: asyncio.Event) -> None:
    """Creates topics and deletes every other one."""
    number = 0
    while not stopping.is_set():
        name = f"passing-{number}"
        number += 1
        with contextlib.suppress(WarmlogError):
            async with Admin(address) as admin:
                notes.created[name] = False
                await admin.create_topic(name, partitions=2)
                notes.created[name] = True
                if number % 2:
                    notes.deleted[name] = False
                    await admin.delete_topic(name)
                    notes.deleted[name] = True
        await asyncio.sleep(0.1)


async def give_up_records(
    address: str, places: Sequence[tuple[str, int]], notes: Notes, luck: Random, stopping: asyncio.Event
) -> None:
    """Gives up some of the oldest records of these partitions, again and again."""
    while not stopping.is_set():
        topic, partition = luck.choice(places)
        with contextlib.suppress(WarmlogError):
            async with Admin(address) as admin:
                first = (await admin.list_offsets(topic, "earliest", [partition]))[partition].offset
                end = (await admin.list_offsets(topic, "latest", [partition]))[partition].offset
                before = luck.randint(first, max(first, (first + end) // 2))
                place = (topic, partition)
                notes.may_begin_at[place] = max(notes.may_begin_at.get(place, 0), before)
                result = (await admin.delete_records({place: before}))[place]
                if isinstance(result, int):
                    notes.given_up[place] = max(notes.given_up.get(place, 0), before)
        await asyncio.sleep(0.3)


async def move(
    address: str,
    places: Sequence[tuple[str, int]],
    directories: Sequence[Path],
    notes: Notes,
    luck: Random,
    stopping: asyncio.Event,
) -> None:
    """Moves these partitions to and fro between the data directories."""
    while not stopping.is_set():
        topic, partition = luck.choice(places)
        with contextlib.suppress(WarmlogError):
            async with Admin(address) as admin:
                await admin.move_partition(topic, partition, luck.choice(directories))
                notes.moves += 1
        await asyncio.sleep(0.3)


async def list_topics(address: str) -> list[str]:
    """The names of all topics."""
    async with Admin(address) as admin:
        return [topic.name for topic in await admin.list_topics()]


async def create_topic(address: str, name: str, partitions: int, configs: dict[str, str]) -> None:
    """Creates a topic that may be there."""
    async with Admin(address) as admin:
        with contextlib.suppress(ApiError):
            await admin.create_topic(name, partitions=partitions, configs=configs)
