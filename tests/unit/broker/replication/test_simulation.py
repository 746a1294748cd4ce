"""Replicas under seeded faults, and the proof that the simulation finds a rule that is missing."""

import pytest

from unit.broker.coordinator.group.simulation.checks import Violation
from unit.broker.replication.rules import RULES, Patch
from unit.broker.replication.simulation.world import simulate

EVENTS = 2_000
SEEDS_TO_FIND_A_MISSING_RULE = 200

SEEDS_WITH_A_FINDING = (80, 108, 122, 213, 227, 252, 334, 347, 692, 937)
"""Each has found a fault of the rules: a recovery that cut a log below its start, a replica that was to leave and could
not come back, a reassignment that no later leader went on with, a failed write whose news were ignored, an exclusion
that was taken for a later one, a log of deleted batches that was taken for the leader's, a replica that had left and
counted for what it had before when it came back, a log that was removed since an older record did not name its broker;
213 one of the model, whose refilled replicas did not know what was removed until they had started again."""

SEED_WITHIN_A_BATCH = 292
"""Logs begin within a batch there, ten times."""


@pytest.mark.parametrize("seed", [*range(1, 9), SEED_WITHIN_A_BATCH, *SEEDS_WITH_A_FINDING])
def test_no_invariant_breaks(seed: int) -> None:
    simulate(seed, EVENTS)


@pytest.mark.parametrize("take_out", [patch for _, patch in RULES], ids=lambda patch: patch.__name__)
def test_a_missing_rule_is_found(take_out: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    take_out(monkeypatch)
    with pytest.raises((Violation, AssertionError)):
        simulate_seeds()


def simulate_seeds() -> None:
    for seed in range(1, SEEDS_TO_FIND_A_MISSING_RULE + 1):
        simulate(seed, EVENTS)
