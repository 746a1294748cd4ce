"""Many members that join a group at the same time."""

import asyncio
from pathlib import Path

from benchmarks import groups
from broker_process import BrokerProcess


def test_two_hundred_members_that_start_at_once_cause_few_assignments(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        run = asyncio.run(groups.join(broker.address, "joined"))
        broker.terminate()
    assert run.records == groups.JOINING == 200
    assert 1 <= run.figures["targets"] <= 5
