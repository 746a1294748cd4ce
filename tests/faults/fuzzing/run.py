"""One run: peers against a broker that has honest clients as well, and what it cost."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from broker_process import BrokerProcess, port_to_keep
from faults.fuzzing.corpus import PASSWORD, TOPIC, TOPICS, USER, openings
from faults.fuzzing.kafka import KafkaPeer
from faults.fuzzing.peers import Peer, Tally
from faults.honest import Honest, HonestOfKafka
from faults.process_use import sockets_of, use_of
from warmlog.admin.access.user_changes import creation
from warmlog_broker.tools.access import respond
from warmlog_protocol.messages import AlterUsersRequest
from wire_client import WireClient, batch_of

HONEST_TOPICS = ("honest", "honest-of-kafka")
WARM_UP_SHARE = 0.2
WARM_UP_FRAMES = 4000
SETTLE_S = 1.0
MAX_COMPLAINTS = 5
COMPLAINT_LINES = 16
COMPLAINTS = re.compile(r"Traceback|: a bug|Error in|never awaited")
OPEN_FILES = 64
MOST_DESCRIPTORS = OPEN_FILES + 48
SETTINGS: dict[str, object] = {
    "max_partitions": 40,
    "max_partitions_per_topic": 10,
    "connections_max_idle_ms": 60_000,
    "max_open_files": OPEN_FILES,
}


@dataclass(slots=True)
class Outcome:
    """What a run found, and what it did."""

    seed: int
    findings: list[str]
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    warm_bytes: int = 0
    end_bytes: int = 0
    warm_sockets: int = 0
    end_sockets: int = 0
    descriptors: int = 0
    honest_records: int = 0
    honest: str = ""

    def __str__(self) -> str:
        tally = self.tally
        return (
            f"seed {self.seed}: {tally.frames} frames over {tally.connections} connections in {self.seconds:.0f} s; "
            f"after {tally.answered} the connection went on, {tally.closed} ended it, {tally.swallowed} left it waiting"
            f"; {tally.logins} logins; "
            f"memory {self.warm_bytes / 2**20:.1f} MiB after warm-up, {self.end_bytes / 2**20:.1f} MiB at the end; "
            f"sockets {self.warm_sockets} and {self.end_sockets}, descriptors {self.descriptors}; "
            f"beside: {self.honest}; {len(self.findings)} findings"
        )


def run(data_dir: Path, *, seed: int, frames: int, peers: int = 8) -> Outcome:
    """Sends so many frames, mutated by `seed`, and reports what they did to the broker."""
    started_s = time.monotonic()
    outcome = Outcome(seed, [])
    respond(data_dir, AlterUsersRequest([creation(USER, PASSWORD)]))
    secure = ("127.0.0.1", port_to_keep())
    of_kafka = ("127.0.0.1", port_to_keep())
    listeners = (
        f"plain=plaintext://127.0.0.1:0,secure=sasl_plaintext://{secure[0]}:{secure[1]},"
        f"kafka=kafka+plaintext://{of_kafka[0]}:{of_kafka[1]}"
    )
    with BrokerProcess(data_dir, listeners=listeners, **SETTINGS) as broker:
        with WireClient(broker.address) as wire:
            for topic, settings in TOPICS.items():
                wire.create_topic(topic, retention_bytes="1000000", segment_bytes="1048576", **settings)
            for topic in HONEST_TOPICS:
                wire.create_topic(topic, retention_ms="-1")
            wire.produce(TOPIC, batch_of([b"value"] * 10))
            for message in openings():
                wire.call(message)
        own, other = HONEST_TOPICS
        honest = [Honest(broker.address, own), HonestOfKafka(f"{of_kafka[0]}:{of_kafka[1]}", other)]
        for client in honest:
            client.start()
        warm_up = max(int(frames * WARM_UP_SHARE), min(frames // 2, WARM_UP_FRAMES))
        _send(broker, secure, of_kafka, outcome, seed * 1000, warm_up, peers)
        outcome.warm_bytes, outcome.warm_sockets = use_of(broker.pid).memory_bytes, sockets_of(broker.pid)
        _send(broker, secure, of_kafka, outcome, seed * 1000 + 500, frames - warm_up, peers)
        (outcome.end_bytes, outcome.descriptors), outcome.end_sockets = use_of(broker.pid), sockets_of(broker.pid)
        for client in honest:
            client.stop()
        outcome.honest_records = min(client.count for client in honest)
        outcome.honest = ", of Kafka: ".join(map(str, honest))
        _judge(broker, honest, outcome)
    outcome.seconds = time.monotonic() - started_s
    return outcome


def _send(
    broker: BrokerProcess,
    secure: tuple[str, int],
    of_kafka: tuple[str, int],
    outcome: Outcome,
    seed: int,
    frames: int,
    count: int,
) -> None:
    """Half of the peers use the listener that authenticates, a quarter that of Kafka's clients."""
    plain = (broker.host, broker.port)
    peers: list[Peer] = []
    for number in range(count):
        if number % 4 == 2:
            peers.append(KafkaPeer(of_kafka, frames // count, seed + number))
        else:
            is_secure = bool(number % 2)
            address = secure if is_secure else plain
            peers.append(Peer(address, frames // count, seed + number, is_authenticated=is_secure))
    for peer in peers:
        peer.start()
    for peer in peers:
        peer.join()
        if peer.error is not None:
            outcome.findings.append(f"{peer.name}: {peer.error!r}")
        _add(outcome.tally, peer.tally)
    time.sleep(SETTLE_S)


def _add(total: Tally, more: Tally) -> None:
    for name in ("frames", "connections", "answered", "closed", "swallowed", "logins"):
        setattr(total, name, getattr(total, name) + getattr(more, name))
    for mutation, count in more.by_mutation.items():
        total.by_mutation[mutation] = total.by_mutation.get(mutation, 0) + count


def _judge(broker: BrokerProcess, honest: Sequence[Honest], outcome: Outcome) -> None:
    if broker.process is None or broker.process.poll() is not None:
        outcome.findings.append(f"the broker ended: {broker.output[-500:]}")
        return
    outcome.findings += [f"an honest client failed: {each.error!r}" for each in honest if each.error is not None]
    outcome.findings += [f"the broker's log: {text}" for text in _complaints(broker.output)[:MAX_COMPLAINTS]]
    allowance = max(8 * 2**20, outcome.warm_bytes // 10)
    if outcome.end_bytes > outcome.warm_bytes + allowance:
        outcome.findings.append(f"memory grew from {outcome.warm_bytes} to {outcome.end_bytes} bytes")
    if outcome.end_sockets > outcome.warm_sockets + 2:
        outcome.findings.append(f"{outcome.end_sockets - outcome.warm_sockets} sockets were not given back")
    if outcome.descriptors > MOST_DESCRIPTORS:
        outcome.findings.append(f"{outcome.descriptors} descriptors, with {OPEN_FILES} files of logs and few others")


def _complaints(output: str) -> list[str]:
    """What the broker logs only when it is to blame, each with the lines that follow."""
    lines = output.splitlines()
    found: dict[str, None] = {}
    for number, line in enumerate(lines):
        if COMPLAINTS.search(line):
            found[" / ".join(lines[number : number + COMPLAINT_LINES])] = None
    return list(found)
