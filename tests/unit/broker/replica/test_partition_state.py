"""What the states of a partition allow, and which may follow which."""

from itertools import pairwise

import pytest

from warmlog_broker.replica.partition_state import Allowed, PartitionState

STATES = list(PartitionState)
ENDS = [PartitionState.READ_ONLY, PartitionState.OFFLINE, PartitionState.DELETED]


def those_that_allow(action: str) -> set[str]:
    return {state.name for state in STATES if getattr(state.allows, action)}


@pytest.mark.parametrize(
    ("action", "states"),
    [
        ("append", {"ONLINE", "MOVING", "SWITCHING"}),
        ("commit", {"ONLINE", "MOVING", "READ_ONLY"}),
        ("read", {"ONLINE", "MOVING", "SWITCHING", "READ_ONLY"}),
        ("flush", {"ONLINE", "MOVING"}),
        ("trim", {"ONLINE", "MOVING"}),
        ("compact", {"ONLINE"}),
        ("move", {"ONLINE"}),
    ],
)
def test_what_is_allowed(action: str, states: set[str]) -> None:
    assert those_that_allow(action) == states


def test_every_action_has_its_line_above() -> None:
    assert Allowed._fields == ("append", "commit", "read", "flush", "trim", "compact", "move")


def test_what_cannot_be_read_allows_nothing() -> None:
    for state in STATES:
        assert state.allows.read or not any(state.allows)


@pytest.mark.parametrize("state", STATES)
def test_nothing_comes_back_from_an_end_but_by_a_restart(state: PartitionState) -> None:
    followers = {other for other in STATES if state.may_become(other)}
    assert state not in followers
    if state in ENDS:
        assert followers == set(ENDS[ENDS.index(state) + 1 :])
    else:
        assert followers.issuperset(ENDS)


def test_a_move_goes_one_way() -> None:
    way = [PartitionState.ONLINE, PartitionState.MOVING, PartitionState.SWITCHING, PartitionState.ONLINE]
    steps = set(pairwise(way)) | {(PartitionState.MOVING, PartitionState.ONLINE)}
    found = {(one, other) for one in way for other in way if one.may_become(other)}
    assert found == steps
