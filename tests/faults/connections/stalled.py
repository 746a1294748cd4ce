"""Clients that announce large requests and send half of each, more than there is memory for; and honest ones beside."""

import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from broker_process import BrokerProcess
from faults.process_use import use_of
from warmlog_protocol.errors import WarmlogError
from warmlog_protocol.messages import ProducePartition, ProduceRequest
from wire_client import ConnectionEnded, WireClient, batch_of

MIB = 2**20
FRAME_BYTES = 18 * MIB
LIMITS: dict[str, object] = {
    "socket_request_max_bytes": 20 * MIB,
    "queued_max_request_bytes": 50 * MIB,
    "connections_stall_timeout_ms": 10_000,
}
HONEST_BYTES = 100_000
TIMEOUT_S = 60.0
KEPT_BYTES = 16 * MIB


@dataclass(slots=True)
class Outcome:
    """What honest clients met, and what the broker gave back."""

    stalled: int
    findings: list[str] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)
    cut: int = 0
    before_bytes: int = 0
    most_bytes: int = 0
    after_bytes: int = 0

    def __str__(self) -> str:
        durations = sorted(self.durations_s) or [0.0]
        p99_ms = durations[int(len(durations) * 0.99)] * 1000
        return (
            f"{self.cut} of {self.stalled} stalled requests of {FRAME_BYTES // MIB} MiB cut, half of each sent, with "
            f"memory for two; meanwhile {len(durations)} honest clients connected and produced {HONEST_BYTES} bytes, "
            f"p99 {p99_ms:.0f} ms, the slowest {durations[-1] * 1000:.0f} ms; broker before "
            f"{self.before_bytes / MIB:.0f} MiB, at most {self.most_bytes / MIB:.0f}, "
            f"after {self.after_bytes / MIB:.0f}; "
            f"{len(self.findings)} findings"
        )


def run(data_dir: Path, *, stalled: int) -> Outcome:
    """Fills the memory for requests with half-sent ones, and keeps producing beside them until they are gone."""
    outcome = Outcome(stalled)
    with BrokerProcess(data_dir, **LIMITS) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
        _produce(broker.address)
        outcome.before_bytes = use_of(broker.pid).memory_bytes
        threads = [threading.Thread(target=_stall, args=(broker.address, outcome), daemon=True) for _ in range(stalled)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            begin_s = time.monotonic()
            _produce(broker.address)
            outcome.durations_s.append(time.monotonic() - begin_s)
            outcome.most_bytes = max(outcome.most_bytes, use_of(broker.pid).memory_bytes)
        outcome.after_bytes = use_of(broker.pid).memory_bytes
        if ": a bug" in broker.output:
            outcome.findings.append("the broker's log has a bug")
    if outcome.cut != stalled:
        outcome.findings.append(f"{stalled - outcome.cut} stalled requests were not cut")
    if outcome.after_bytes > outcome.before_bytes + KEPT_BYTES:
        outcome.findings.append(f"memory did not come back: {outcome.before_bytes} before, {outcome.after_bytes} after")
    return outcome


def _produce(address: str) -> None:
    """A client of its own: its receive buffer is small, so that it needs memory from the budget."""
    with WireClient(address, timeout_s=TIMEOUT_S) as client:
        client.produce("t", batch_of([b"x" * HONEST_BYTES]))


def _stall(address: str, outcome: Outcome) -> None:
    """Sends half of a request, and waits to be cut."""
    with ExitStack() as closing, suppress(WarmlogError):
        client = closing.enter_context(WireClient(address, timeout_s=TIMEOUT_S))
        message = ProduceRequest(-1, 1000, [ProducePartition("t", 0, FRAME_BYTES)])
        _, frame = client.connection.request(message, FRAME_BYTES)
        try:
            client.socket.sendall(frame + bytes(FRAME_BYTES // 2))
            if not client.socket.recv(1):
                outcome.cut += 1
        except (ConnectionEnded, ConnectionError):
            outcome.cut += 1
        except TimeoutError:
            return
