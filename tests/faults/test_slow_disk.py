"""A disk whose syncs take seconds: producers are held back, memory stays bounded, and everybody else is served.

strace delays each sync of a broker that runs on a real file system. (A file system in user space will not do: Linux
keeps writes to a file waiting while its server handles a sync of it; disks and their file systems do not.)
"""

import re
import select
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from faults.flush_order import can_trace
from waiting import wait_until
from warmlog_protocol.messages import LATEST_TIMESTAMP, AlterReplicaLogDirsRequest, MetadataRequest, ReplicaLogDir
from wire_client import WireClient, batch_of

pytestmark = pytest.mark.skipif(not can_trace(), reason="strace is missing, or may not trace here")

MIB = 1024 * 1024
DELAY_S = 3
MOVE_DELAY_S = 0.5
DEADLINE_S = 40
PRODUCERS, IN_FLIGHT, BATCH_BYTES = 6, 8, MIB // 2
OFFERED_BATCHES = 200
LOST_IN_BUFFERS_BYTES = 16 * MIB
"""What the system takes of a connection that nobody reads: its buffers for sending and receiving."""


@contextmanager
def slow_syncs(pid: int, delay_s: float = DELAY_S, calls: Path = Path("/dev/null")) -> Iterator[None]:
    """Each sync of the process takes `delay_s` longer, in whatever thread; `calls` gets a line of each."""
    syncs = "fsync,fdatasync,syncfs"
    command = ["strace", "-f", "-q", "-o", calls, "-e", f"trace={syncs}"]
    command += ["-e", f"inject={syncs}:delay_enter={int(delay_s * 1_000_000)}", "-p", str(pid)]
    strace = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while not all(_status(task, "TracerPid") for task in Path(f"/proc/{pid}/task").iterdir()):
            assert time.monotonic() < deadline_s
            assert strace.poll() is None, "strace could not attach"
            time.sleep(0.01)
        yield
    finally:
        strace.terminate()
        strace.wait()


def _status(process: Path, field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+)", (process / "status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@contextmanager
def longest_wait(address: str) -> Iterator[list[float]]:
    """Within, another client asks for metadata again and again; afterwards, the longest time that it waited, in s."""
    waits_s: list[float] = []
    must_stop = threading.Event()

    def ask() -> None:
        with WireClient(address) as client:
            while not must_stop.wait(0.01):
                began_s = time.monotonic()
                client.call(MetadataRequest(["t"]))
                waits_s.append(time.monotonic() - began_s)

    longest_s: list[float] = []
    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield longest_s
    finally:
        must_stop.set()
        thread.join()
    longest_s.append(max(waits_s))


def memory_bytes(broker: BrokerProcess) -> int:
    """Memory of its own; what it maps of files does not count."""
    return _status(Path(f"/proc/{broker.pid}"), "RssAnon") * 1024


def is_answered(client: WireClient) -> bool:
    return bool(select.select([client.socket], (), (), 0)[0])


def send_until_held_back(client: WireClient, batch: bytes, partition: int) -> int:
    """Sends batches until none is taken for half a second; returns how many bytes were."""
    client.socket.settimeout(0.5)
    sent_bytes = 0
    try:
        for _ in range(OFFERED_BATCHES):
            client.send_produce("t", batch, partition=partition)
            sent_bytes += len(batch)
    except TimeoutError:
        return sent_bytes
    raise AssertionError(f"{sent_bytes} bytes were taken without an answer")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", max_in_flight_requests=IN_FLIGHT) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t", partitions=PRODUCERS)
            for partition in range(PRODUCERS):
                client.produce("t", batch_of([b"before"]), partition=partition)
        yield broker


def test_what_needs_no_disk_is_answered_while_a_sync_takes_seconds(broker: BrokerProcess) -> None:
    with WireClient(broker.address) as producer, WireClient(broker.address) as other, slow_syncs(broker.pid, 6):
        waiting = producer.send_produce("t", batch_of([b"slow"]))
        other.call(MetadataRequest(["t"]))
        result, payload = other.fetch("t", 0)
        assert result.high_watermark == 1, "what is not on disk yet may be read"
        assert b"before" in payload
        assert other.offset_at("t", LATEST_TIMESTAMP) == 1
        assert other.produce("t", batch_of([b"x"]), partition=1, acks=1).base_offset == 1
        assert other.fetch("t", 0, partition=1)[0].high_watermark == 1
        assert not is_answered(producer)
        assert producer.produced(waiting).base_offset == 1


def test_producers_are_held_back_and_memory_stays_bounded(broker: BrokerProcess) -> None:
    batch = batch_of([b"x" * BATCH_BYTES])
    with ExitStack() as stack:
        producers = [stack.enter_context(WireClient(broker.address)) for _ in range(PRODUCERS)]
        before_bytes = memory_bytes(broker)
        with slow_syncs(broker.pid):
            for partition, producer in enumerate(producers):
                sent_bytes = send_until_held_back(producer, batch, partition)
                # A flush may have been over meanwhile, and its answers have made room for as many again.
                assert sent_bytes <= 2 * IN_FLIGHT * len(batch) + LOST_IN_BUFFERS_BYTES
            assert memory_bytes(broker) - before_bytes < PRODUCERS * 4 * MIB
        with WireClient(broker.address) as other:
            assert other.produce("t", batch_of([b"after"])).base_offset > 1


@pytest.mark.parametrize("is_called_off", [False, True])
def test_others_are_served_while_a_partition_moves_and_while_its_move_is_called_off(
    tmp_path: Path, is_called_off: bool
) -> None:
    paths, calls = [tmp_path / "one", tmp_path / "two"], tmp_path / "calls"
    rate = 100_000 if is_called_off else 1 << 30
    with (
        BrokerProcess(*paths, environment=None, log_dir_move_bytes_per_second=rate) as broker,
        WireClient(broker.address) as client,
    ):
        client.create_topic("t", file_delete_delay_ms="0")
        for _ in range(4):
            client.produce("t", batch_of([b"x" * 100_000]))
        home, target = paths if (paths[0] / "t-0").is_dir() else paths[::-1]
        with longest_wait(broker.address) as longest_s, slow_syncs(broker.pid, MOVE_DELAY_S, calls):
            client.call(AlterReplicaLogDirsRequest([ReplicaLogDir("t", 0, str(target))]))
            if is_called_off:
                client.call(AlterReplicaLogDirsRequest([ReplicaLogDir("t", 0, str(home))]))
            left = target if is_called_off else home
            wait_until(lambda: not list(left.glob("t-0*")), DEADLINE_S)
        assert longest_s[0] < 10 * MOVE_DELAY_S
        threads = {int(line.split()[0]) for line in calls.read_text().splitlines()}
        assert threads, "it syncs"
        assert broker.pid not in threads, "the event loop does not"
