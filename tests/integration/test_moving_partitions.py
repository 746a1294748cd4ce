"""Partitions that move from one data directory to another while they are written, read, and killed."""

import gc
import json
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from broker_process import BrokerProcess
from broker_thread import BrokerThread
from integration.command_line import CommandLine, error_line, succeeded
from waiting import wait_until
from warmlog_broker.data_dirs.deletion import rename_to_deleted
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_protocol import messages as m
from warmlog_protocol.batch import iter_batches
from warmlog_protocol.errors import ApiError, LogDirNotFound, StorageError, error_from_code
from wire_client import ConnectionEnded, WireClient, batch_of

TIMEOUT_S = 40


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    return [tmp_path / "one", tmp_path / "two"]


def move(client: WireClient, path: Path, topic: str = "t", partition: int = 0) -> None:
    request = m.AlterReplicaLogDirsRequest([m.ReplicaLogDir(topic, partition, str(path))])
    (result,) = cast("m.AlterReplicaLogDirsResponse", client.call(request)).partitions
    if result.error_code:
        raise error_from_code(result.error_code, result.error_message)


def places(client: WireClient) -> list[tuple[str, bool]]:
    """The paths under which t-0 is listed, and whether as a copy."""
    response = cast("m.DescribeLogDirsResponse", client.call(m.DescribeLogDirsRequest(["t"])))
    return [
        (each.path, part.is_future) for each in response.directories for part in each.partitions if part.partition == 0
    ]


def home_of(disks: list[Path]) -> Path:
    (home,) = [path for path in disks if (path / "t-0").is_dir()]
    return home


def other_than(home: Path, disks: list[Path]) -> Path:
    return next(path for path in disks if path != home)


def wait_until_at(client: WireClient, target: Path) -> None:
    wait_until(lambda: places(client) == [(str(target), False)])


def move_and_wait(client: WireClient, disks: list[Path]) -> None:
    home = home_of(disks)
    target = other_than(home, disks)
    move(client, target)
    wait_until_at(client, target)
    wait_until(lambda: not (home / "t-0").exists())
    assert home_of(disks) == target


def values_of(client: WireClient, start: int = 0) -> list[bytes]:
    """All values of t-0 from an offset on; their offsets must have no gap."""
    values: list[bytes] = []
    end = client.offset_at("t", m.LATEST_TIMESTAMP)
    while start < end:
        _, data = client.fetch("t", start)
        for batch in iter_batches(data):
            for offset, value in zip(batch.offsets(), batch.values(), strict=True):
                if offset >= start:
                    assert offset == start
                    assert value is not None
                    values.append(bytes(value))
                    start += 1
    return values


class Load:
    """A producer with acks=all and a consumer, until they are told to stop; brokers may come and go."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.acknowledged: dict[int, bytes] = {}
        """Value by offset."""
        self.consumed: dict[int, bytes] = {}
        self.problems: list[str] = []
        self.must_stop = threading.Event()
        self._threads = [threading.Thread(target=self._retry, args=(work,)) for work in (self._produce, self._consume)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End both, which no longer change what is noted then."""
        self.must_stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def _retry(self, work: Callable[[WireClient], None]) -> None:
        while not self.must_stop.is_set():
            try:
                with WireClient(self.address) as client:
                    work(client)
            except (ConnectionEnded, OSError, StorageError):
                time.sleep(0.02)
            except Exception as error:
                self.problems.append(f"{work.__name__}: {error!r}")
                return

    def _produce(self, client: WireClient) -> None:
        number = 0
        while not self.must_stop.is_set():
            number += 1
            value = b"%d-%d-" % (id(client), number) + b"x" * 500
            placed = client.produce("t", batch_of([value]))
            if placed.base_offset in self.acknowledged:
                self.problems.append(f"offset {placed.base_offset} was given twice")
            self.acknowledged[placed.base_offset] = value

    def _consume(self, client: WireClient) -> None:
        position = max(self.consumed, default=-1) + 1
        while not self.must_stop.is_set():
            _, data = client.fetch("t", position, max_wait_ms=100)
            for batch in iter_batches(data):
                for offset, value in zip(batch.offsets(), batch.values(), strict=True):
                    if offset >= position:
                        assert value is not None
                        if offset != position:
                            self.problems.append(f"offset {offset} follows {position - 1}")
                        self.consumed[offset] = bytes(value)
                        position = offset + 1

    def check(self, client: WireClient) -> None:
        """Everything acknowledged is there, in its place, and what was read is what is there."""
        assert not self.problems
        values = values_of(client)
        assert {offset: values[offset] for offset in self.acknowledged} == self.acknowledged
        assert {offset: values[offset] for offset in self.consumed} == self.consumed


@contextmanager
def loaded(broker: BrokerProcess | BrokerThread) -> Iterator[Load]:
    with WireClient(broker.address) as client:
        client.create_topic("t", segment_bytes="50000", index_interval_bytes="1000", file_delete_delay_ms="0")
        for _ in range(20):
            client.produce("t", batch_of([b"x" * 5000] * 8))
    with Load(broker.address) as load:
        yield load


def test_a_partition_moves_to_and_fro_under_load(disks: list[Path]) -> None:
    with BrokerProcess(*disks) as broker, loaded(broker) as load:
        with WireClient(broker.address) as client:
            for _ in range(6):
                before = len(load.acknowledged)
                move_and_wait(client, disks)
                wait_until(lambda before=before: len(load.acknowledged) > before + 20)  # type: ignore[misc]
        load.stop()
        with WireClient(broker.address) as client:
            load.check(client)
            wait_until(lambda: not [path for disk in disks for path in disk.glob("t-0.*")])
        broker.restart()
        with WireClient(broker.address) as client:
            load.check(client)
        assert "rebuil" not in broker.output


def test_whenever_the_broker_is_killed_nothing_that_was_acknowledged_is_lost(disks: list[Path]) -> None:
    randomly = random.Random(11)
    with BrokerProcess(*disks, log_dir_move_bytes_per_second=4 << 20) as broker, loaded(broker) as load:
        for _ in range(8):
            target = other_than(home_of(disks), disks)
            with WireClient(broker.address) as client:
                move(client, target)
                time.sleep(randomly.uniform(0, 0.5))
            broker.kill()
            broker.start()
            with WireClient(broker.address) as client:
                wait_until_at(client, target)  # it goes on by itself
                assert home_of(disks) == target
        load.stop()
        with WireClient(broker.address) as client:
            load.check(client)
        assert broker.terminate() == 0
        assert not [path for disk in disks for path in disk.glob("*-future")]


def test_a_move_that_a_stop_interrupts_is_begun_again_and_can_be_called_off(disks: list[Path]) -> None:
    with BrokerProcess(*disks, log_dir_move_bytes_per_second=65536) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
            for _ in range(10):
                client.produce("t", batch_of([b"x" * 100_000]))
            home = home_of(disks)
            target = other_than(home, disks)
            move(client, target)
            move(client, target)
            wait_until(lambda: (str(target), True) in places(client))
            lines = succeeded(CommandLine(broker.address)("log", "dirs", "--json")).decode()
            futures = [
                each
                for directory in json.loads(lines)["brokers"][0]["logDirs"]
                for each in directory["partitions"]
                if each["isFuture"]
            ]
            assert [(each["partition"], each["offsetLag"]) for each in futures] == [("t-0", 10)]
        assert broker.terminate() == 0
        broker.start()
        with WireClient(broker.address) as client:
            wait_until(lambda: (str(target), True) in places(client))
            done = CommandLine(broker.address)("log", "move", "t-0", home)
            assert f"t-0 stays in {home}: its move to {target} is cancelled" in done.stderr.decode()
            assert places(client) == [(str(home), False)]
            wait_until(lambda: not list(target.glob("t-0*")))
            assert client.produce("t", batch_of([b"y"])).base_offset == 10
        broker.restart()
        with WireClient(broker.address) as client:
            assert places(client) == [(str(home), False)]


def test_what_cannot_be_moved_is_refused_in_words(disks: list[Path], tmp_path: Path) -> None:
    with BrokerProcess(*disks) as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        with pytest.raises(LogDirNotFound, match=f"{disks[0]}, {disks[1]}"):
            move(client, tmp_path / "three")
        with pytest.raises(ApiError, match="no topic 'u'"):
            move(client, disks[0], topic="u")
        command = CommandLine(broker.address)
        assert "is not a data directory of this broker" in error_line(command("log", "move", "t-0", tmp_path))
        assert "TOPIC-PARTITION" in command("log", "move", "t", disks[0]).stderr.decode()
        home = home_of(disks)
        target = other_than(home, disks)
        there = command("log", "move", "t-0", home)
        assert (there.returncode, there.stderr.decode()) == (0, f"warmlog: t-0 is in {home} already\n")
        begun = command("log", "move", "t-0", target)
        assert (begun.returncode, begun.stderr.decode()) == (0, f"warmlog: t-0 is moving to {target}\n")
        wait_until(lambda: places(client) == [(str(target), False)])


def test_a_topic_that_is_deleted_while_it_moves_leaves_nothing(disks: list[Path]) -> None:
    with BrokerProcess(*disks, log_dir_move_bytes_per_second=65536) as broker, WireClient(broker.address) as client:
        client.create_topic("t", file_delete_delay_ms="0")
        for _ in range(5):
            client.produce("t", batch_of([b"x" * 100_000]))
        move(client, other_than(home_of(disks), disks))
        client.call(m.DeleteTopicsRequest(["t"]))
        wait_until(lambda: not [path for disk in disks for path in disk.glob("t-*")])
        client.create_topic("t")
        assert client.produce("t", batch_of([b"y"])).base_offset == 0


def test_epochs_producers_and_the_log_start_come_along(disks: list[Path]) -> None:
    from warmlog_protocol.messages import DeleteRecordsPartition, DeleteRecordsRequest

    with BrokerProcess(*disks) as broker:
        for epoch in range(3):
            with WireClient(broker.address) as client:
                if not epoch:
                    client.create_topic("t")
                    producer = client.producer_id()
                for number in range(5):
                    batch = batch_of([b"x"], producer=producer, base_sequence=5 * epoch + number)
                    assert client.produce("t", batch).base_offset == 5 * epoch + number
            if epoch < 2:
                broker.kill()
                broker.start()
        with WireClient(broker.address) as client:
            client.call(DeleteRecordsRequest([DeleteRecordsPartition("t", 0, 7)]))
            move_and_wait(client, disks)
            target = home_of(disks)
            assert client.offset_at("t", -2) == 7
            again = client.produce("t", batch_of([b"x"], producer=producer, base_sequence=14))
            assert again.base_offset == 14
            assert client.produce("t", batch_of([b"x"], producer=producer, base_sequence=15)).base_offset == 15
            epochs = (target / "t-0" / "leader-epoch-checkpoint").read_text()
            assert epochs.splitlines()[2:] == ["1 7", "2 10"]
        broker.kill()
        broker.start()
        with WireClient(broker.address) as client:
            assert client.offset_at("t", -2) == 7
            assert client.offset_at("t", m.LATEST_TIMESTAMP) == 16


def test_a_move_begins_while_a_failed_copy_is_removed(disks: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from warmlog_broker.storage.log.log_copy import CopyStep
    from warmlog_broker.topics import replica_mover as moves

    is_removing, may_go_on = threading.Event(), threading.Event()

    def broken(*arguments: object, **options: object) -> None:
        raise OSError(5, "the disk is broken")

    def rename_later(path: Path, key: TopicPartition) -> Path:
        is_removing.set()
        assert may_go_on.wait(TIMEOUT_S)
        return rename_to_deleted(path, key)

    monkeypatch.setattr(moves, "rename_to_deleted", rename_later)
    with BrokerThread(*disks) as broker, WireClient(broker.address) as client:
        client.create_topic("t", file_delete_delay_ms="0")
        client.produce("t", batch_of([b"x"]))
        target = other_than(home_of(disks), disks)
        with monkeypatch.context() as patch:
            patch.setattr(CopyStep, "run", broken)
            move(client, target)
            assert is_removing.wait(TIMEOUT_S)
        timer = threading.Timer(0.1, may_go_on.set)
        timer.start()
        move(client, target)
        timer.join()
        wait_until_at(client, target)
        wait_until(lambda: len([path for disk in disks for path in disk.glob("t-0*")]) == 1)
        assert values_of(client) == [b"x"]


def test_the_log_that_a_partition_has_moved_away_from_is_freed(disks: list[Path]) -> None:
    with BrokerThread(*disks) as broker, WireClient(broker.address) as client:
        client.create_topic("t", file_delete_delay_ms="0")
        client.produce("t", batch_of([b"x"]))
        log = broker.broker.topics.partition("t", 0).log
        originals = [weakref.ref(log), weakref.ref(log.local.segments)]
        del log
        move_and_wait(client, disks)
        wait_until(lambda: gc.collect() >= 0 and not any(original() for original in originals))


@pytest.mark.parametrize("step", ["copy.sync", "checkpoints", "commit", "rename", "leave"])
def test_a_failed_disk_loses_nothing_at_any_step(disks: list[Path], step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from warmlog_broker.metadata.store import NodeStore
    from warmlog_broker.replica.flusher import CheckpointWriter
    from warmlog_broker.replica.partition_state import PartitionState
    from warmlog_broker.storage.log.local_log import LocalLog
    from warmlog_broker.storage.log.log_copy import LogCopy

    def broken(*arguments: object, **options: object) -> None:
        raise OSError(5, "the disk is broken")

    async def refused(*arguments: object) -> None:
        raise StorageError("the disk is broken")

    values = [b"%d" % number for number in range(20)]
    with BrokerThread(*disks) as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        for value in values:
            client.produce("t", batch_of([value]))
        home = home_of(disks)
        target = other_than(home, disks)
        with monkeypatch.context() as patch:
            match step:
                case "copy.sync":
                    patch.setattr(LogCopy, "sync", broken)
                case "checkpoints":
                    patch.setattr(CheckpointWriter, "write", broken)
                case "commit":
                    patch.setattr(NodeStore, "commit", refused)
                case "rename":
                    patch.setattr(LocalLog, "rename_directory", broken)
                case _:
                    patch.setattr(LocalLog, "leave", broken)
            move(client, target)
            partition = broker.broker.topics.partition("t", 0)
            moves, directories = broker.broker.services.moves, broker.broker.services.directories
            wait_until(lambda: not any(moves.into(directory) for directory in directories))
        assert (partition.state is PartitionState.OFFLINE) == (step != "leave")
        if step == "leave":
            values.append(b"more")
            client.produce("t", batch_of([b"more"]))
    with BrokerThread(*disks) as broker, WireClient(broker.address) as client:
        wait_until_at(client, target)  # it was begun again, or finished
        wait_until(lambda: not (home / "t-0").exists())
        assert values_of(client) == values
        client.produce("t", batch_of([b"more"]))
        assert home_of(disks) == target
