"""Producers of aiokafka: idempotent ones, and one of transactions of version 1."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from faults.history.notes import WriterNotes, value_of
from faults.history.transactional.notes import GivenUpError, Outcome, Transaction, TransactionNotes
from faults.history.workload import GIVE_UP_MS, MAX_UNSETTLED

RETRY_S = 0.1
TIMEOUT_MS = 10_000
MAX_RECORDS = 12


@asynccontextmanager
async def started(client: Any) -> AsyncIterator[Any]:
    """A client of aiokafka while it works; KafkaError if the broker is away.

    aiokafka asserts that it knows a broker, and forgets all that are away, and what it cancels ends its callers.
    """
    try:
        try:
            await client.start()
            yield client
        finally:
            await client.stop()
    except (AssertionError, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise KafkaError(repr(error)) from error


async def write(address: str, notes: WriterNotes, stopping: asyncio.Event, pause_s: float) -> None:
    """As `workload.write`."""
    while not stopping.is_set():
        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            enable_idempotence=True,
            linger_ms=1,
            max_batch_size=8192,
            request_timeout_ms=GIVE_UP_MS,
        )
        with suppress(KafkaError):
            async with started(producer):
                await _write_with(producer, notes, stopping, pause_s)
        await asyncio.sleep(RETRY_S)


async def _write_with(producer: AIOKafkaProducer, notes: WriterNotes, stopping: asyncio.Event, pause_s: float) -> None:
    unsettled: deque[tuple[int, asyncio.Future[Any]]] = deque()
    while not stopping.is_set():
        number = notes.sent
        notes.sent += 1
        value = value_of(notes.name, number)
        unsettled.append((number, await producer.send(notes.topic, value, partition=notes.partition)))
        if len(unsettled) >= MAX_UNSETTLED:
            await _settle(notes, *unsettled.popleft())
        if number % 20 == 0:
            await asyncio.sleep(pause_s)
    while unsettled:
        await _settle(notes, *unsettled.popleft())


async def _settle(notes: WriterNotes, number: int, sent: "asyncio.Future[Any]") -> None:
    try:
        placed = await sent
    except KafkaError as error:
        notes.refused[number] = f"{notes.name}: {error!r}"
    else:
        notes.acknowledged[number] = placed.offset


async def write_transactions(
    address: str,
    name: str,
    topic: str,
    partitions: int,
    notes: TransactionNotes,
    luck: Random,
    stopping: asyncio.Event,
    pause_s: float,
) -> None:
    """Write transactions until it is stopped; after an error, and now and then, by another producer with the id."""
    written = notes.by_writer.setdefault(name, [])
    while not stopping.is_set():
        producer = AIOKafkaProducer(
            bootstrap_servers=address, transactional_id=name, transaction_timeout_ms=TIMEOUT_MS, linger_ms=1
        )
        try:
            async with started(producer):
                while not stopping.is_set() and luck.random() < 0.97:
                    written.append(transaction := Transaction())
                    records = [
                        (luck.randrange(partitions), f"{name}:{len(written)}:{number}:".encode() + luck.randbytes(99))
                        for number in range(luck.randint(1, MAX_RECORDS))
                    ]
                    await _write_one(producer, topic, records, transaction, is_given_up=luck.random() < 0.2)
                    await asyncio.sleep(pause_s)
        except KafkaError as error:
            notes.note_error(error)
            await asyncio.sleep(RETRY_S)


async def _write_one(
    producer: AIOKafkaProducer,
    topic: str,
    records: list[tuple[int, bytes]],
    transaction: Transaction,
    *,
    is_given_up: bool,
) -> None:
    try:
        async with producer.transaction():
            sent = []
            for partition, value in records:
                transaction.records.append((partition, value))
                sent.append(await producer.send(topic, value, partition=partition))
            if is_given_up:
                raise GivenUpError
            await asyncio.gather(*sent)  # else aiokafka commits a transaction of which a batch has failed
    except GivenUpError:
        transaction.outcome = Outcome.ABORTED
    else:
        transaction.outcome = Outcome.COMMITTED
