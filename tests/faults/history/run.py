"""One run: faults by a seed against a busy broker, and then the comparison."""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import MappingProxyType

from broker_process import BrokerFailed
from faults.history import workload
from faults.history.checking import Final, check, check_again
from faults.history.final import read_all
from faults.history.kafka import writers
from faults.history.kafka.processes import KafkaMembers
from faults.history.members import GroupNotes, Members
from faults.history.nemesis import FAULTS, NEED_POWER_DISK
from faults.history.notes import Notes, WriterNotes
from faults.history.target import Target
from faults.history.transactional.notes import Outcome as TransactionOutcome
from faults.history.transactional.work import TransactionWork

STEADY_TOPIC = "steady"
SHORT_TOPIC = "short-lived"
TRIMMED_TOPIC = "trimmed"
"""It loses what is given up, and nothing else."""
STATE_TOPIC = "state"
LOG_TOPICS = (STEADY_TOPIC, SHORT_TOPIC, TRIMMED_TOPIC)
BY_KAFKA = "kafka"
"""The kind of a writer of aiokafka's, which is idempotent."""
WRITERS = {
    STEADY_TOPIC: ("idempotent", "plain", BY_KAFKA),
    SHORT_TOPIC: ("idempotent", "plain"),
    TRIMMED_TOPIC: ("idempotent",),
}
"""Of each partition."""
PARTITIONS = 2
GROUP = "readers"
KAFKA_GROUP = "readers-by-kafka"
MEMBERS = 3
"""One more than there are partitions: one of them waits for the others to fail."""
TINY_SEGMENTS = {"segment.bytes": "65536", "index.interval.bytes": "512"}
SOON_UNLINKED = {"file.delete.delay.ms": "100"}
RETENTION = {"retention.bytes": "200000"} | SOON_UNLINKED
COMPACTION = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.2"} | SOON_UNLINKED
SETTINGS: dict[str, object] = {
    "log_retention_check_interval_ms": 300,
    "log_flush_offset_checkpoint_interval_ms": 200,
    "log_cleaner_backoff_ms": 200,
}
SETTLE_TIMEOUT_S = 420.0
FULL_SPEED_S = 0.001
"""A pause of the writers: they take all the processor time that there is."""


@dataclass(slots=True)
class Outcome:
    """What a run found, and what it did."""

    seed: int
    findings: list[str]
    faults: dict[str, int] = field(default_factory=dict)
    sent: int = 0
    acknowledged: int = 0
    refused: int = 0
    read: int = 0
    topics: int = 0
    given_up: int = 0
    moves: int = 0
    lost_answers: int = 0
    commits: int = 0
    """Acknowledged ones of the groups."""
    committed_transactions: int = 0
    aborted_transactions: int = 0
    unknown_transactions: int = 0
    """Those of which the producer does not know."""
    job_versions: int = 0
    """Those that jobs have committed."""
    seconds: float = 0.0
    reasons: list[str] = field(default_factory=list)
    """Why records were given up, each once."""

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        return (
            f"seed {self.seed}: {faults or 'no faults'} in {self.seconds:.0f} s; {self.sent} records sent, "
            f"{self.acknowledged} acknowledged, {self.refused} given up, {self.read} read before the end, "
            f"{self.topics} topics created, {self.moves} moves begun, records of {self.given_up} partitions given up, "
            f"{self.lost_answers} answers lost, {self.commits} commits, {self.committed_transactions} transactions "
            f"committed, {self.aborted_transactions} aborted, {self.unknown_transactions} unknown, "
            f"{self.job_versions} versions of jobs; "
            f"{len(self.findings)} findings"
        )


def run(
    workspace: Path,
    *,
    seed: int,
    fault_count: int,
    faults: list[str],
    settings: Mapping[str, object] = MappingProxyType({}),
    group_timeout_s: float = SETTLE_TIMEOUT_S,
    pause_s: float = FULL_SPEED_S,
) -> Outcome:
    """Lets `fault_count` faults happen, drawn by `seed` from `faults`, and checks what is left.

    The seed decides which faults come, in which order, after which pauses, how long each lasts, after how many
    operations the power goes and what it leaves. It does not decide what the clients have done by then, and so neither
    where a fault hits them: that is timing. The same seed repeats the same faults, not the same history.

    At the end the group reads everything, and has `group_timeout_s` for each commit that goes further. One never does
    if the log has lost what the group committed.
    Each writer pauses for `pause_s` after every 20 records or a transaction.
    """
    try:
        return asyncio.run(
            _run(workspace, seed, fault_count, faults, SETTINGS | dict(settings), group_timeout_s, pause_s)
        )
    except BrokerFailed as error:
        last_lines = error.output.strip().splitlines()[-3:]
        return Outcome(seed, [f"start: the broker does not start again: {' / '.join(last_lines)}"])


async def _run(
    workspace: Path,
    seed: int,
    fault_count: int,
    faults: list[str],
    settings: dict[str, object],
    group_timeout_s: float,
    pause_s: float,
) -> Outcome:
    started_s = time.monotonic()
    luck = Random(seed)
    has_power_disk = not NEED_POWER_DISK.isdisjoint(faults)
    async with Target(workspace, luck, has_power_disk=has_power_disk, **settings) as target:
        notes = Notes(writers=_writers(), retained_topics=frozenset([SHORT_TOPIC]))
        await _create_topics(target.proxy.address)
        transactions = TransactionWork(target.proxy.address, target.kafka_proxy.address, workspace, seed)
        await transactions.create_topics(TINY_SEGMENTS)
        stopping = asyncio.Event()
        own = Members(target.proxy.address, GROUP, STEADY_TOPIC, workspace / "members", MEMBERS)
        kafka_workspace = workspace / "kafka-members"
        others = KafkaMembers(target.kafka_proxy.address, KAFKA_GROUP, STEADY_TOPIC, kafka_workspace, MEMBERS)
        with own, others, transactions.pairs, transactions.kafka_copiers, transactions.jobs as target.jobs:
            target.members, target.pairs = (own, others), (transactions.pairs, transactions.kafka_copiers)
            work = _start_work(target, notes, seed, stopping, pause_s)
            work += transactions.start(target.producers_proxy.address, stopping, pause_s)
            readers = _start_readers(target.proxy.address, notes, target.members)
            await _torment(target, notes, luck, fault_count, faults, [*work, *readers])
            stopping.set()
            await asyncio.wait_for(asyncio.gather(*work), SETTLE_TIMEOUT_S)
            for reader in readers:
                reader.cancel()
            await asyncio.wait(readers)
            await _finish_reading(target, notes, group_timeout_s)
            await transactions.finish(target.broker.address, group_timeout_s)
        final = await _read_final(target)
        findings = check(notes, final, STEADY_TOPIC)
        findings += [f"{kind}: {text}" for kind, text in transactions.check()]
        await asyncio.to_thread(target.broker.restart)
        findings += check_again(final, await _read_final(target), notes)
        findings += [f"{kind}: {text}" for kind, text in await transactions.check_again(target.broker.address)]
        lost_answers = sum(proxy.lost_answers for proxy in target.proxies)
    return Outcome(
        seed,
        findings,
        notes.faults,
        sent=sum(writer.sent for writer in notes.writers),
        acknowledged=sum(len(writer.acknowledged) for writer in notes.writers),
        refused=sum(len(writer.refused) for writer in notes.writers),
        read=len(notes.read),
        topics=sum(notes.created.values()),
        given_up=len(notes.given_up),
        moves=notes.moves,
        lost_answers=lost_answers,
        commits=sum(event.kind == "committed" for group in notes.groups.values() for event in group.events),
        committed_transactions=transactions.notes.count(TransactionOutcome.COMMITTED),
        aborted_transactions=transactions.notes.count(TransactionOutcome.ABORTED),
        unknown_transactions=transactions.notes.count(TransactionOutcome.UNKNOWN),
        job_versions=sum(transactions.logged.values()),
        seconds=time.monotonic() - started_s,
        reasons=sorted({reason for writer in notes.writers for reason in writer.refused.values()}),
    )


def _writers() -> list[WriterNotes]:
    plain_and_not = [
        WriterNotes(f"{topic}-{partition}-{kind}", topic, partition, is_idempotent=kind != "plain")
        for topic, kinds in WRITERS.items()
        for partition in range(PARTITIONS)
        for kind in kinds
    ]
    keyed = [
        WriterNotes(f"{STATE_TOPIC}-{partition}", STATE_TOPIC, partition, is_idempotent=True, is_keyed=True)
        for partition in range(PARTITIONS)
    ]
    return plain_and_not + keyed


async def _create_topics(address: str) -> None:
    await workload.create_topic(address, STEADY_TOPIC, PARTITIONS, TINY_SEGMENTS)
    await workload.create_topic(address, SHORT_TOPIC, PARTITIONS, TINY_SEGMENTS | RETENTION)
    await workload.create_topic(address, TRIMMED_TOPIC, PARTITIONS, TINY_SEGMENTS | SOON_UNLINKED)
    await workload.create_topic(address, STATE_TOPIC, PARTITIONS, TINY_SEGMENTS | COMPACTION)


def _start_work(
    target: Target, notes: Notes, seed: int, stopping: asyncio.Event, pause_s: float
) -> list["asyncio.Future[None]"]:
    """Whoever changes something; each with a luck of its own, so that they do not take the nemesis's."""
    address = target.proxy.address
    short = [(topic, partition) for topic in (SHORT_TOPIC, TRIMMED_TOPIC) for partition in range(PARTITIONS)]
    every = [(topic, partition) for topic in (*LOG_TOPICS, STATE_TOPIC) for partition in range(PARTITIONS)]
    return [
        *(asyncio.ensure_future(_write(target, writer, stopping, pause_s)) for writer in notes.writers),
        asyncio.ensure_future(workload.administer(address, notes, stopping)),
        asyncio.ensure_future(
            workload.give_up_records(address, short, notes, Random(f"{seed}: records"), stopping),
        ),
        asyncio.ensure_future(
            workload.move(address, every, target.data_dirs, notes, Random(f"{seed}: moves"), stopping),
        ),
    ]


async def _write(target: Target, writer: WriterNotes, stopping: asyncio.Event, pause_s: float) -> None:
    if writer.name.endswith(BY_KAFKA):
        await writers.write(target.kafka_proxy.address, writer, stopping, pause_s)
    else:
        await workload.write(target.producers_proxy.address, writer, stopping, pause_s)


def _start_readers(address: str, notes: Notes, members: Sequence[Members]) -> list["asyncio.Future[None]"]:
    return [
        asyncio.ensure_future(workload.read(address, [*LOG_TOPICS, STATE_TOPIC], notes)),
        asyncio.ensure_future(workload.tail(address, [STEADY_TOPIC], notes)),
        *(
            asyncio.ensure_future(each.observe(address, notes.groups.setdefault(each.group, GroupNotes())))
            for each in members
        ),
    ]


def draw(luck: Random, count: int, faults: list[str]) -> list[str]:
    """So many of `faults`: all of them in some order, and then again in another, so that none is left out for long."""
    drawn: list[str] = []
    while len(drawn) < count:
        drawn += luck.sample(faults, len(faults))
    return drawn[:count]


async def _some_acknowledged(notes: Notes) -> None:
    """Returns when some more records are acknowledged than before: a fault that hits nobody shows nothing."""
    before = sum(len(writer.acknowledged) for writer in notes.writers)
    while sum(len(writer.acknowledged) for writer in notes.writers) == before:  # noqa: ASYNC110 - ten writers, one look
        await asyncio.sleep(0.01)


async def _finish_reading(target: Target, notes: Notes, timeout_s: float) -> None:
    """Waits until the groups have read everything, and takes what their members have noted."""
    final = await _read_final(target)
    ends = {partition: log.next_offset for (topic, partition), log in final.logs.items() if topic == STEADY_TOPIC}
    for members in target.members:
        group = notes.groups[members.group]
        with contextlib.suppress(TimeoutError):  # the checker says what is missing
            await members.wait_until_done(target.proxy.address, ends, group, patience_s=timeout_s)
        group.events = members.events()


async def _read_final(target: Target) -> Final:
    address = target.broker.address
    return await asyncio.to_thread(
        read_all, address, LOG_TOPICS, [STATE_TOPIC], PARTITIONS, await workload.list_topics(address)
    )


async def _torment(
    target: Target, notes: Notes, luck: Random, fault_count: int, faults: list[str], work: list["asyncio.Future[None]"]
) -> None:
    """One fault after the other, with work going on between them; ends early when a worker has ended with an error."""
    for name in draw(luck, fault_count, faults):
        await asyncio.wait_for(_some_acknowledged(notes), SETTLE_TIMEOUT_S)
        await asyncio.sleep(luck.uniform(0.1, 0.8))
        for worker in work:
            if worker.done():
                worker.result()
        await FAULTS[name](target)
        notes.faults[name] = notes.faults.get(name, 0) + 1
    await asyncio.sleep(0.5)
