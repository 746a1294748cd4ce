"""A share of `make cluster-chaos`."""

from pathlib import Path

import pytest

from cluster.chaos.nemesis import possible
from cluster.chaos.run import run
from etcd_process import needs_etcd
from faults.power.powered import why_not

pytestmark = needs_etcd


def test_what_is_acknowledged_survives_a_few_faults(tmp_path: Path) -> None:
    outcome = run(tmp_path, seed=1, faults=3, kinds=["kill", "stop", "pause"], with_groups=False)
    assert outcome.findings == []
    assert outcome.acknowledged > 100
    assert outcome.refused == []


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_what_is_acknowledged_survives_a_loss_of_power_everywhere_and_of_a_disk(tmp_path: Path) -> None:
    outcome = run(tmp_path, seed=3, faults=2, kinds=["power-all", "lost"], with_groups=False)
    assert outcome.findings == []
    assert outcome.acknowledged > 100
    assert len(outcome.faults) == 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_what_is_acknowledged_survives_all_kinds_of_faults(tmp_path: Path, seed: int) -> None:
    outcome = run(tmp_path, seed=seed, faults=12, kinds=possible())
    assert outcome.findings == []
