"""A broker that crashes again and again before it serves is not started any more, and says so. With real kills."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from broker_process import BrokerFailed, BrokerProcess
from faults.tracing import InjectedBroker, why_not_traced
from warmlog_broker.server.crash_count import FILE_NAME
from warmlog_protocol.messages import ACKS_LEADER
from wire_client import WireClient, batch_of

LIMIT = 3
LATER_MS = 10_000_000


def produce_one(client: WireClient, topic: str = "t", partition: int = 0) -> int:
    return client.produce(topic, batch_of([b"x"]), partition=partition).base_offset


def test_a_broker_that_serves_may_be_killed_again_and_again(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", crash_loop_limit=LIMIT)
    with broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
        for number in range(2 * LIMIT):
            with WireClient(broker.address) as client:
                assert produce_one(client) == number
            broker.kill()
            broker.start()
        with WireClient(broker.address) as client:
            assert client.fetch("t", 0)[0].high_watermark == 2 * LIMIT


def test_kills_right_after_the_start_do_not_count_without_a_single_request(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", crash_loop_limit=LIMIT)
    for _ in range(LIMIT + 1):
        broker.start()
        broker.kill()


def test_starts_that_are_refused_or_interrupted_do_not_count(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    settings = {"crash_loop_limit": 2, "node_id": 7}
    with BrokerProcess(data_dir, **settings) as broker:
        assert broker.terminate() == 0
    assert not (data_dir / FILE_NAME).exists()
    for _ in range(3):
        with pytest.raises(BrokerFailed, match="node 7"):
            BrokerProcess(data_dir, crash_loop_limit=2, node_id=8).start()
    with BrokerProcess(data_dir, **settings) as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        produce_one(client)


needs_strace = pytest.mark.skipif(bool(why_not_traced()), reason=why_not_traced())


def unclean_directory(data_dir: Path) -> None:
    """Two partitions that the next start has to check."""
    with BrokerProcess(data_dir, flush_ms=LATER_MS) as broker, WireClient(broker.address) as client:
        client.create_topic("t", partitions=2)
        for partition in range(2):
            client.produce("t", batch_of([b"x"]), partition=partition, acks=ACKS_LEADER)
        broker.kill()


@needs_strace
def test_a_broker_that_crashes_at_a_partition_is_refused_after_the_limit_until_the_file_is_removed(
    tmp_path: Path,
) -> None:
    data_dir = tmp_path / "data"
    unclean_directory(data_dir)
    bad = data_dir / "t-1" / f"{0:020d}.log"
    crashing = InjectedBroker(
        data_dir, "fdatasync:signal=KILL:when=1", bad, crash_loop_limit=LIMIT, num_recovery_threads=1
    )
    for _ in range(LIMIT):
        with pytest.raises(BrokerFailed):
            crashing.start()
    for _ in range(2):
        with pytest.raises(BrokerFailed, match=f"the last {LIMIT} starts crashed before the broker served") as refused:
            BrokerProcess(data_dir, crash_loop_limit=LIMIT).start()
        assert refused.value.exit_code == 1
        assert f"remove {data_dir / FILE_NAME}" in refused.value.output
    (data_dir / FILE_NAME).unlink()
    with BrokerProcess(data_dir, crash_loop_limit=LIMIT) as mended, WireClient(mended.address) as client:
        assert client.fetch("t", 0, partition=1)[0].high_watermark == 1
        assert produce_one(client, partition=1) == 1


@needs_strace
def test_starts_that_crash_before_they_serve_are_a_loop_whatever_they_were_doing(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    crashing = InjectedBroker(data_dir, inject="listen:signal=KILL:when=1", crash_loop_limit=LIMIT)
    for _ in range(LIMIT):
        with pytest.raises(BrokerFailed):
            crashing.start()
    with pytest.raises(BrokerFailed, match="crashed before the broker served"):
        BrokerProcess(data_dir, crash_loop_limit=LIMIT).start()
    with BrokerProcess(data_dir, crash_loop_limit=0) as broker:
        broker.terminate()
    with BrokerProcess(data_dir, crash_loop_limit=LIMIT) as again, WireClient(again.address) as client:
        client.create_topic("t")


@needs_strace
def test_a_signal_during_a_long_start_ends_it_at_once_and_is_no_crash(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    unclean_directory(data_dir)
    log = data_dir / "t-1" / f"{0:020d}.log"
    for _ in range(2):
        delayed = "fdatasync:delay_enter=1000000:when=1"
        slow = InjectedBroker(data_dir, delayed, log, crash_loop_limit=9, num_recovery_threads=1)
        process = subprocess.Popen(
            slow.arguments, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            while not (data_dir / FILE_NAME).exists():
                assert process.poll() is None
                time.sleep(0.01)
            broker_pid = int((data_dir / ".lock").read_text())
            subprocess.run(["kill", "-TERM", str(broker_pid)], check=True)
            assert process.stderr is not None
            said = process.stderr.read()
            process.wait(60)
            assert process.returncode == -signal.SIGTERM
            assert b"told to stop" in said
        finally:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        assert not (data_dir / FILE_NAME).exists()
    with BrokerProcess(data_dir) as broker, WireClient(broker.address) as client:
        for partition in range(2):
            assert client.fetch("t", 0, partition=partition)[0].high_watermark == 1
