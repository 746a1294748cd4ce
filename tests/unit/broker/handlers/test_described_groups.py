"""Groups as tools see them."""

import pytest

from unit.broker.coordinator.group.machine import GROUP, Machine
from unit.broker.coordinator.group.topics import Topics
from warmlog_broker.coordinator.group.decisions.offsets import existing_group
from warmlog_broker.handlers.groups import described
from warmlog_protocol.errors import GroupIdNotFound, InvalidGroupId


def test_the_states_of_a_group_follow_each_other() -> None:
    machine = Machine(Topics(orders=2))
    states = []

    def look() -> None:
        states.append(described(existing_group(machine.groups, GROUP)).state)

    machine.join("a", "orders")
    look()
    machine.assign()
    look()
    machine.heartbeat("a", 1, [])
    look()
    machine.heartbeat("a", -1)
    look()
    assert states == ["assigning", "reconciling", "stable", "empty"]


def test_a_member_is_described_with_what_it_has_gives_up_and_will_have() -> None:
    machine = Machine(Topics(orders=2))
    machine.join("a", "orders", client_id="app", pattern="x.*", rebalance_timeout_ms=9, session_timeout_ms=3000)
    machine.settle("a")
    machine.join("b", "orders", assignor="range")
    machine.assign()
    machine.now_ms = 1234
    machine.heartbeat("a", 1, machine.member("a").assigned)
    group = described(existing_group(machine.groups, GROUP))
    first = group.members[0]
    assert (group.group, group.group_epoch, group.target_epoch, group.assignor) == (GROUP, 2, 2, "range")
    assert (first.member_id, first.client_id, first.host, first.topics, first.pattern) == (
        "a", "app", "host", ["orders"], "x.*",
    )  # fmt: skip
    assert [(t.topic, t.partitions) for t in first.assigned] == [("orders", [0])]
    assert [(t.topic, t.partitions) for t in first.revoking] == [("orders", [1])]
    assert [(t.topic, t.partitions) for t in group.members[1].target] == [("orders", [1])]
    assert (first.rebalance_timeout_ms, first.session_timeout_ms, first.last_heartbeat_ms) == (9, 3000, 1234)


def test_a_group_that_does_not_exist_cannot_be_described() -> None:
    machine = Machine(Topics(orders=2))
    with pytest.raises(GroupIdNotFound):
        existing_group(machine.groups, "other")
    with pytest.raises(InvalidGroupId):
        existing_group(machine.groups, "")
