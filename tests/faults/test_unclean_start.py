"""After an unclean stop, what was in the page cache only is on the disk before anybody is served."""

import re
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from faults.flush_order import can_trace
from warmlog_protocol.messages import ACKS_LEADER, LATEST_TIMESTAMP
from wire_client import WireClient, batch_of

CALLS = "fsync,fdatasync,syncfs,fadvise64,pread64,preadv,preadv2,listen"
LATER_MS = 10_000_000


class TracedBroker(BrokerProcess):
    """A broker whose system calls go to the file `trace`, descriptors with their paths."""

    trace = Path("trace")

    @property
    def arguments(self) -> list[str]:
        return ["strace", "-D", "-f", "-y", "-e", f"trace={CALLS}", "-o", str(self.trace), *super().arguments]


@pytest.mark.skipif(not can_trace(), reason="strace is missing, or may not trace here")
def test_the_log_is_synced_read_from_the_disk_and_only_then_served(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    settings = {"flush_ms": LATER_MS, "flush_syncfs_files": 0}
    with BrokerProcess(data_dir, **settings) as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        for number in range(50):
            client.produce("t", batch_of([b"%d" % number]), acks=ACKS_LEADER)
        broker.kill()
    log = str(data_dir / "t-0" / f"{0:020d}.log")
    traced = TracedBroker(data_dir, **settings)
    traced.trace = tmp_path / "trace"
    with traced:
        with WireClient(traced.address) as client:
            assert client.offset_at("t", LATEST_TIMESTAMP) == 50
        assert traced.terminate() == 0
    before_serving = steps(traced.trace, log)
    before_serving = before_serving[: before_serving.index("listen")]
    assert before_serving[:2] == ["fdatasync", "fadvise64"], before_serving
    assert before_serving[2] in ("pread64", "preadv", "preadv2"), before_serving


def steps(trace: Path, path: str) -> list[str]:
    """The calls that concern `path`, and listen, in order; repetitions left out."""
    found: list[str] = []
    for line in trace.read_text().splitlines():
        match = re.match(r"\d+\s+(\w+)\((\d+)<([^>]*)>", line)
        if match is None:
            continue
        name, _, target = match.groups()
        step = name if name == "listen" or target == path else ""
        if step and (not found or found[-1] != step):
            found.append(step)
    return found
