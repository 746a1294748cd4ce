"""A disk that fails takes its partition offline, and nobody else's."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from broker_thread import BrokerThread
from warmlog import Admin, TopicDescription
from warmlog_broker.server import engine
from warmlog_broker.storage.directory.data_dir import RECOVERY_POINTS_NAME
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets
from warmlog_broker.storage.log import flush_plan as disk_flush
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, ErrorCode, RequestTimedOut, StorageError, UnknownServerError
from wire_client import WireClient, batch_of


@pytest.fixture
def fail_syncs_below(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Lets every fdatasync of a file below a directory fail from now on."""
    real = os.fdatasync
    bad: list[str] = []

    def fdatasync(descriptor: int) -> None:
        name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if any(name.startswith(directory) for directory in bad):
            raise OSError(errno.EIO, "the disk is broken")
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    return lambda directory: bad.append(f"{directory}{os.sep}")


async def describe(address: str, topic: str) -> TopicDescription:
    async with Admin(address) as admin:
        return await admin.describe_topic(topic)


def test_a_flush_that_fails_takes_its_partition_offline_alone(
    tmp_path: Path, fail_syncs_below: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    with BrokerThread(tmp_path) as broker, WireClient(broker.address) as client:
        client.create_topic("t", partitions=3)
        for partition in range(3):
            client.produce("t", batch_of([b"good"]), partition=partition)
        fail_syncs_below(tmp_path / "t-1")
        ids = [client.send_produce("t", batch_of([b"x"]), partition=partition) for partition in (0, 1, 2, 1)]
        assert client.produced(ids[0]).base_offset == 1
        assert client.produced(ids[2]).base_offset == 1
        for correlation_id in (ids[1], ids[3]):
            with pytest.raises(StorageError, match="t-1 is offline"):
                client.produced(correlation_id)
        with pytest.raises(StorageError):
            client.produce("t", batch_of([b"x"]), partition=1)
        with pytest.raises(StorageError):
            client.fetch("t", 0, partition=1)
        assert client.leaders() == [1, -1, 1]
        assert client.produce("t", batch_of([b"x"]), partition=0).base_offset == 2
        described = asyncio.run(describe(broker.address, "t"))
        assert [each.error is not None for each in described.partitions] == [False, True, False]
        assert "a flush failed: [Errno 5] the disk is broken" in str(described.partitions[1].error)
    told = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert ["t-1 IS OFFLINE" in record.getMessage() for record in told] == [True]
    assert "the disk is broken" in told[0].getMessage()
    assert not broker.was_clean


def test_after_a_restart_the_partition_is_served_again_with_all_that_was_acknowledged(
    tmp_path: Path, fail_syncs_below: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with BrokerThread(tmp_path) as broker, WireClient(broker.address) as client:
        client.create_topic("t", partitions=2)
        for partition in range(2):
            client.produce("t", batch_of([b"good"]), partition=partition)
        fail_syncs_below(tmp_path / "t-1")
        with pytest.raises(StorageError):
            client.produce("t", batch_of([b"lost?"]), partition=1)
    monkeypatch.undo()
    with BrokerThread(tmp_path) as broker, WireClient(broker.address) as client:
        assert client.fetch("t", 0, partition=0)[0].high_watermark == 1
        result, payload = client.fetch("t", 0, partition=1)
        assert result.high_watermark >= 1
        assert payload.find(b"good") > 0
        client.produce("t", batch_of([b"again"]), partition=1)
    assert broker.was_clean


def test_a_delayed_flush_that_fails_takes_the_partition_offline(
    tmp_path: Path, fail_syncs_below: Callable[[Path], None]
) -> None:
    with BrokerThread(tmp_path, flush_ms=10) as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        fail_syncs_below(tmp_path / "t-0")
        client.produce("t", batch_of([b"x"]), acks=1)
        with pytest.raises(StorageError):
            client.fetch("t", 0, max_wait_ms=10_000)


def test_a_syncfs_that_fails_takes_all_partitions_of_the_flush_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with BrokerThread(tmp_path, flush_syncfs_files=4) as broker, WireClient(broker.address) as client:
        client.create_topic("t", partitions=8)
        client.create_topic("other")
        with monkeypatch.context() as patch:
            patch.setattr(disk_flush, "sync_file_system", fail)
            batch = batch_of([b"x"])
            request = m.ProduceRequest(-1, 10_000, [m.ProducePartition("t", number, len(batch)) for number in range(8)])
            response, _ = client.receive(client.send(request, batch * 8))
            codes = [result.error_code for result in cast("m.ProduceResponse", response).partitions]
            assert codes == [StorageError.code] * 8
        assert client.produce("other", batch_of([b"x"])).base_offset == 0


def test_when_syncfs_fails_and_a_file_says_so_the_other_partitions_of_the_flush_go_on(
    tmp_path: Path, fail_syncs_below: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with BrokerThread(tmp_path, flush_syncfs_files=4) as broker, WireClient(broker.address) as client:
        client.create_topic("t", partitions=8)
        real = disk_flush.sync_file_system
        monkeypatch.setattr(disk_flush, "sync_file_system", fail)
        fail_syncs_below(tmp_path / "t-3")
        batch = batch_of([b"x"])
        request = m.ProduceRequest(-1, 10_000, [m.ProducePartition("t", number, len(batch)) for number in range(8)])
        for offset in range(2):
            response, _ = client.receive(client.send(request, batch * 8))
            results = cast("m.ProduceResponse", response).partitions
            assert [each.error_code for each in results] == [0, 0, 0, StorageError.code, 0, 0, 0, 0]
            assert {each.base_offset for each in results if not each.error_code} == {offset}
            monkeypatch.setattr(disk_flush, "sync_file_system", real)
        assert client.leaders().index(-1) == 3


def test_a_disk_whose_sync_hangs_holds_up_its_own_partitions_and_not_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fdatasync
    may_go_on = threading.Event()
    one, other = tmp_path / "one", tmp_path / "other"

    def fdatasync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(one):
            assert may_go_on.wait(40)
        real(descriptor)

    with BrokerThread(one, other) as broker, WireClient(broker.address) as client:
        client.create_topic("t", partitions=2)
        slow, quick = (int(next(path.glob("t-?")).name[-1]) for path in (one, other))
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        waiting = client.send_produce("t", batch_of([b"x"]), partition=slow)
        for offset in range(3):
            assert client.produce("t", batch_of([b"x"]), partition=quick).base_offset == offset
        assert waiting not in client._answers
        may_go_on.set()
        assert client.produced(waiting).base_offset == 0
    assert broker.was_clean


def test_a_produce_that_takes_too_long_is_answered_and_may_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fdatasync
    may_go_on = threading.Event()

    def fdatasync(descriptor: int) -> None:
        assert may_go_on.wait(40)
        real(descriptor)

    with BrokerThread(tmp_path) as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        producer = client.producer_id()
        batch = batch_of([b"x"], producer=producer, base_sequence=0)
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        for _ in range(2):
            with pytest.raises(RequestTimedOut):
                client.produce("t", batch, timeout_ms=100)
        may_go_on.set()
        assert client.produce("t", batch).base_offset == 0
        assert client.fetch("t", 0)[0].high_watermark == 1
    assert broker.was_clean


def test_a_metadata_log_that_fails_refuses_new_topics_and_serves_the_old_ones(
    tmp_path: Path, fail_syncs_below: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with BrokerThread(tmp_path) as broker, WireClient(broker.address) as client:
        client.create_topic("old")
        real = os.fdatasync

        def fail(descriptor: int) -> None:
            if Path(f"/proc/self/fd/{descriptor}").readlink().name == "metadata.log":
                raise OSError(errno.EIO, "the disk is broken")
            real(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            with pytest.raises(StorageError):
                client.create_topic("new")
        with pytest.raises(StorageError, match="restart"):
            client.create_topic("newer")
        response = cast("m.DeleteTopicsResponse", client.call(m.DeleteTopicsRequest(["old"])))
        assert response.topics[0].error_code == StorageError.code
        assert client.produce("old", batch_of([b"x"])).base_offset == 0


def test_an_error_of_our_own_is_answered_and_the_broker_lives(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as broker, WireClient(broker.address) as client:
        client.create_topic("t", partitions=2)
        client.produce("t", batch_of([b"x"]))

        def bug(*arguments: object, **options: object) -> None:
            raise ZeroDivisionError

        partition = broker.broker.topics.partition("t", 0)
        partition.append = bug  # type: ignore[method-assign]
        with pytest.raises(UnknownServerError):
            client.produce("t", batch_of([b"x"]))
        broker.broker.topics.get = bug  # type: ignore[assignment, method-assign]
        (topic,) = cast("m.MetadataResponse", client.call(m.MetadataRequest(["t"]))).topics
        assert topic.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        with pytest.raises(ApiError):
            client.fetch("t", 0)
        del broker.broker.topics.get
        assert client.produce("t", batch_of([b"x"]), partition=1).base_offset == 0


def test_when_the_last_sync_of_a_stop_fails_nothing_is_written_down_that_it_was_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(directory: Path) -> None:
        raise OSError(errno.EIO, "the disk is broken", str(directory))

    settings = {"flush_syncfs_files": 2, "log_flush_offset_checkpoint_interval_ms": 3_600_000}
    with BrokerThread(tmp_path, **settings) as broker, WireClient(broker.address) as client:
        client.create_topic("t", partitions=3)
        for partition in range(3):
            client.produce("t", batch_of([b"a"]), partition=partition)
        before = read_offsets(tmp_path / RECOVERY_POINTS_NAME)
        monkeypatch.setattr(engine, "sync_file_system", refuse)
    assert not broker.was_clean
    assert read_offsets(tmp_path / RECOVERY_POINTS_NAME) == before
    assert f"the next start will check all logs in {tmp_path}" in caplog.text
    with BrokerThread(tmp_path) as broker, WireClient(broker.address) as client:
        assert [client.fetch("t", 0, partition=partition)[0].high_watermark for partition in range(3)] == [1, 1, 1]
