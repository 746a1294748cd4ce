"""One run: a crowd against a broker that has an honest client as well, twice, so that what is kept shows as growth."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from broker_process import BrokerProcess
from faults.connections import crowd
from faults.connections.crowd import Cut
from faults.honest import Honest
from faults.process_use import Use, sockets_of, use_of
from warmlog_broker.runtime import malloc as allocator
from wire_client import WireClient

ROUNDS = 2
SETTLE_S = 40.0
KEPT_BYTES = 8 * 2**20
"""What may stay more after a round than after the one before: malloc gives back whole pages only."""
KEPT_DESCRIPTORS = 8
TRIMS = 5
"""How often the broker may trim its memory until that is back: it may be busy when it is to do so."""
COMPLAINTS = ("Traceback", ": a bug", "Error in", "never awaited")
NOTHING = Use(0, 0)
NOT_CUT = Cut(0, 0.0, 0.0)
HONEST_TOPIC = "honest"


@dataclass(slots=True)
class Outcome:
    """What a run found, and its figures."""

    idle: int
    half_open: int
    deadline_ms: int
    findings: list[str] = field(default_factory=list)
    before: Use = NOTHING
    held: Use = NOTHING
    after: list[Use] = field(default_factory=list)
    held_sockets: int = 0
    other_sockets: list[int] = field(default_factory=list)
    """Before, and after all had gone."""
    connect_s: float = 0.0
    ask_s: float = 0.0
    cut: Cut = NOT_CUT
    honest: str = ""

    @property
    def connection_kib(self) -> float:
        """Memory of the broker for each connection that is held."""
        return (self.held.memory_bytes - self.before.memory_bytes) / 1024 / self.idle

    @property
    def most_kept_bytes(self) -> int:
        """What the broker may keep when all have gone; of later rounds no more than KEPT_BYTES above the first."""
        grown_bytes = self.held.memory_bytes - self.before.memory_bytes
        most_bytes = self.before.memory_bytes + grown_bytes // 2 + KEPT_BYTES
        return min([most_bytes, *(use.memory_bytes + KEPT_BYTES for use in self.after)])

    def __str__(self) -> str:
        return (
            f"{self.idle} connections held, {self.connection_kib:.1f} KiB each, opened in {self.connect_s:.1f} s; a "
            f"request on each in turn took {self.ask_s:.1f} s; beside them {self.cut.count} of {self.half_open} "
            f"half-open ones cut {self.cut.first_s:.1f} to {self.cut.last_s:.1f} s after they began "
            f"(deadline {self.deadline_ms} ms); "
            f"broker before: {self.before}, holding: {self.held}, after all had gone: "
            f"{'; again: '.join(map(str, self.after))}; beside: {self.honest}; {len(self.findings)} findings"
        )


def run(
    data_dir: Path,
    *,
    idle: int,
    half_open: int,
    deadline_ms: int = 5000,
    trim_interval_s: float = allocator.TRIM_INTERVAL_S,
) -> Outcome:
    """Opens, asks, cuts and closes; reports what it cost the broker and what it gave back."""
    outcome = Outcome(idle, half_open, deadline_ms)
    settings = {
        "max_connections": idle + half_open + 100,
        "max_connections_per_ip": idle + half_open + 100,
        "handshake_timeout_ms": deadline_ms,
        "connections_stall_timeout_ms": deadline_ms,
    }
    constants = {allocator: {"TRIM_INTERVAL_S": trim_interval_s}}
    with BrokerProcess(data_dir, constants=constants, **settings) as broker:
        with WireClient(broker.address) as client:
            client.create_topic(HONEST_TOPIC, retention_ms="-1")
        honest = Honest(broker.address, HONEST_TOPIC)
        honest.start()
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as process:
            process.submit(crowd.begin, idle + half_open + 100).result()
            _wait_for(broker, descriptors=0, timeout_s=1.0)
            outcome.before = use_of(broker.pid)
            outcome.other_sockets.append(sockets_of(broker.pid))
            for _ in range(ROUNDS):
                _round(broker, process, outcome)
                outcome.after.append(_use_when_trimmed(broker, outcome, trim_interval_s))
                outcome.other_sockets.append(sockets_of(broker.pid))
        honest.stop()
        outcome.honest = str(honest)
        if honest.error is not None:
            outcome.findings.append(f"the honest client failed: {honest.error!r}")
        outcome.findings += [line for line in broker.output.splitlines() if any(each in line for each in COMPLAINTS)]
        _judge(outcome)
    return outcome


def _round(broker: BrokerProcess, process: ProcessPoolExecutor, outcome: Outcome) -> None:
    address = (broker.host, broker.port)
    begin_s = time.monotonic()
    process.submit(crowd.connect, address, outcome.idle).result()
    outcome.connect_s = time.monotonic() - begin_s
    if not outcome.after:
        outcome.held, outcome.held_sockets = use_of(broker.pid), sockets_of(broker.pid)
    outcome.cut = process.submit(crowd.half_open, address, outcome.half_open).result()
    begin_s = time.monotonic()
    answered = process.submit(crowd.ask).result()
    outcome.ask_s = time.monotonic() - begin_s
    if answered != outcome.idle:
        outcome.findings.append(f"{answered} of {outcome.idle} connections were answered")
    process.submit(crowd.close).result()
    _wait_for(broker, descriptors=outcome.before.descriptors + KEPT_DESCRIPTORS, timeout_s=SETTLE_S)


def _wait_for(broker: BrokerProcess, *, descriptors: int, timeout_s: float) -> None:
    """Returns when the broker has no more descriptors than that, or when the time is over."""
    deadline_s = time.monotonic() + timeout_s
    while use_of(broker.pid).descriptors > descriptors and time.monotonic() < deadline_s:
        time.sleep(0.1)


def _use_when_trimmed(broker: BrokerProcess, outcome: Outcome, trim_interval_s: float) -> Use:
    """Return what the broker uses once it has given back what it should, or after some rounds of trimming."""
    for _ in range(TRIMS):
        time.sleep(trim_interval_s + 1)
        use = use_of(broker.pid)
        if use.memory_bytes <= outcome.most_kept_bytes:
            break
    return use


def _judge(outcome: Outcome) -> None:
    findings = outcome.findings
    if outcome.cut.count != outcome.half_open:
        findings.append(f"{outcome.half_open - outcome.cut.count} half-open connections were not cut")
    if outcome.held_sockets - min(outcome.other_sockets) < outcome.idle:
        findings.append(f"only {outcome.held_sockets} sockets with {outcome.idle} connections: not all are held")
    for use in outcome.after:
        if use.descriptors > outcome.before.descriptors + KEPT_DESCRIPTORS:
            findings.append(f"{use.descriptors} descriptors after all had gone, {outcome.before.descriptors} before")
    if outcome.after[-1].memory_bytes > outcome.after[0].memory_bytes + KEPT_BYTES:
        findings.append(f"memory grew from round to round: {outcome.after[0]}, {outcome.after[-1]}")
    if outcome.after[-1].memory_bytes > outcome.most_kept_bytes:
        findings.append(f"memory did not come back: {outcome.before} before, {outcome.after[-1]} after")
