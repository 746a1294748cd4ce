"""Stopping a broker while clients stall and the disk is slow: within its bound, and nothing acknowledged is lost."""

import os
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from faults.tracing import InjectedBroker, tampering, why_not_traced
from warmlog_broker.server import broker as server
from warmlog_protocol.errors import ApiError, StorageError
from warmlog_protocol.messages import FetchPartition, FetchRequest, MetadataRequest
from wire_client import ConnectionEnded, WireClient, batch_of

RECORD = batch_of([b"x" * 300], timestamp_ms=time.time_ns() // 1_000_000)
LARGE = batch_of([os.urandom(500_000)])
HANGS_S = 25
NAMED_REST_S = server.CLOSE_TIMEOUT_S + server.TASKS_TIMEOUT_S
"""What is asserted leaves as much again for a busy machine."""
needs_strace = pytest.mark.skipif(bool(why_not_traced()), reason=why_not_traced())


def stall(client: WireClient) -> None:
    """Asks for far more than the sockets hold, and reads none of it."""
    for _ in range(60):
        client.send(FetchRequest(0, 1, 1 << 20, [FetchPartition("t", 0, 0, 1 << 20)]))


def outcome(client: WireClient, sent: int) -> int:
    """The offset of an acknowledged batch; -1 for one that was refused or cut."""
    try:
        return client.produced(sent).base_offset
    except (ApiError, ConnectionEnded, OSError):
        return -1


def test_stalled_clients_of_all_kinds_do_not_hold_up_a_stop(tmp_path: Path) -> None:
    drain_ms = 1500
    with BrokerProcess(tmp_path / "data", shutdown_drain_ms=drain_ms) as broker, ExitStack() as peers:
        clients = [peers.enter_context(WireClient(broker.address)) for _ in range(5)]
        working, polling, half, *stalled = clients
        working.create_topic("t", partitions=2)
        for _ in range(4):
            working.produce("t", LARGE)
        long_poll = polling.send(FetchRequest(60_000, 1, 1000, [FetchPartition("t", 1, 0, 1000)]))
        half.socket.sendall(b"\x00\x10\x00\x00\x00")
        peers.enter_context(socket.create_connection((broker.host, broker.port)))
        for client in stalled:
            stall(client)
        sent = [working.send_produce("t", RECORD) for _ in range(20)]
        time.sleep(0.2)
        begin_s = time.monotonic()
        assert broker.terminate() == 0
        assert time.monotonic() - begin_s < drain_ms / 1000 + 2 * NAMED_REST_S
        assert polling.fetched(long_poll)[0].size_bytes == 0
        offsets = [outcome(working, each) for each in sent]
        assert [offset for offset in offsets if offset >= 0] == list(range(4, 4 + sum(each >= 0 for each in offsets)))
        before = len(broker.output)
        broker.start()
        assert "not stopped cleanly" not in broker.output[before:]
        with WireClient(broker.address) as client:
            assert client.fetch("t", 0)[0].high_watermark > max(offsets)


@needs_strace
@pytest.mark.parametrize("drain_ms", [150, 5000])
def test_a_slow_disk_is_waited_for_and_its_clients_are_not_kept_longer_than_the_drain(
    tmp_path: Path, drain_ms: int
) -> None:
    slow = InjectedBroker(tmp_path / "data", "fdatasync:delay_enter=400000", shutdown_drain_ms=drain_ms)
    with slow:
        with WireClient(slow.address, timeout_s=60) as client, WireClient(slow.address, timeout_s=60) as other:
            client.create_topic("t", partitions=2)
            sent = [(client, client.send_produce("t", RECORD)), (other, other.send_produce("t", RECORD, partition=1))]
            time.sleep(0.15)
            sent += [(client, client.send_produce("t", RECORD)), (other, other.send_produce("t", RECORD, partition=1))]
            for each in (client, other):
                each.call(MetadataRequest([]))  # the broker has read what came before
            assert slow.terminate() == 0
            offsets = [outcome(peer, each) for peer, each in sent]
        if drain_ms > 2000:
            assert offsets == [0, 0, 1, 1]
    with BrokerProcess(tmp_path / "data") as broker, WireClient(broker.address) as client:
        assert "not stopped cleanly" not in broker.output
        for partition in range(2):
            acknowledged = [offset for offset in offsets[partition::2] if offset >= 0]
            assert client.fetch("t", 0, partition=partition)[0].high_watermark > max(acknowledged, default=-1)


@needs_strace
def test_a_disk_that_hangs_holds_up_a_stop_no_longer_than_its_bound(tmp_path: Path) -> None:
    drain_ms, disk_ms, rest_s = 200, 500, 0.4
    limit_s = (drain_ms + disk_ms) / 1000 + 2 * rest_s
    line = f"a disk has not responded, and the stop has taken {limit_s:g} s: exiting without it"
    settings = {"shutdown_drain_ms": drain_ms, "shutdown_disk_ms": disk_ms}
    constants = {server: {"CLOSE_TIMEOUT_S": rest_s, "TASKS_TIMEOUT_S": rest_s}}
    with BrokerProcess(tmp_path / "data", constants=constants, **settings) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
            for offset in range(3):
                assert client.produce("t", RECORD).base_offset == offset
            with tampering(broker.pid, f"fdatasync:delay_enter={HANGS_S * 1_000_000}") as strace:
                client.send_produce("t", RECORD)
                time.sleep(0.2)
                begin_s = time.monotonic()
                os.kill(broker.pid, signal.SIGTERM)
                while line not in broker.output:
                    assert time.monotonic() - begin_s < limit_s + NAMED_REST_S < HANGS_S, broker.output
                    time.sleep(0.05)
                assert time.monotonic() - begin_s > limit_s
                strace.kill()  # until then it holds the thread that hangs, and with it the process
                assert broker.wait() == 1
        broker.start()
        with WireClient(broker.address) as client:
            assert client.fetch("t", 0)[0].high_watermark >= 3
        assert broker.terminate() == 0


def test_a_second_signal_ends_a_stop_that_waits(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", shutdown_drain_ms=600_000) as broker:
        with WireClient(broker.address) as client, WireClient(broker.address) as stalled:
            client.create_topic("t")
            for _ in range(4):
                client.produce("t", LARGE)
            stall(stalled)
            time.sleep(0.2)
            os.kill(broker.pid, signal.SIGTERM)
            client.wait_for_end()
            assert broker.process is not None
            assert broker.process.poll() is None
            os.kill(broker.pid, signal.SIGTERM)
            assert broker.wait() == -signal.SIGTERM
        broker.start()
        with WireClient(broker.address) as client:
            assert client.fetch("t", 0)[0].high_watermark == 4


@needs_strace
def test_with_an_offline_partition_the_others_are_stopped_cleanly_and_the_exit_code_is_1(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t", partitions=2)
            for partition in range(2):
                client.produce("t", RECORD, partition=partition)
            failing = tampering(broker.pid, "fdatasync:error=EIO", data_dir / "t-0" / f"{0:020d}.log")
            with failing, pytest.raises(StorageError):
                client.produce("t", RECORD)
        assert broker.terminate() == 1
        marker = (data_dir / ".warmlog_cleanshutdown").read_text()
        assert '"t-1"' in marker
        assert '"t-0"' not in marker
        broker.start()
        with WireClient(broker.address) as client:
            for partition in range(2):
                assert client.produce("t", RECORD, partition=partition).base_offset >= 1
        assert broker.terminate() == 0
