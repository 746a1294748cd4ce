"""What the broker answered for is on the disk when the power goes, whatever the disk did with the rest."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from faults.power.powered import PoweredDisk, why_not
from warmlog_protocol.batch import iter_batches
from warmlog_protocol.errors import ApiError
from wire_client import WireClient, batch_of

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no file system in user space here: {why_not()}")

NO_SYNCFS = 1_000_000
SEEDS = range(3)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PoweredDisk]:
    with PoweredDisk(tmp_path / "power") as disk:
        yield disk


@pytest.fixture
def broker(disk: PoweredDisk) -> Iterator[BrokerProcess]:
    with BrokerProcess(disk.path / "new" / "data", flush_syncfs_files=NO_SYNCFS) as broker:
        yield broker


def lose_power(disk: PoweredDisk, broker: BrokerProcess, seed: int) -> None:
    disk.cut()
    broker.kill()
    disk.restore(seed)
    broker.start()


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
