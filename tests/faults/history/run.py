"""One run: faults by a seed against a busy broker, and then the comparison."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import MappingProxyType

from broker_process import BrokerFailed
from faults.history import workload
from faults.history.checking import FinalLog, Logs, check
from faults.history.nemesis import FAULTS, NEED_POWER_DISK
from faults.history.notes import Notes, WriterNotes
from faults.history.target import Target
from warmlog_protocol.batch import iter_batches
from warmlog_protocol.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from wire_client import WireClient

STEADY_TOPIC = "steady"
SHORT_TOPIC = "short-lived"
PARTITIONS = 2
TINY_SEGMENTS = {"segment.bytes": "65536", "index.interval.bytes": "512"}
RETENTION = {"retention.bytes": "200000", "file.delete.delay.ms": "100"}
SETTINGS: dict[str, object] = {
    "log_retention_check_interval_ms": 300,
    "log_flush_offset_checkpoint_interval_ms": 200,
    "producer_id_block_size": 3,
}
SETTLE_TIMEOUT_S = 120.0


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
    seconds: float = 0.0

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        return (
            f"seed {self.seed}: {faults or 'no faults'} in {self.seconds:.0f} s; {self.sent} records sent, "
            f"{self.acknowledged} acknowledged, {self.refused} given up, {self.read} read before the end, "
            f"{self.topics} topics created; {len(self.findings)} findings"
        )


def run(
    workspace: Path,
    *,
    seed: int,
    fault_count: int,
    faults: list[str],
    settings: Mapping[str, object] = MappingProxyType({}),
) -> Outcome:
    """Lets `fault_count` faults happen, drawn by `seed` from `faults`, and checks what is left.

    The seed decides which faults, when, and what a power cut leaves; what the clients do meanwhile it does not.
    """
    try:
        return asyncio.run(_run(workspace, seed, fault_count, faults, SETTINGS | dict(settings)))
    except BrokerFailed as error:
        last_lines = error.output.strip().splitlines()[-3:]
        return Outcome(seed, [f"start: the broker does not start again: {' / '.join(last_lines)}"])


async def _run(workspace: Path, seed: int, fault_count: int, faults: list[str], settings: dict[str, object]) -> Outcome:
    started_s = time.monotonic()
    luck = Random(seed)
    notes = Notes()
    has_power_disk = not NEED_POWER_DISK.isdisjoint(faults)
    async with Target(workspace, luck, has_power_disk=has_power_disk, **settings) as target:
        address = target.proxy.address
        await workload.create_topic(address, STEADY_TOPIC, PARTITIONS, TINY_SEGMENTS)
        await workload.create_topic(address, SHORT_TOPIC, PARTITIONS, TINY_SEGMENTS | RETENTION)
        stopping = asyncio.Event()
        notes.writers = [
            WriterNotes(f"{topic}-{partition}-{kind}", topic, partition, is_idempotent=kind == "idempotent")
            for topic in (STEADY_TOPIC, SHORT_TOPIC)
            for partition in range(PARTITIONS)
            for kind in ("idempotent", "plain")
        ]
        work = [asyncio.ensure_future(workload.write(address, writer, stopping)) for writer in notes.writers]
        work.append(asyncio.ensure_future(workload.administer(address, notes, stopping)))
        reader = asyncio.ensure_future(workload.read(address, [STEADY_TOPIC, SHORT_TOPIC], notes))
        await _torment(target, notes, luck, fault_count, faults, [*work, reader])
        stopping.set()
        await asyncio.wait_for(asyncio.gather(*work), SETTLE_TIMEOUT_S)
        reader.cancel()
        await asyncio.wait([reader])
        logs = await asyncio.to_thread(read_logs, target.broker.address)
        findings = check(notes, logs, await workload.list_topics(address))
    return Outcome(
        seed,
        findings,
        notes.faults,
        sent=sum(writer.sent for writer in notes.writers),
        acknowledged=sum(len(writer.acknowledged) for writer in notes.writers),
        refused=sum(len(writer.refused) for writer in notes.writers),
        read=len(notes.read),
        topics=sum(notes.created.values()),
        seconds=time.monotonic() - started_s,
    )


async def _torment(
    target: Target, notes: Notes, luck: Random, fault_count: int, faults: list[str], work: list["asyncio.Future[None]"]
) -> None:
    """One fault after the other, with work going on between them; ends early when a worker has ended with an error."""
    for _ in range(fault_count):
        await asyncio.sleep(luck.uniform(0.1, 0.8))
        for worker in work:
            if worker.done():
                worker.result()
        name = luck.choice(faults)
        await FAULTS[name](target)
        notes.faults[name] = notes.faults.get(name, 0) + 1
    await asyncio.sleep(0.5)


def read_logs(address: str) -> Logs:
    """Everything that is in the topics of the run."""
    with WireClient(address) as client:
        return {
            (topic, partition): _read_log(client, topic, partition)
            for topic in (STEADY_TOPIC, SHORT_TOPIC)
            for partition in range(PARTITIONS)
        }


def _read_log(client: WireClient, topic: str, partition: int) -> FinalLog:
    """As far as there is something; what is removed meanwhile is not part of it."""
    first_offset = client.offset_at(topic, EARLIEST_TIMESTAMP, partition=partition)
    end_offset = client.offset_at(topic, LATEST_TIMESTAMP, partition=partition)
    log = FinalLog(first_offset, [])
    while log.next_offset < end_offset:
        _, payload = client.fetch(topic, log.next_offset, partition=partition)
        for batch in iter_batches(payload):
            skipped = log.next_offset - batch.base_offset
            if skipped < 0 or (skipped and log.values):
                log.gaps.append(f"a batch begins at {batch.base_offset} and not at {log.next_offset}")
            values = batch.values()
            assert None not in values
            log.values += [value for value in values[max(0, skipped) :] if value is not None]
    return log
