"""One run: the cluster, who works with it, the faults, and what is wrong in the end."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from cluster.chaos.nemesis import FAULTS
from cluster_processes import ClusterProcesses
from faults.history.checking import Final, FinalLog, check
from faults.history.final import read_log
from faults.history.notes import Notes, WriterNotes
from faults.history.workload import read, tail, write
from warmlog import Admin
from warmlog.errors import WarmlogError
from warmlog_protocol.messages import MetadataRequest, MetadataResponse
from wire_client import WireClient

TOPIC, PARTITIONS = "events", 3
SETTLE_S = 60.0
"""Within this time after the last fault every partition has a leader and all its replicas in sync."""


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


def run(directory: Path, *, seed: int, faults: int, kinds: Sequence[str] = tuple(FAULTS)) -> Outcome:
    """Run so many faults against a cluster in `directory`."""
    with ClusterProcesses(directory / "c") as cluster:
        outcome = asyncio.run(_run(cluster, Random(seed), seed, faults, kinds))
        for broker in cluster.brokers.values():
            if broker.terminate() != 0:
                outcome.findings.append(f"broker {broker.settings['node.id']} did not stop in order")
            outcome.findings += [line for line in broker.output.splitlines() if "Traceback" in line or "a bug" in line]
        outcome.findings += _differences(cluster)
    return outcome


async def _run(cluster: ClusterProcesses, luck: Random, seed: int, faults: int, kinds: Sequence[str]) -> Outcome:
    address, notes, stopping = cluster.addresses, Notes(), asyncio.Event()
    async with Admin(address) as admin:
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=len(cluster.brokers))
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
    for _ in range(faults):
        name = luck.choice(list(kinds))
        await asyncio.sleep(luck.uniform(0.2, 1.5))
        await FAULTS[name](cluster, luck)
        outcome.faults[name] += 1
    outcome.findings += await _settled(address, len(cluster.brokers))
    stopping.set()
    done = await asyncio.gather(*writing, return_exceptions=True)
    outcome.findings += [f"a writer ended: {error!r}" for error in done if isinstance(error, BaseException)]
    await asyncio.sleep(1)
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    outcome.findings += check(notes, await asyncio.to_thread(_read_all, cluster))
    outcome.acknowledged = sum(len(writer.acknowledged) for writer in notes.writers)
    outcome.refused = [reason for writer in notes.writers for reason in writer.refused.values()]
    return outcome


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


async def _settled(address: str, replicas: int) -> list[str]:
    """Wait until every partition has all its replicas in sync; return what has not."""
    deadline_s = asyncio.get_running_loop().time() + SETTLE_S
    while True:
        found: list[str] = []
        with contextlib.suppress(WarmlogError):
            metadata = await asyncio.to_thread(_metadata, address)
            found = [
                f"{TOPIC}-{number}: leader {leader}, in sync {isr}"
                for number, leader, isr in metadata
                if leader < 0 or len(isr) < replicas
            ]
            if not found and metadata:
                return []
        if asyncio.get_running_loop().time() > deadline_s:
            return found or ["nobody tells the metadata"]
        await asyncio.sleep(0.2)


def _metadata(address: str) -> list[tuple[int, int, list[int]]]:
    with WireClient(address.split(",")[0]) as client:
        response = client.call(MetadataRequest([TOPIC]))
        assert isinstance(response, MetadataResponse)
        (topic,) = response.topics
        return [(each.partition, each.leader_id, each.in_sync_replicas) for each in topic.partitions]


def _read_all(cluster: ClusterProcesses) -> Final:
    """Read each partition from its leader."""
    logs: dict[tuple[str, int], FinalLog] = {}
    for number, leader, _ in _metadata(cluster.addresses):
        with WireClient(cluster.brokers[leader].address) as client:
            logs[TOPIC, number] = read_log(client, TOPIC, number)
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
