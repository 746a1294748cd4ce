"""Transactions in a run: producers, readers of both isolation levels, and pairs that copy what is committed."""

import asyncio
import contextlib
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random

from faults.history import workload
from faults.history.kafka import writers
from faults.history.kafka.processes import COPIERS, KAFKA_COPIERS, KAFKA_COPIES, KafkaCopiers
from faults.history.members import SESSION_TIMEOUT_MS, STATIC, Members
from faults.history.transactional.checking import COMMITTED, UNCOMMITTED, check_transactions, check_views_again
from faults.history.transactional.jobs import DRIVERS, LOADS, Jobs, check_jobs
from faults.history.transactional.notes import GivenUpError, Outcome, Record, Transaction, TransactionNotes, Views
from warmlog import Consumer, Producer
from warmlog.errors import LogTruncated, ProducerFenced, TransactionAbortable, TransactionAborted, WarmlogError

TRANSFERS, COPIES = "transfers", "copies"
TOPICS = (TRANSFERS, COPIES, KAFKA_COPIES, LOADS)
KAFKA_WRITER = "writer-by-kafka"
"""Of transactions of version 1."""
PARTITIONS = 3
WRITERS = 6
PAIRS = 2
TIMEOUT_MS = 10_000
MAX_RECORDS = 12
LOOK_S = 0.5


class Pairs(Members):
    """Processes that copy. The successors of one of them have its transactional id, and fence what it has left."""

    program = "faults.history.transactional.pair"

    def arguments(self, name: str, kind: str) -> list[str]:
        transactional_id = f"copying-{kind if kind == STATIC else name}"
        session = f"--session-timeout-ms={SESSION_TIMEOUT_MS}"
        return [self.address, self.group, self.topic, str(self.directory / name), COPIES, transactional_id, session]


async def write(
    address: str, name: str, notes: TransactionNotes, luck: Random, stopping: asyncio.Event, pause_s: float
) -> None:
    """Write transactions, each with a pause after it, until it is stopped.

    Now and then another producer with the same id takes over.
    """
    written = notes.by_writer.setdefault(name, [])
    while not stopping.is_set():
        producer = Producer(
            address,
            transactional_id=name,
            transaction_timeout_ms=TIMEOUT_MS,
            linger_ms=1,
            batch_bytes=4096,
            delivery_timeout_ms=workload.GIVE_UP_MS,
        )
        with contextlib.suppress(WarmlogError):
            async with producer:
                while not stopping.is_set() and luck.random() < 0.97:
                    transaction = Transaction()
                    written.append(transaction)
                    await _write_one(producer, f"{name}:{len(written)}", transaction, luck, notes)
                    await asyncio.sleep(max(pause_s, 0.05 * (transaction.outcome is Outcome.UNKNOWN)))


async def _write_one(
    producer: Producer, name: str, transaction: Transaction, luck: Random, notes: TransactionNotes
) -> None:
    try:
        async with producer.transaction():
            for number in range(luck.randint(1, MAX_RECORDS)):
                record = luck.randrange(PARTITIONS), f"{name}:{number}:".encode() + luck.randbytes(luck.randrange(300))
                transaction.records.append(record)
                producer.send(TRANSFERS, record[1], partition=record[0])
                if luck.random() < 0.1:
                    await asyncio.sleep(0.002)
            if luck.random() < 0.2:
                raise GivenUpError
    except GivenUpError:
        transaction.outcome = Outcome.ABORTED
    except (TransactionAbortable, TransactionAborted) as error:
        notes.note_error(error)
        transaction.outcome = Outcome.ABORTED
    except ProducerFenced:
        raise
    except WarmlogError as error:
        notes.note_error(error)
    else:
        transaction.outcome = Outcome.COMMITTED


async def tail(address: str, topic: str, isolation: str, seen: list[Record]) -> None:
    """Read all of a topic with one consumer that lives through everything, until cancelled."""
    async with workload.started(address, [topic], isolation) as consumer:
        async for batch in consumer.batches():
            seen += (Record(record.partition, record.offset, record.value or b"") for record in batch)


async def read_views(address: str, topic: str) -> Views:
    """Return what there is for readers of both isolation levels."""
    views = {}
    for isolation in (COMMITTED, UNCOMMITTED):
        async with Consumer(address, topics=[topic], isolation=isolation, start="earliest") as consumer:
            records = [
                Record(record.partition, record.offset, record.value or b"")
                async for record in consumer.records(until="latest")
            ]
        views[isolation] = sorted(records, key=lambda record: (record.partition, record.offset))
    return views


class TransactionWork:
    """All transactional clients of one run."""

    def __init__(self, address: str, kafka_address: str, directory: Path, seed: int) -> None:
        self.notes = TransactionNotes()
        self.logged: dict[str, int] = {}
        """How many versions each job has noted as committed, when all is over."""
        self.pairs = Pairs(address, "copiers", TRANSFERS, directory / "pairs", PAIRS)
        self.jobs = Jobs(address, "", LOADS, directory / "jobs", DRIVERS)
        self.kafka_copiers = KafkaCopiers(kafka_address, KAFKA_COPIERS, TRANSFERS, directory / "kafka-copiers", COPIERS)
        self._address = address
        self._kafka_address = kafka_address
        self._seed = seed
        self._readers: list[asyncio.Future[None]] = []
        self._views: dict[str, Views] = {}
        self._loads_seen: list[Record] = []

    async def create_topics(self, configs: dict[str, str]) -> None:
        """Create the topics that the clients use."""
        for topic in TOPICS:
            await workload.create_topic(self._address, topic, PARTITIONS, configs)

    def start(self, producers_address: str, stopping: asyncio.Event, pause_s: float) -> list["asyncio.Future[None]"]:
        """Start readers and producers; return the producers, which end after `stopping`."""
        for isolation in (COMMITTED, UNCOMMITTED):
            seen = self.notes.seen.setdefault(isolation, [])
            self._readers.append(asyncio.ensure_future(tail(self._address, TRANSFERS, isolation, seen)))
        self._readers.append(asyncio.ensure_future(tail(self._address, LOADS, COMMITTED, self._loads_seen)))
        names = [f"writer-{number}" for number in range(WRITERS)]
        by_kafka = writers.write_transactions(
            self._kafka_address,
            KAFKA_WRITER,
            TRANSFERS,
            PARTITIONS,
            self.notes,
            Random(f"{self._seed}: {KAFKA_WRITER}"),
            stopping,
            pause_s,
        )
        return [
            asyncio.ensure_future(by_kafka),
            *(
                asyncio.ensure_future(
                    write(producers_address, name, self.notes, Random(f"{self._seed}: {name}"), stopping, pause_s)
                )
                for name in names
            ),
        ]

    async def finish(self, address: str, timeout_s: float) -> None:
        """Wait for the jobs' ends, and until everything is read and copied, but for that not longer than this.

        The checker says what is missing. RuntimeError if a process that copies has ended by itself.
        """
        await asyncio.wait_for(self.jobs.finish(), workload.GIVE_UP_MS / 1000)
        deadline_s = time.monotonic() + timeout_s
        self.logged = self.jobs.logged()
        while True:
            self.pairs.check()
            self.kafka_copiers.check()
            self._views = {topic: await read_views(address, topic) for topic in TOPICS}
            transfers, loads = self._views[TRANSFERS], self._views[LOADS][COMMITTED]
            wanted = [transfers[COMMITTED], transfers[UNCOMMITTED], *2 * [transfers[COMMITTED]], loads]
            copies = [self._views[topic][COMMITTED] for topic in (COPIES, KAFKA_COPIES)]
            found = [*self.notes.seen.values(), *copies, self._loads_seen]
            if [*map(len, found)] == [*map(len, wanted)] or time.monotonic() > deadline_s:
                break
            await asyncio.sleep(LOOK_S)
        for reader in self._readers:
            reader.cancel()
        await asyncio.wait(self._readers)
        for reader in self._readers:
            with contextlib.suppress(asyncio.CancelledError):
                if isinstance(error := reader.exception(), LogTruncated):
                    self.notes.cut_off.append(str(error))
                elif error is not None:
                    raise error

    def check(self) -> Iterable[tuple[str, str]]:
        """Yield what is wrong."""
        copies = {topic: self._views[topic] for topic in (COPIES, KAFKA_COPIES)}
        yield from check_transactions(self.notes, self._views[TRANSFERS], copies)
        yield from check_jobs(self.logged, self._views[LOADS], self._loads_seen)

    async def check_again(self, address: str) -> list[tuple[str, str]]:
        """Return what is not as it was, after a restart."""
        return [
            finding
            for topic, views in self._views.items()
            for finding in check_views_again(topic, views, await read_views(address, topic))
        ]
