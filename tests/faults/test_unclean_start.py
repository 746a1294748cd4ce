"""After an unclean stop, what was in the page cache only is on the disk before anybody is served."""

import os
import re
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from faults.flush_order import can_trace
from waiting import wait_until
from warmlog_protocol.batch import iter_batches
from warmlog_protocol.errors import CorruptBatch
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
    checked = before_serving[before_serving.index("fdatasync") :]  # headers are read before that, for their epochs
    assert checked[:2] == ["fdatasync", "fadvise64"], before_serving
    assert checked[2] in ("pread64", "preadv", "preadv2"), before_serving


def test_a_large_log_is_served_at_once_and_its_damage_is_found_after_that(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    log = data_dir / "t-0" / f"{0:020d}.log"
    point = data_dir / "t-0" / "restart-point"
    with BrokerProcess(data_dir) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
            for number in range(400):
                client.produce("t", batch_of([b"%d" % number]))
        wait_until(lambda: point.exists() and "offset: 400\n" in point.read_text(), timeout_s=40)
        broker.kill()
        size_bytes = log.stat().st_size
        with log.open("r+b") as file:
            file.seek(-3, os.SEEK_END)
            file.write(b"xxx")
        broker.start()
        wait_until(lambda: f"checked {size_bytes} bytes of 1 logs in the background" in broker.output, timeout_s=40)
        assert "offsets 399 to 399 are damaged" in broker.output
        with WireClient(broker.address) as client:
            assert client.offset_at("t", LATEST_TIMESTAMP) == 400
            client.produce("t", batch_of([b"400"]))
            with pytest.raises(CorruptBatch):
                client.fetch("t", 399)
            _, payload = client.fetch("t", 400)
            assert [batch.values() for batch in iter_batches(payload)] == [[b"400"]]
        assert broker.terminate() == 0


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
