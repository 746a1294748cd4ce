"""What each error of the operating system does to the request, to the partition, and to everybody else.

The errors are made by strace in a running broker: it answers the system call in place of the kernel.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from faults.tracing import tampering, why_not_traced
from waiting import wait_until
from warmlog_protocol.errors import ApiError, DiskFull, OutOfResources, StorageError
from warmlog_protocol.messages import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, ReplicaLogDir
from wire_client import WireClient, batch_of

pytestmark = pytest.mark.skipif(bool(why_not_traced()), reason=why_not_traced())

WRITES, READS = "pwritev,pwritev2", "pread64,preadv,preadv2"
RECORD = batch_of([b"x" * 300])
BATCHES_A_SEGMENT = 2


class Served:
    """A broker for all tests of this file, and a topic of two partitions for each: one to suffer, one to see it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.topic = ""
        self._topics = 0
        self.client = WireClient(broker.address)

    def begin(self) -> None:
        """A new topic."""
        self._topics += 1
        self.topic = f"t{self._topics}"
        self.client.create_topic(self.topic, partitions=2)
        for partition in range(2):
            assert self.produce(partition) == 0

    def produce(self, partition: int = 0, *, timeout_ms: int = 10_000) -> int:
        return self.client.produce(self.topic, RECORD, partition=partition, timeout_ms=timeout_ms).base_offset

    def restart(self) -> None:
        """With the partitions that other tests took offline no stop is a clean one."""
        self.client.close()
        if self.broker.process is not None and self.broker.process.poll() is None:
            self.broker.terminate()
        self.broker.start()
        self.client = WireClient(self.broker.address)

    def refused(self) -> ApiError:
        with pytest.raises(ApiError) as caught:
            self.produce()
        return caught.value

    @property
    def directory(self) -> Path:
        return self.broker.data_dir / f"{self.topic}-0"

    def file(self, base_offset: int, kind: str) -> Path:
        return self.directory / f"{base_offset:020d}.{kind}"

    def assert_goes_on_at(self, offset: int) -> None:
        """The partition takes records again, the next at `offset`, and reads all of them."""
        assert self.produce() == offset
        assert self.client.fetch(self.topic, offset)[0].high_watermark == offset + 1
        assert self.produce(1) >= 1

    def assert_offline_alone(self) -> None:
        with pytest.raises(StorageError, match="offline until a restart"):
            self.produce()
        with pytest.raises(StorageError, match="offline until a restart"):
            self.client.fetch(self.topic, 0)
        assert self.produce(1) >= 1


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = {
        "segment_bytes": 1024,
        "index_interval_bytes": 100,
        "log_flush_offset_checkpoint_interval_ms": 50,
        "index_warm_bytes": 0,
        "retention_ms": -1,  # the records are old
    }
    with BrokerProcess(tmp_path_factory.mktemp("errnos") / "data", **settings) as broker:
        served = Served(broker)
        yield served
        served.client.close()


@pytest.fixture
def served(running: Served) -> Served:
    running.begin()
    return running


SHORTAGES = {"ENOSPC": DiskFull, "EDQUOT": DiskFull, "EFBIG": DiskFull, "ENOMEM": OutOfResources}


@pytest.mark.parametrize("errno", SHORTAGES)
def test_an_append_that_finds_no_room_or_memory_fails_alone(served: Served, errno: str) -> None:
    with tampering(served.broker.pid, f"{WRITES}:error={errno}", served.file(0, "log")):
        for _ in range(3):
            error = served.refused()
            assert type(error) is SHORTAGES[errno]
            assert error.retriable
        assert served.produce(1) == 1
    served.assert_goes_on_at(1)


@pytest.mark.parametrize("errno", ["EIO", "EACCES", "ENODEV", "ESTALE"])
def test_an_append_that_the_disk_refuses_takes_the_partition_offline(served: Served, errno: str) -> None:
    with tampering(served.broker.pid, f"{WRITES}:error={errno}:when=1", served.file(0, "log")):
        assert type(served.refused()) is StorageError
    served.assert_offline_alone()


def test_an_append_that_a_read_only_disk_refuses_fails_and_the_disk_is_tried(served: Served) -> None:
    with tampering(served.broker.pid, f"{WRITES}:error=EROFS", served.file(0, "log")):
        assert type(served.refused()) is StorageError
        assert served.client.fetch(served.topic, 0)[0].high_watermark == 1
    served.assert_goes_on_at(1)  # the trial found that the disk takes writes


@pytest.mark.parametrize("errno", ["EIO", "ENOSPC", "ENOMEM"])
def test_a_sync_that_fails_is_never_taken_for_one_that_can_be_repeated(served: Served, errno: str) -> None:
    with tampering(served.broker.pid, f"fdatasync:error={errno}:when=1", served.file(0, "log")):
        assert type(served.refused()) is StorageError
    served.assert_offline_alone()


@pytest.mark.parametrize("errno", ["EMFILE", "ENFILE", "ENOMEM", "ENOSPC"])
def test_a_roll_that_cannot_open_its_segment_fails_alone(served: Served, errno: str) -> None:
    assert served.produce() == 1
    with tampering(served.broker.pid, f"openat:error={errno}", served.file(2, "log")):
        for _ in range(3):
            assert type(served.refused()) is (DiskFull if errno == "ENOSPC" else OutOfResources)
        assert served.client.fetch(served.topic, 0)[0].high_watermark == 2
    served.assert_goes_on_at(2)


def test_a_roll_that_the_disk_refuses_takes_the_partition_offline(served: Served) -> None:
    assert served.produce() == 1
    with tampering(served.broker.pid, "openat:error=EIO", served.file(2, "log")):
        assert type(served.refused()) is StorageError
    served.assert_offline_alone()


@pytest.mark.parametrize("errno", ["EMFILE", "ENFILE", "ENOMEM"])
def test_a_directory_that_cannot_be_opened_to_be_synced_is_synced_later(served: Served, errno: str) -> None:
    assert served.produce() == 1
    waiting = WireClient(served.broker.address)
    with tampering(served.broker.pid, f"openat:error={errno}", served.directory):
        sent = waiting.send_produce(served.topic, RECORD)
        assert served.produce(1) == 1
        assert served.client.fetch(served.topic, 0)[0].high_watermark == 2
    assert waiting.produced(sent).base_offset == 2
    waiting.close()
    served.assert_goes_on_at(3)


@pytest.mark.parametrize("errno", ["ENOSPC", "EMFILE", "ENOMEM"])
@pytest.mark.parametrize("kind", ["snapshot", "index", "timeindex"])
def test_a_roll_that_cannot_write_a_side_file_fails_alone(served: Served, kind: str, errno: str) -> None:
    assert served.produce() == 1
    calls = "openat" if errno == "EMFILE" else "pwrite64,write"
    offset = 2 if kind == "snapshot" else 0
    with tampering(served.broker.pid, f"{calls}:error={errno}", served.file(offset, kind)):
        for _ in range(3):
            if kind == "snapshot" or errno != "EMFILE":  # indexes are open already
                assert type(served.refused()) is (DiskFull if errno == "ENOSPC" else OutOfResources)
            assert served.client.fetch(served.topic, 0)[0].size_bytes
    assert served.produce() >= 2
    assert served.client.fetch(served.topic, 1)[0].size_bytes
    assert served.produce(1) >= 1


def test_an_index_that_cannot_be_mapped_is_an_error_of_the_request(served: Served) -> None:
    for offset in range(1, 3 * BATCHES_A_SEGMENT):
        assert served.produce() == offset
    served.restart()
    with tampering(served.broker.pid, "mmap:error=ENOMEM", served.file(0, "index")):
        with pytest.raises(OutOfResources):
            served.client.fetch(served.topic, 1)
        assert served.client.fetch(served.topic, 4)[0].size_bytes
    assert served.client.fetch(served.topic, 1)[0].size_bytes
    served.assert_goes_on_at(3 * BATCHES_A_SEGMENT)


def test_a_directory_whose_sync_fails_takes_the_partition_offline(served: Served) -> None:
    assert served.produce() == 1
    with tampering(served.broker.pid, "fsync:error=EIO", served.directory):
        assert type(served.refused()) is StorageError
    served.assert_offline_alone()


@pytest.mark.parametrize("errno", ["EMFILE", "ENOMEM", "EIO"])
def test_a_segment_that_cannot_be_opened_to_be_read_is_an_error_of_the_request(served: Served, errno: str) -> None:
    for offset in range(1, 3 * BATCHES_A_SEGMENT):
        assert served.produce() == offset
    served.restart()
    with tampering(served.broker.pid, f"openat:error={errno}", served.file(0, "log"), served.file(0, "index")):
        for _ in range(3):
            with pytest.raises(StorageError) as caught:
                served.client.fetch(served.topic, 0)
            assert type(caught.value) is (StorageError if errno == "EIO" else OutOfResources)
        assert served.client.fetch(served.topic, 4, max_bytes=1)[0].size_bytes
    assert served.client.fetch(served.topic, 0)[0].size_bytes
    served.assert_goes_on_at(3 * BATCHES_A_SEGMENT)


@pytest.mark.parametrize("errno", ["ENOMEM", "EIO"])
def test_a_read_that_fails_is_an_error_of_the_request(served: Served, errno: str) -> None:
    failing = tampering(served.broker.pid, f"{READS},sendfile:error={errno}", served.file(0, "log"))
    with failing, pytest.raises(StorageError, match="cannot be read"):
        served.client.fetch(served.topic, 0)
    assert served.client.fetch(served.topic, 0)[0].size_bytes
    served.assert_goes_on_at(1)


@pytest.mark.parametrize("call", ["rename", "openat", "fsync"])
@pytest.mark.parametrize("errno", ["EMFILE", "EIO"])
def test_a_checkpoint_that_cannot_be_written_is_written_later(served: Served, call: str, errno: str) -> None:
    name = "recovery-point-offset-checkpoint"
    path, temporary = served.broker.data_dir / name, served.broker.data_dir / f"{name}.tmp"
    before = len(served.broker.output)
    with tampering(served.broker.pid, f"{call}:error={errno}", path, temporary):
        assert served.produce() == 1
        while "recovery points cannot be written" not in served.broker.output[before:]:
            served.produce()
            time.sleep(0.01)
    latest = served.produce()
    wait_until(lambda: f"{served.topic} 0 {latest + 1}\n" in path.read_text())
    served.assert_goes_on_at(latest + 1)


@pytest.mark.parametrize("errno", ["EMFILE", "ENOSPC", "EIO"])
def test_a_topic_that_cannot_be_made_can_be_made_later(served: Served, errno: str) -> None:
    name = f"{served.topic}-new"
    failing = tampering(served.broker.pid, f"mkdir,mkdirat:error={errno}", served.broker.data_dir / f"{name}-0")
    with failing, pytest.raises(StorageError):
        served.client.create_topic(name)
    served.client.create_topic(name)
    assert served.client.produce(name, RECORD).base_offset == 0


def test_a_close_that_fails_does_no_harm(served: Served) -> None:
    with tampering(served.broker.pid, "close:error=EIO", served.file(0, "log"), served.file(0, "index")):
        for offset in range(1, 3 * BATCHES_A_SEGMENT):
            assert served.produce() == offset
        served.broker.terminate()
    served.restart()
    assert served.client.fetch(served.topic, 0)[0].high_watermark == 3 * BATCHES_A_SEGMENT


def test_a_sync_of_the_file_system_that_is_interrupted_is_made_again(tmp_path: Path) -> None:
    settings = {"flush_syncfs_files": 4}
    with BrokerProcess(tmp_path / "data", **settings) as broker, WireClient(broker.address) as client:
        client.create_topic("t", partitions=8)
        with tampering(broker.pid, "syncfs:error=EINTR:when=1..3"):
            ids = [client.send_produce("t", RECORD, partition=partition) for partition in range(8)]
            for correlation_id in ids:
                assert client.produced(correlation_id).base_offset == 0
        assert broker.terminate() == 0


@pytest.mark.parametrize("errno", ["ENOSPC", "ENOMEM", "EIO"])
def test_a_move_that_fails_leaves_the_partition_where_it_is(tmp_path: Path, errno: str) -> None:
    disks = [tmp_path / "one", tmp_path / "two"]
    with BrokerProcess(*disks, retention_ms=-1) as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        client.produce("t", RECORD)
        source = next(disk for disk in disks if (disk / "t-0").exists())
        target = next(disk for disk in disks if disk is not source)
        log = source / "t-0" / f"{0:020d}.log"
        with tampering(broker.pid, f"copy_file_range,sendfile:error={errno}", log):
            move(client, target)
            while "has failed" not in broker.output:
                assert client.fetch("t", 0)[0].high_watermark >= 1
                time.sleep(0.01)
        assert client.produce("t", RECORD).base_offset == 1
        assert (source / "t-0").exists()
        move(client, target)
        while "moved to" not in broker.output:
            client.produce("t", RECORD)
            time.sleep(0.01)
        assert client.fetch("t", 0)[0].size_bytes
        assert broker.terminate() == 0


@pytest.mark.parametrize("errno", ["ENOSPC", "EMFILE"])
@pytest.mark.parametrize("of_metadata", [False, True])
def test_a_move_whose_last_steps_lack_room_for_a_while_is_made(
    tmp_path: Path, errno: str, *, of_metadata: bool
) -> None:
    disks = [tmp_path / "one", tmp_path / "two"]
    settings = {"retention_ms": -1, "log_flush_offset_checkpoint_interval_ms": 600_000}
    with BrokerProcess(*disks, **settings) as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        client.produce("t", RECORD)
        source = next(disk for disk in disks if (disk / "t-0").exists())
        target = next(disk for disk in disks if disk is not source)
        failing, path = "openat", target / "recovery-point-offset-checkpoint.tmp"
        if of_metadata:
            failing, path = "pwrite64", disks[0] / "metadata.log"
        with tampering(broker.pid, f"{failing}:error={errno}:when=1..3", path):
            move(client, target)
            while "moved to" not in broker.output:
                assert "offline" not in broker.output
                assert "has failed" not in broker.output
                assert client.fetch("t", 0)[0].high_watermark >= 1
                time.sleep(0.01)
        assert "; it is tried again" in broker.output
        assert client.produce("t", RECORD).base_offset == 1
        assert broker.terminate() == 0
        broker.start()
        assert (target / "t-0").exists()


def move(client: WireClient, target: Path) -> None:
    response = client.call(AlterReplicaLogDirsRequest([ReplicaLogDir("t", 0, str(target))]))
    assert isinstance(response, AlterReplicaLogDirsResponse)
    assert response.partitions[0].error_message == ""
