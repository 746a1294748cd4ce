"""Committed offsets of a group when the power goes: what was acknowledged is there, and nothing that was never sent."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from faults.power.powered import PoweredDisk, why_not
from group_member import commit, offsets
from warmlog_protocol.errors import ApiError, CoordinatorLoadInProgress
from wire_client import WireClient, batch_of

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no file system in user space here: {why_not()}")

NO_SYNCFS = 1_000_000
GROUPS = ["first", "second", "third"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PoweredDisk]:
    with PoweredDisk(tmp_path / "power") as disk:
        yield disk


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
            disk.cut()
            broker.kill()
            disk.restore(seed)
            broker.start()
            for group in GROUPS:
                found = committed(broker.address, group)
                assert acknowledged[group] <= found <= sent[group]
                acknowledged[group] = sent[group] = found
    assert sum(acknowledged.values()) > len(GROUPS)
