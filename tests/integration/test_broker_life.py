"""Starting and stopping a broker: what it refuses, what it says, what it leaves, and what it never touches."""

import os
import socket
import threading
from pathlib import Path

import pytest

from broker_process import BrokerFailed, BrokerProcess
from forked import run_forked
from waiting import wait_until
from warmlog_protocol.errors import ApiError
from warmlog_protocol.messages import FetchPartition, FetchRequest
from wire_client import ConnectionEnded, WireClient, batch_of


def failure_of(broker: BrokerProcess) -> str:
    """What a broker that cannot start says; it must be one line, and exit code 1."""
    with pytest.raises(BrokerFailed) as caught:
        broker.start()
    assert caught.value.exit_code == 1, caught.value.output
    lines = [line for line in caught.value.output.splitlines() if line]
    assert len(lines) == 1, caught.value.output
    return lines[0]


def test_a_second_broker_on_the_directory_is_refused_naming_the_lock(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as first:
        message = failure_of(BrokerProcess(tmp_path / "data"))
        assert str(tmp_path / "data" / ".lock") in message
        assert str(first.pid) in message
        same_port = BrokerProcess(tmp_path / "data")
        same_port.port = first.port
        assert ".lock" in failure_of(same_port)
        with WireClient(first.address) as client:
            client.create_topic("t")


def test_a_port_that_is_taken_is_named_and_costs_no_clean_stop(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
            client.produce("t", batch_of([b"a"]))
        assert broker.terminate() == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        blocked = BrokerProcess(tmp_path / "data")
        blocked.port = taken.getsockname()[1]
        assert f"127.0.0.1:{blocked.port}" in failure_of(blocked)
    with BrokerProcess(tmp_path / "data") as again, WireClient(again.address) as client:
        assert client.fetch("t", 0)[0].leader_epoch == 0


def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert str(tmp_path / "file") in failure_of(BrokerProcess(tmp_path / "file" / "data"))
    assert str(tmp_path / "file") in failure_of(BrokerProcess(tmp_path / "file"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_data_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir(mode=0o500)
    assert str(directory) in failure_of(BrokerProcess(directory))


def test_a_damaged_metadata_log_is_refused_with_its_position(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with WireClient(broker.address) as client:
            client.create_topic("a")
            client.create_topic("b")
        broker.terminate()
    path = tmp_path / "data" / "metadata.log"
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)
    assert "position 8" in failure_of(BrokerProcess(tmp_path / "data"))


def test_a_metadata_log_that_was_lost_is_not_begun_anew(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with WireClient(broker.address) as client:
            client.create_topic("a")
        broker.terminate()
    (tmp_path / "data" / "metadata.log").unlink()
    assert "metadata.log is missing" in failure_of(BrokerProcess(tmp_path / "data"))


def test_another_node_id_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", node_id=7):
        pass
    assert "node 7" in failure_of(BrokerProcess(tmp_path / "data", node_id=8))


@pytest.mark.parametrize("arguments", [["--set", "no.such=1"], ["--set", "novalue"], ["--set", "flush.threads=x"], []])
def test_misuse_ends_with_exit_code_2(arguments: list[str]) -> None:
    done = run_forked("warmlog_broker", arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(b"warmlog: ")
    assert len(done.stderr.splitlines()) == 1


def test_after_a_clean_stop_nothing_is_checked(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", segment_bytes=4096, index_interval_bytes=256) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t", partitions=2)
            for number in range(100):
                client.produce("t", batch_of([b"x" * 200]), partition=number % 2)
        assert broker.terminate() == 0
        logs = sorted((tmp_path / "data").glob("t-*/*.log"))
        assert len(logs) > 4
        for log in logs:
            os.utime(log, ns=(0, 0))
        broker.start()
        assert [log.stat().st_atime_ns for log in logs] == [0] * len(logs)
        with WireClient(broker.address) as client:
            assert client.fetch("t", 0)[0].high_watermark == 50
            assert client.produce("t", batch_of([b"y"])).base_offset == 50


def test_every_stop_leaves_a_directory_that_the_next_start_takes(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        for number in range(4):
            with WireClient(broker.address) as client:
                client.create_topic(f"t{number}", partitions=3)
                client.produce(f"t{number}", batch_of([b"a"]), partition=number % 3)
            if number % 2:
                broker.restart()
            else:
                broker.kill()
                broker.start()
        with WireClient(broker.address) as client:
            for number in range(4):
                assert client.fetch(f"t{number}", 0, partition=number % 3)[0].high_watermark == 1


def test_sigterm_under_load_answers_what_is_under_way_and_ends_with_0(tmp_path: Path) -> None:
    acknowledged = [0]

    def produce(address: str) -> None:
        with WireClient(address) as client:
            ids = []
            try:
                while True:
                    ids.append(client.send_produce("t", batch_of([b"x" * 1000] * 10)))
                    if len(ids) >= 8:
                        client.produced(ids.pop(0))
                        acknowledged[0] += 1
            except (ConnectionEnded, OSError):
                return

    with BrokerProcess(tmp_path / "data", shutdown_drain_ms=300_000) as broker:
        with WireClient(broker.address) as client, WireClient(broker.address) as waiting:
            client.create_topic("t", partitions=2)
            long_poll = waiting.send(FetchRequest(300_000, 1, 1000, [FetchPartition("t", 1, 0, 1000)]))
            producer = threading.Thread(target=produce, args=(broker.address,))
            producer.start()
            wait_until(lambda: acknowledged[0] > 0)
            assert broker.terminate() == 0
            assert waiting.fetched(long_poll)[0].size_bytes == 0
            producer.join(40)
        assert "stopped" in broker.output
        broker.start()
        with WireClient(broker.address) as client:
            result, _ = client.fetch("t", 0)
            assert result.high_watermark >= acknowledged[0] * 10
            assert result.leader_epoch == 0


def test_the_directory_of_nobody_is_left_alone(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        stranger = tmp_path / "data" / "stranger-0"
        stranger.mkdir()
        (stranger / "00000000000000000000.log").write_bytes(b"precious")
        broker.restart()
        assert "stranger-0" in broker.output
        assert (stranger / "00000000000000000000.log").read_bytes() == b"precious"
        with WireClient(broker.address) as client, pytest.raises(ApiError, match="stranger-0"):
            client.create_topic("stranger")


STRANGE = [
    "notes.txt",
    "lost+found/inode",
    "backup-of-t/00000000000000000000.log",
    "t-0.bak/00000000000000000000.log",
    "stranger-7/00000000000000000000.log",
    "stranger-7/leader-epoch-checkpoint",
    "t-0/notes.txt",
    "t-0/00000000000000000000.log.bak",
    "t-0/old/00000000000000000000.log",
    "t-0/.hidden",
]


def test_foreign_files_and_directories_survive_starts_stops_and_kills(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
            client.produce("t", batch_of([b"x"]))
        for name in STRANGE:
            path = data_dir / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"precious {name}")
        broker.restart()
        broker.kill()
        broker.start()
        with WireClient(broker.address) as client:
            assert client.produce("t", batch_of([b"x"])).base_offset == 1
        assert broker.terminate() == 0
    for name in STRANGE:
        assert (data_dir / name).read_text() == f"precious {name}"
