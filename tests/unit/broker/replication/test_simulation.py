"""Replicas under seeded faults, and the proof that the simulation finds a rule that is missing."""

import pytest

from unit.broker.coordinator.group.simulation.checks import Violation
from unit.broker.replication.rules import RULES, Patch
from unit.broker.replication.simulation.world import simulate

EVENTS = 2_000
SEEDS_TO_FIND_A_MISSING_RULE = 200

SEEDS_WITH_A_FINDING = (144, 155, 421, 1145, 2036, 2059, 2402, 5013)
"""Each has found a fault of the rules: a start that hides its loss, an empty log that diverges, a batch that follows a
hole, a replica that is emptied by an old view, an exclusion taken for another, a cut that heals damage, a candidate
that waits for ever, a disk that hangs and goes unnoticed."""

FOUND: dict[str, int] = {}
"""The first seed that finds what is missing: the search begins there."""


@pytest.mark.parametrize("seed", [*range(1, 9), *SEEDS_WITH_A_FINDING])
def test_no_invariant_breaks(seed: int) -> None:
    simulate(seed, EVENTS)


@pytest.mark.parametrize("take_out", [patch for _, patch in RULES], ids=lambda patch: patch.__name__)
def test_a_missing_rule_is_found(take_out: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    take_out(monkeypatch)
    with pytest.raises((Violation, AssertionError)):
        simulate_seeds(FOUND.get(take_out.__name__, 1))


def simulate_seeds(first: int) -> None:
    for seed in (*range(first, SEEDS_TO_FIND_A_MISSING_RULE + 1), *range(1, first)):
        simulate(seed, EVENTS)
