"""Groups as tools see them."""

import pytest

from unit.broker.coordinator.group.machine import GROUP, Machine
from unit.broker.coordinator.group.topics import Topics
from warmlog_broker.coordinator.group.decisions.description import describe, list_groups
from warmlog_protocol.errors import GroupIdNotFound
from warmlog_protocol.messages.coordinators.groups import ListedGroup


def test_the_states_of_a_group_follow_each_other() -> None:
    machine = Machine(Topics(orders=2))
    states = []

    def look() -> None:
        states.append(describe(machine.groups, GROUP).state)

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
    group = describe(machine.groups, GROUP)
    first = group.members[0]
    assert (group.group, group.group_epoch, group.target_epoch, group.assignor) == (GROUP, 2, 2, "range")
    assert (first.member_id, first.client_id, first.host, first.topics, first.pattern) == (
        "a", "app", "host", ["orders"], "x.*",
    )  # fmt: skip
    assert [(t.topic, t.partitions) for t in first.assigned] == [("orders", [0])]
    assert [(t.topic, t.partitions) for t in first.revoking] == [("orders", [1])]
    assert [(t.topic, t.partitions) for t in group.members[1].target] == [("orders", [1])]
    assert (first.rebalance_timeout_ms, first.session_timeout_ms, first.last_heartbeat_ms) == (9, 3000, 1234)


def test_groups_are_listed_by_name() -> None:
    machine = Machine(Topics(orders=2))
    assert list_groups(machine.groups) == []
    machine.join("a", "orders")
    assert list_groups(machine.groups) == [ListedGroup(GROUP, "assigning", 1)]
    with pytest.raises(GroupIdNotFound):
        describe(machine.groups, "other")
