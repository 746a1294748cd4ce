"""One run: the cluster, who works with it, the faults, and what is wrong in the end."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from cluster.chaos.machines import Machines
from cluster.chaos.nemesis import FAULTS, NEED_POWER_DISKS
from cluster.chaos.settling import SETTLE_S, metadata, settled
from cluster_processes import ClusterProcesses
from etcd_process import EtcdProcess
from faults.history.checking import Final, FinalLog, check
from faults.history.final import read_log
from faults.history.members import GroupNotes, Members
from faults.history.notes import Notes, WriterNotes
from faults.history.transactional.work import TransactionWork
from faults.history.workload import read, tail, write
from warmlog import Admin
from warmlog.errors import InvalidReplicationFactor, WarmlogError
from wire_client import WireClient

if TYPE_CHECKING:
    from spark.killed.run import Streams

TOPIC, PARTITIONS = "events", 3
ETCD_TIMES = ("--heartbeat-interval", "200", "--election-timeout", "2000")
"""For several members on a busy machine."""


@dataclass
class Outcome:
    """What came of a run."""

    seed: int
    findings: list[str]
    faults: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    refused: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        return f"seed {self.seed}: {self.acknowledged} records, {len(self.refused)} given up; {told}"


def run(
    directory: Path,
    *,
    seed: int,
    faults: int,
    kinds: Sequence[str] = tuple(FAULTS),
    with_groups: bool = True,
    with_spark: bool = False,
) -> Outcome:
    """Run so many faults against a cluster in `directory`.

    `with_groups`: against groups and transactions, too; `with_spark`: and against streams of Spark.
    """
    members = 3 if "etcd-leader" in kinds else 1
    etcd = EtcdProcess(directory / "etcd", members=members, more=ETCD_TIMES if members > 1 else ())
    cluster = ClusterProcesses(directory / "c", etcd=etcd)
    machines = Machines(cluster, has_power_disks=not NEED_POWER_DISKS.isdisjoint(kinds))
    with etcd:
        return asyncio.run(_run(cluster, machines, seed, faults, kinds, with_groups=with_groups, with_spark=with_spark))


async def _run(
    cluster: ClusterProcesses,
    machines: Machines,
    seed: int,
    faults: int,
    kinds: Sequence[str],
    *,
    with_groups: bool,
    with_spark: bool,
) -> Outcome:
    async with machines:
        await asyncio.to_thread(cluster.__enter__)
        try:
            with ExitStack() as stack:
                streams = await asyncio.to_thread(stack.enter_context, _streams(cluster)) if with_spark else None
                outcome = await _torment(cluster, machines, seed, faults, kinds, with_groups=with_groups)
                outcome.findings += await asyncio.to_thread(streams.finish) if streams is not None else []
            for broker in cluster.brokers.values():
                if await asyncio.to_thread(broker.terminate) != 0:
                    outcome.findings.append(f"broker {broker.settings['node.id']} did not stop in order")
                lines = broker.output.splitlines()
                outcome.findings += [line for line in lines if "Traceback" in line or "a bug" in line]
            outcome.findings += _differences(cluster)
        finally:
            await asyncio.to_thread(cluster.__exit__)
            for node, broker in cluster.brokers.items():
                (cluster.directory / f"broker-{node}.log").write_text(broker.output)
    return outcome


@contextlib.contextmanager
def _streams(cluster: ClusterProcesses) -> Iterator["Streams"]:
    """Streams of Spark that write within."""
    from spark.killed.run import Streams
    from spark.topics import Topics

    names, broker = ["stream-1", "stream-2"], cluster.brokers[1]
    with Topics(broker.host, broker.port) as topics:
        for name in names:
            topics.create(name, partitions=2)
    directory = cluster.directory / "streams"
    directory.mkdir()
    streams = Streams(_Addresses(cluster.addresses), directory, names)
    streams.start()
    try:
        yield streams
    finally:
        streams.stop()


class _Addresses(NamedTuple):
    address: str


async def _torment(
    cluster: ClusterProcesses, machines: Machines, seed: int, faults: int, kinds: Sequence[str], *, with_groups: bool
) -> Outcome:
    luck = Random(seed)
    address, notes, stopping = cluster.addresses, Notes(), asyncio.Event()
    async with Admin(address) as admin:
        topic = None
        while topic is None:
            with contextlib.suppress(InvalidReplicationFactor):  # on a busy machine a broker registers again
                topic = await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=len(cluster.brokers))
    notes.writers = [
        WriterNotes(f"{kind}-{partition}", TOPIC, partition, is_idempotent=kind == "once")
        for kind in ("once", "plain")
        for partition in range(PARTITIONS)
    ]
    writing = [asyncio.create_task(write(address, writer, stopping, 0.02)) for writer in notes.writers]
    reading = [
        asyncio.create_task(each)
        for each in (tail(address, [TOPIC], notes), read(address, [TOPIC], notes), _watch_ends(address, notes))
    ]
    outcome = Outcome(seed, [])
    async with contextlib.AsyncExitStack() as stack:
        groups = (
            Groups(stack, address, ",".join(machines.kafka), cluster.directory.parent, seed) if with_groups else None
        )
        if groups is not None:
            writing += await groups.start(notes, stopping)
            reading.append(groups.observing)
        left: list[str] = []
        for _ in range(faults):
            left = left or luck.sample(kinds, len(kinds))
            name = left.pop()
            await asyncio.sleep(luck.uniform(0.2, 1.5))
            await FAULTS[name](cluster, machines, luck)
            outcome.faults[name] += 1
        outcome.findings += await settled(cluster)
        stopping.set()
        done = await asyncio.gather(*writing, return_exceptions=True)
        if groups is not None:
            final = await asyncio.to_thread(_read_all, cluster)
            outcome.findings += await groups.finish(
                notes, {number: log.next_offset for (_, number), log in final.logs.items()}
            )
    outcome.findings += [f"a writer ended: {error!r}" for error in done if isinstance(error, BaseException)]
    await asyncio.sleep(1)
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    outcome.findings += check(notes, await asyncio.to_thread(_read_all, cluster), TOPIC if with_groups else "")
    outcome.acknowledged = sum(len(writer.acknowledged) for writer in notes.writers)
    outcome.refused = [reason for writer in notes.writers for reason in writer.refused.values()]
    return outcome


class Groups:
    """A group that reads the topic, and transactions: who writes them, who copies by them, and jobs."""

    def __init__(
        self, stack: contextlib.AsyncExitStack, address: str, kafka_address: str, directory: Path, seed: int
    ) -> None:
        self.observing: asyncio.Future[None]
        self._stack = stack
        self._address = address
        self._members = Members(address, "followers", TOPIC, directory / "members", 3)
        self._transactions = TransactionWork(address, kafka_address, directory, seed)

    async def start(self, notes: Notes, stopping: asyncio.Event) -> list["asyncio.Future[None]"]:
        """Start all of them; return those that write in this process."""
        await self._transactions.create_topics({})
        work = self._transactions
        for each in (self._members, work.pairs, work.kafka_copiers, work.jobs):
            self._stack.enter_context(each)
        self.observing = asyncio.ensure_future(self._members.observe(self._address, self._notes_of(notes)))
        return self._transactions.start(self._address, stopping, 0.05)

    def _notes_of(self, notes: Notes) -> GroupNotes:
        return notes.groups.setdefault(self._members.group, GroupNotes())

    async def finish(self, notes: Notes, ends: dict[int, int]) -> list[str]:
        """Wait until all is read and decided; return what is wrong with the transactions."""
        with contextlib.suppress(TimeoutError):  # the checker says what is missing
            await self._members.wait_until_done(self._address, ends, self._notes_of(notes), patience_s=SETTLE_S)
        self._notes_of(notes).events = self._members.events()
        try:
            await self._transactions.finish(self._address, SETTLE_S)
        except TimeoutError:  # its rows cannot be checked then; all else is
            return [f"jobs: a driver still had its version to commit after {SETTLE_S:g} s"]
        return [f"{kind}: {text}" for kind, text in self._transactions.check()]


async def _watch_ends(address: str, notes: Notes) -> None:
    """Ask for the latest offsets again and again: they never go back."""
    seen: dict[int, int] = {}
    while True:
        with contextlib.suppress(WarmlogError, TimeoutError):
            async with Admin(address) as admin:
                while True:
                    for partition, found in (await admin.list_offsets(TOPIC, "latest")).items():
                        if found.offset < seen.get(partition, 0):
                            notes.contradictions.append(
                                f"the end of {TOPIC}-{partition} was {seen[partition]}, then {found.offset}"
                            )
                        seen[partition] = max(seen.get(partition, 0), found.offset)
                    await asyncio.sleep(0.1)


def _read_all(cluster: ClusterProcesses) -> Final:
    """Read each partition from its leader."""
    logs: dict[tuple[str, int], FinalLog] = {}
    for each in metadata(cluster, [TOPIC]).topics[0].partitions:
        with WireClient(cluster.brokers[each.leader_id].address) as client:
            logs[TOPIC, each.partition] = read_log(client, TOPIC, each.partition)
    return Final(logs, {}, [TOPIC])


def _differences(cluster: ClusterProcesses) -> Iterator[str]:
    """Compare the bytes of all replicas, once the brokers have stopped."""
    for number in range(PARTITIONS):
        found = {
            node: b"".join(path.read_bytes() for path in sorted(broker.data_dir.glob(f"{TOPIC}-{number}/*.log")))
            for node, broker in cluster.brokers.items()
        }
        if len(set(found.values())) > 1:
            sizes = {node: len(content) for node, content in found.items()}
            yield f"the replicas of {TOPIC}-{number} have other bytes: {sizes}"
