"""Several data directories: what a start makes of those that are away, exchanged, copied or anothers'."""

import fcntl
import shutil
from collections import Counter
from pathlib import Path

import pytest

from broker_process import BrokerFailed, BrokerProcess
from warmlog_protocol.errors import StorageError
from warmlog_protocol.messages import LATEST_TIMESTAMP
from wire_client import WireClient, batch_of

PARTITIONS = 6


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    return [tmp_path / name for name in ("one", "two", "three")]


def fill(broker: BrokerProcess) -> None:
    """A topic with a record in each partition."""
    with WireClient(broker.address) as client:
        client.create_topic("t", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            client.produce("t", batch_of([b"%d" % partition]), partition=partition)


def partitions_in(path: Path) -> list[int]:
    return sorted(int(each.name.partition("-")[2]) for each in path.glob("t-[0-9]"))


def failure_of(*disks: Path) -> str:
    with pytest.raises(BrokerFailed) as caught:
        BrokerProcess(*disks).start()
    assert caught.value.exit_code == 1
    (line,) = [line for line in caught.value.output.splitlines() if " CRITICAL warmlog: " in line]
    return line


def check_all_served(broker: BrokerProcess) -> None:
    with WireClient(broker.address) as client:
        assert client.leaders() == [1] * PARTITIONS
        for partition in range(PARTITIONS):
            assert client.offset_at("t", LATEST_TIMESTAMP, partition=partition) >= 1
            assert batch_of([b"%d" % partition])[61:] in client.fetch("t", 0, partition=partition)[1]


def test_partitions_are_spread_and_each_directory_has_all_of_its_own(disks: list[Path]) -> None:
    with BrokerProcess(*disks) as broker:
        fill(broker)
        assert Counter(len(partitions_in(path)) for path in disks) == {2: 3}
        line = next(line for line in broker.output.splitlines() if "version" in line)
        assert ", ".join(map(str, disks)) in line
        broker.restart()
        check_all_served(broker)
        assert broker.terminate() == 0
    for path in disks:
        own = {each.name for each in path.iterdir() if each.is_file()}
        assert own >= {".lock", "warmlog.properties", ".warmlog_cleanshutdown", "recovery-point-offset-checkpoint"}
    assert [(path / "metadata.log").exists() for path in disks] == [True, False, False]


def test_a_directory_that_is_away_at_a_start_takes_and_brings_its_partitions(disks: list[Path]) -> None:
    away = disks[1]
    with BrokerProcess(*disks) as broker:
        fill(broker)
        assert broker.terminate() == 0
        lost = partitions_in(away)
        away.rename(away.with_name("elsewhere"))
        away.mkdir()  # the place where the disk was mounted
        broker.start()
        assert f"DATA DIRECTORY {away} IS OFFLINE" in broker.output
        assert "is its disk mounted?" in broker.output
        with WireClient(broker.address) as client:
            assert client.leaders() == [-1 if partition in lost else 1 for partition in range(PARTITIONS)]
            with pytest.raises(StorageError, match="is its disk mounted"):
                client.produce("t", batch_of([b"x"]), partition=lost[0])
            for partition in set(range(PARTITIONS)) - set(lost):
                client.produce("t", batch_of([b"more"]), partition=partition)
            client.create_topic("u", partitions=2)
            client.produce("u", batch_of([b"x"]))
        assert not list(away.iterdir())
        assert broker.terminate() == 1
        away.rmdir()
        away.with_name("elsewhere").rename(away)
        broker.start()
        check_all_served(broker)
        with WireClient(broker.address) as client:
            assert client.fetch("u", 0)[0].high_watermark == 1
        assert broker.terminate() == 0


def test_a_topic_that_was_deleted_while_a_directory_was_away_is_deleted_there_too(disks: list[Path]) -> None:
    from warmlog_protocol.messages import DeleteTopicsRequest

    away = disks[2]
    with BrokerProcess(*disks) as broker:
        fill(broker)
        broker.kill()
        away.rename(away.with_name("elsewhere"))
        broker.start()
        with WireClient(broker.address) as client:
            client.call(DeleteTopicsRequest(["t"]))
        broker.terminate()
        away.with_name("elsewhere").rename(away)
        assert partitions_in(away)
        broker.start()
        assert not partitions_in(away)
        with WireClient(broker.address) as client:
            client.create_topic("t", partitions=PARTITIONS)


def test_disks_may_be_mounted_at_each_others_places_except_for_the_first(disks: list[Path]) -> None:
    with BrokerProcess(*disks) as broker:
        fill(broker)
        broker.terminate()
        disks[1].rename(disks[1].with_name("x"))
        disks[2].rename(disks[1])
        disks[1].with_name("x").rename(disks[2])
        broker.start()
        check_all_served(broker)
        broker.terminate()
    message = failure_of(disks[1], disks[0], disks[2])
    assert f"there is one in {disks[0]}" in message
    with BrokerProcess(*disks) as broker:
        check_all_served(broker)


def test_a_directory_of_another_cluster_is_refused_and_nothing_is_changed(disks: list[Path], tmp_path: Path) -> None:
    with BrokerProcess(*disks) as broker:
        fill(broker)
        broker.terminate()
    others = [tmp_path / "other-one", tmp_path / "other-two"]
    with BrokerProcess(*others) as broker:
        broker.terminate()
    before = {path: path.stat().st_mtime_ns for path in (*others, *disks)}
    message = failure_of(*disks, others[1])
    assert f"{others[1]} belongs to the cluster" in message
    assert "metadata.log of its own" in failure_of(*disks, _copy(disks[0], tmp_path / "copy-of-one", "cluster.id"))
    assert "have the same id" in failure_of(*disks, _copy(disks[1], tmp_path / "copy-of-two", ""))
    missing = failure_of(tmp_path / "new", disks[1])
    assert "is its disk mounted" in missing
    assert not (tmp_path / "new" / "metadata.log").exists()
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert all((path / ".warmlog_cleanshutdown").exists() for path in disks)


def _copy(path: Path, target: Path, without: str) -> Path:
    """A copy, whose format file lacks the lines that begin with `without`."""
    shutil.copytree(path, target)
    properties = target / "warmlog.properties"
    lines = [line for line in properties.read_text().splitlines() if not (without and line.startswith(without))]
    properties.write_text("\n".join(lines) + "\n")
    return target


def test_a_partition_that_is_there_twice_is_offline_until_somebody_has_decided(disks: list[Path]) -> None:
    with BrokerProcess(*disks) as broker:
        fill(broker)
        broker.kill()
        home = next(path for path in disks if 0 in partitions_in(path))
        other = next(path for path in disks if 0 not in partitions_in(path))
        shutil.copytree(home / "t-0", other / "t-0")
        broker.start()
        with WireClient(broker.address) as client:
            assert client.leaders() == [-1] + [1] * (PARTITIONS - 1)
            with pytest.raises(StorageError, match="more than once") as caught:
                client.fetch("t", 0)
            assert str(home / "t-0") in str(caught.value)
            assert str(other / "t-0") in str(caught.value)
        broker.kill()
        shutil.rmtree(home / "t-0")  # moved by hand, so to speak
        broker.start()
        check_all_served(broker)
        broker.restart()
        check_all_served(broker)


def test_a_directory_that_is_named_no_more_is_missed_as_long_as_partitions_lie_there(disks: list[Path]) -> None:
    with BrokerProcess(*disks) as broker:
        fill(broker)
        broker.terminate()
    lost = partitions_in(disks[2])
    with BrokerProcess(*disks[:2]) as broker, WireClient(broker.address) as client:
        assert client.leaders() == [-1 if partition in lost else 1 for partition in range(PARTITIONS)]
        with pytest.raises(StorageError, match=f"last seen at {disks[2]}, is not in data.dirs"):
            client.fetch("t", 0, partition=lost[0])


def test_a_directory_that_was_used_alone_before_gets_company(disks: list[Path]) -> None:
    with BrokerProcess(disks[0]) as broker:
        fill(broker)
        broker.terminate()
        properties = disks[0] / "warmlog.properties"
        properties.write_text("# Written by warmlog.\nformat.version=1\n")  # as the versions before this one wrote it
    with BrokerProcess(*disks) as broker:
        check_all_served(broker)
        assert "directory.id=" in properties.read_text()
        with WireClient(broker.address) as client:
            client.create_topic("u", partitions=4)
        assert [len(list(path.glob("u-*"))) for path in disks] == [0, 2, 2]
        broker.restart()
        check_all_served(broker)


def test_only_the_directory_that_was_not_stopped_cleanly_is_checked(disks: list[Path]) -> None:
    with BrokerProcess(*disks) as broker:
        fill(broker)
        broker.terminate()
        (disks[1] / ".warmlog_cleanshutdown").unlink()
        broker.start()
        unclean = [line for line in broker.output.splitlines() if "not stopped cleanly" in line]
        assert len(unclean) == 1
        assert unclean[0].endswith(str(disks[1]))
        check_all_served(broker)


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_earlier_metadata_log_costs_no_record_of_a_later_leader_epoch(disks: list[Path], is_clean: bool) -> None:
    """As one from a backup: after it the broker crashed twice, so there are two leader epochs that it does not know."""
    path = disks[0] / "metadata.log"
    with BrokerProcess(disks[0]) as broker:
        fill(broker)
        earlier = path.read_bytes()
        for number in range(2):
            broker.kill()
            broker.start()
            with WireClient(broker.address) as client:
                assert client.produce("t", batch_of([b"later %d" % number])).base_offset == number + 1
        if is_clean:
            assert broker.terminate() == 0
        else:
            broker.kill()
        path.write_bytes(earlier)
        for end in range(3, 5):
            broker.start()
            with WireClient(broker.address) as client:
                assert client.offset_at("t", LATEST_TIMESTAMP) == end
                assert all(batch_of([b"later %d" % number])[61:] in client.fetch("t", 0)[1] for number in range(2))
                client.produce("t", batch_of([b"last"]))
            assert "leader epochs were collected" not in broker.output
            broker.kill()


def test_a_directory_that_another_broker_holds_is_refused(disks: list[Path]) -> None:
    with BrokerProcess(*disks) as broker:
        broker.terminate()
    with (disks[2] / ".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert str(disks[2] / ".lock") in failure_of(*disks)
    assert all((path / ".warmlog_cleanshutdown").exists() for path in disks)
