"""A broker that crashes again and again ends in safe mode, and comes out of it again. With real kills."""

import asyncio
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from broker_process import BrokerFailed, BrokerProcess
from faults.tracing import InjectedBroker, why_not_traced
from warmlog import Admin, Producer
from warmlog_broker.server.crash_journal import FILE_NAME, pack_line
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.errors import SafeMode, StorageError
from warmlog_protocol.messages import (
    ACKS_LEADER,
    AlteredTopic,
    AlterTopicsRequest,
    AlterTopicsResponse,
    CreatePartitionsRequest,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    NewPartitions,
)
from wire_client import WireClient, batch_of

LIMIT = 3
LATER_MS = 10_000_000
SOON_S = 10


def produce_one(client: WireClient, topic: str = "t", partition: int = 0) -> int:
    return client.produce(topic, batch_of([b"x"]), partition=partition).base_offset


def note_crashed_starts(data_dir: Path, count: int) -> None:
    """Leaves what so many starts leave that were killed before they served."""
    line = pack_line({"start": time.time_ns() // 1_000_000})
    (data_dir / FILE_NAME).write_bytes(line * count)


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
    assert "SAFE MODE" not in broker.output


def test_kills_right_after_the_start_do_not_count_without_a_single_request(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", crash_loop_limit=LIMIT)
    for _ in range(LIMIT + 1):
        broker.start()
        broker.kill()
    assert "SAFE MODE" not in broker.output
    assert "the last start ended in a crash" in broker.output


def test_after_crashed_starts_the_broker_can_be_read_and_takes_no_records_until_it_is_stopped(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    broker = BrokerProcess(data_dir, crash_loop_limit=LIMIT)
    with broker, WireClient(broker.address) as client:
        client.create_topic("t")
        client.create_topic("other")
        produce_one(client)
        broker.kill()
        note_crashed_starts(data_dir, LIMIT - 1)
        broker.start()
        assert "SAFE MODE" not in broker.output
        broker.kill()
        note_crashed_starts(data_dir, LIMIT)
        broker.start()
        said = next(line for line in broker.output.splitlines() if "CRITICAL SAFE MODE" in line)
        assert f"the last {LIMIT} starts ended in a crash" in said
        assert said.count("while opening partitions") == LIMIT
        assert str(data_dir / FILE_NAME) in said
        with WireClient(broker.address) as safe:
            with pytest.raises(SafeMode, match="while opening") as refused:
                produce_one(safe)
            assert not refused.value.retriable
            with pytest.raises(SafeMode):
                safe.create_topic("new")
            with pytest.raises(SafeMode):
                safe.call(CreatePartitionsRequest([NewPartitions("t", 2)]))
            assert safe.fetch("t", 0)[0].high_watermark == 1
            altered = safe.call(AlterTopicsRequest([AlteredTopic("t", {"flush.ms": "1s"})]))
            assert isinstance(altered, AlterTopicsResponse)
            assert altered.topics[0].error_code == 0
            response = safe.call(DeleteTopicsRequest(["other"]))
            assert isinstance(response, DeleteTopicsResponse)
            assert response.topics[0].error_code == 0
        broker.kill()  # a kill in safe mode changes nothing
        broker.start()
        with WireClient(broker.address) as safe, pytest.raises(SafeMode):
            produce_one(safe)
        broker.restart()
        with WireClient(broker.address) as again:
            assert produce_one(again) == 1
    assert broker.output.count("CRITICAL SAFE MODE") == 2


async def test_clients_are_told_of_safe_mode_at_once_and_go_on_when_it_is_over(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    broker = BrokerProcess(data_dir, crash_loop_limit=LIMIT)
    with broker:
        async with Producer(broker.address) as producer, Admin(broker.address) as admin:
            await admin.create_topic("t")
            await producer.send("t", b"before")
            broker.kill()
            note_crashed_starts(data_dir, LIMIT)
            broker.start()
            async with asyncio.timeout(SOON_S):
                with pytest.raises(SafeMode, match="while opening partitions"):
                    await producer.send("t", b"refused")
                with pytest.raises(SafeMode):
                    await admin.create_topic("new")
            broker.restart()
            placed = await producer.send("t", b"after")
            assert placed.offset == 1


def test_safe_mode_ends_by_itself_after_having_served_for_the_window(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", crash_loop_limit=1, crash_loop_window_ms=3000)
    with broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
        broker.kill()
        note_crashed_starts(tmp_path / "data", 1)
        broker.start()
        with WireClient(broker.address) as client:
            with pytest.raises(SafeMode):
                produce_one(client)
            while True:
                try:
                    assert produce_one(client) == 0
                    break
                except SafeMode:
                    continue


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
def test_a_partition_at_which_every_start_crashes_is_left_out_and_the_others_are_served(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    unclean_directory(data_dir)
    bad = data_dir / "t-1" / f"{0:020d}.log"
    crashing = InjectedBroker(
        data_dir, "fdatasync:signal=KILL:when=1", bad, crash_loop_limit=LIMIT, num_recovery_threads=1
    )
    for _ in range(LIMIT):
        with pytest.raises(BrokerFailed):
            crashing.start()
    assert "SAFE MODE" not in crashing.output
    # The kill is still set up: only a start that does not touch t-1 gets through.
    with crashing:
        assert "while opening t-1" in crashing.output
        with WireClient(crashing.address) as client:
            assert client.fetch("t", 0, partition=0)[0].high_watermark == 1
            with pytest.raises(StorageError, match="t-1 is not opened in safe mode"):
                client.fetch("t", 0, partition=1)
            with pytest.raises(SafeMode):
                produce_one(client)
        crashing.terminate()
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
    assert "SAFE MODE" not in crashing.output
    with BrokerProcess(data_dir, crash_loop_limit=LIMIT) as safe, WireClient(safe.address) as client:
        assert safe.output.count("while opening partitions") == LIMIT
        with pytest.raises(SafeMode):
            client.create_topic("t")


@needs_strace
def test_a_partition_at_whose_compaction_the_broker_crashes_is_not_compacted_and_can_be_read(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    settings = {"segment_bytes": "1024", "cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
    with BrokerProcess(data_dir, log_cleaner_threads=0) as broker, WireClient(broker.address) as client:
        client.create_topic("t", **settings)
        for number in range(20):
            client.produce("t", encode_batch([b"x" * 200], timestamps_ms=0, keys=[b"%d" % (number % 3)]))
        broker.terminate()
    cleaned = data_dir / "t-0" / f"{0:020d}.log.cleaned"
    crashing = InjectedBroker(data_dir, inject="openat:signal=KILL", path=cleaned, crash_loop_limit=LIMIT)
    for _ in range(LIMIT):
        with suppress(BrokerFailed):
            crashing.start()
            crashing.wait()
    assert "SAFE MODE" not in crashing.output
    with crashing, WireClient(crashing.address) as client:
        assert crashing.output.count("compacting t-0") >= LIMIT
        assert client.fetch("t", 0)[0].high_watermark == 20
        with pytest.raises(SafeMode):
            produce_one(client)


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
            while b'"t-1"' not in notes_in(data_dir):
                assert process.poll() is None
            broker_pid = int((data_dir / ".lock").read_text())
            subprocess.run(["kill", "-TERM", str(broker_pid)], check=True)
            assert process.stderr is not None
            said = process.stderr.read()
            process.wait(30)
            assert process.returncode == -signal.SIGTERM
            assert b"told to stop" in said
        finally:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        assert notes_in(data_dir).count(b"start") == 1  # that of the kill which made the directory unclean
    with BrokerProcess(data_dir) as broker, WireClient(broker.address) as client:
        for partition in range(2):
            assert client.fetch("t", 0, partition=partition)[0].high_watermark == 1


def notes_in(data_dir: Path) -> bytes:
    try:
        return (data_dir / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return b""
