"""What the broker answered for is on the disk when the power goes, whatever the disk did with the rest."""

import time
from collections.abc import Iterator

import pytest

from broker_process import BrokerProcess
from faults.power.powered import PoweredDisk, lose_power, why_not
from group_member import commit, offsets
from warmlog_protocol.batch import iter_batches
from warmlog_protocol.errors import ApiError, CoordinatorLoadInProgress
from wire_client import WireClient, batch_of

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no file system in user space here: {why_not()}")

NO_SYNCFS = 1_000_000
SEEDS = range(3)


@pytest.fixture
def broker(disk: PoweredDisk) -> Iterator[BrokerProcess]:
    with BrokerProcess(disk.path / "new" / "data", flush_syncfs_files=NO_SYNCFS) as broker:
        yield broker


@pytest.mark.parametrize("seed", SEEDS)
def test_topic_and_record_of_a_broker_in_a_new_directory_survive(
    disk: PoweredDisk, broker: BrokerProcess, seed: int
) -> None:
    with WireClient(broker.address) as client:
        topic_id = client.create_topic("t")
        client.produce("t", batch_of([b"acknowledged"]))
    lose_power(disk, broker, seed)
    with WireClient(broker.address) as client:
        fetched, payload = client.fetch("t", 0)
        assert fetched.topic_id == topic_id
        assert [batch.values() for batch in iter_batches(payload)] == [[b"acknowledged"]]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_topic_that_could_not_be_written_down_leaves_no_hole_before_the_next(
    disk: PoweredDisk, broker: BrokerProcess, seed: int
) -> None:
    """The kernel takes the page of a failed sync for clean: read from the cache it seems to be on the disk."""
    with WireClient(broker.address) as client:
        disk.fail_syncs(10)
        with pytest.raises(ApiError):
            client.create_topic("refused")
        disk.fail_syncs(0)
    broker.kill()
    broker.start()
    with WireClient(broker.address) as client:
        client.create_topic("t")
    lose_power(disk, broker, seed)
    with WireClient(broker.address) as client:
        assert client.produce("t", batch_of([b"a"])).base_offset == 0


GROUPS = ["first", "second", "third"]


def committed(address: str, group: str) -> int:
    """Return the offset that the group has committed, once its coordinator is loaded."""
    with WireClient(address) as client:
        while True:
            try:
                return offsets(client, group)["t", 0]
            except CoordinatorLoadInProgress:
                time.sleep(0.01)


@pytest.mark.parametrize("seed", range(3))
def test_acknowledged_commits_survive_a_power_cut_and_no_offset_goes_back(disk: PoweredDisk, seed: int) -> None:
    """The power goes between two operations of the disk, also between the write of a commit and its sync."""
    acknowledged = dict.fromkeys(GROUPS, 0)
    sent = dict(acknowledged)
    with BrokerProcess(disk.path / "data", flush_syncfs_files=NO_SYNCFS, group_coordinator_partitions=2) as broker:
        with WireClient(broker.address) as client:
            topic_id = client.create_topic("t")
            client.produce("t", batch_of([b""] * 1000))
            for group in GROUPS:
                commit(client, group, topic_id, (0, 0))
        for cut in range(4):
            disk.cut_after(17 * cut + 5 * seed + 1)
            with WireClient(broker.address) as client:
                try:
                    while True:
                        for group in GROUPS:
                            sent[group] += 1
                            (result,) = commit(client, group, topic_id, (0, sent[group]))
                            assert result.error_code == 0
                            acknowledged[group] = sent[group]
                except (ApiError, OSError):
                    pass
            lose_power(disk, broker, seed)
            for group in GROUPS:
                found = committed(broker.address, group)
                assert acknowledged[group] <= found <= sent[group]
                acknowledged[group] = sent[group] = found
    assert sum(acknowledged.values()) > len(GROUPS)
