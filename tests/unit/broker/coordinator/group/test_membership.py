"""Heartbeats: joining, hand-over, epochs, static members, leaving, and what is refused."""

from typing import Any

import pytest

from present import present
from unit.broker.coordinator.group.machine import GROUP, Machine, numbers
from unit.broker.coordinator.group.topics import Topics
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.coordinator.group.decisions import membership
from warmlog_broker.coordinator.group.decisions.state import Groups, Limits
from warmlog_protocol import errors
from warmlog_protocol.messages.coordinators.groups import GroupHeartbeatRequest


@pytest.fixture
def machine() -> Machine:
    return Machine(Topics(orders=4))


def test_one_member_gets_every_partition(machine: Machine) -> None:
    assert numbers(machine.join("a", "orders")) == []
    assert machine.assign()
    assert numbers(machine.heartbeat("a", 1, [])) == [0, 1, 2, 3]
    group = present(machine.groups.get(GROUP))
    assert (group.state, group.epoch, group.target_epoch) == ("stable", 1, 1)


def test_a_heartbeat_that_changes_nothing_writes_nothing(machine: Machine) -> None:
    machine.join("a", "orders")
    machine.settle("a")
    before = len(machine.log)
    response = machine.heartbeat("a", 1, machine.member("a").assigned, topics=["orders"])
    assert (response.assignment, response.member_epoch, len(machine.log)) == (None, 1, before)
    assert not machine.assign()


def test_a_partition_is_handed_over_once_its_owner_has_confirmed_that_it_gave_it_up(machine: Machine) -> None:
    machine.join("a", "orders")
    machine.settle("a")
    machine.join("b", "orders")
    machine.assign()
    assert numbers(machine.heartbeat("b", 2, [])) is None
    revoke = machine.heartbeat("a", 1, machine.member("a").assigned)
    assert (revoke.member_epoch, numbers(revoke)) == (2, [0, 1])
    assert numbers(machine.heartbeat("b", 2, [])) is None
    machine.heartbeat("a", 2, revoke.assignment)
    assert numbers(machine.heartbeat("b", 2, [])) == [2, 3]


def test_a_member_that_revokes_takes_nothing_new_before_it_has_done_so(machine: Machine) -> None:
    machine.topics.create("users", 1)
    machine.join("a", "orders")
    machine.settle("a")
    held = dict(machine.member("a").assigned)
    machine.heartbeat("a", 1, held, topics=["users"])
    machine.assign()
    assert numbers(machine.heartbeat("a", 1, held)) == []
    assert numbers(machine.heartbeat("a", 2, held)) == []
    assert machine.member("a").revoking.keys() == held.keys()
    assert numbers(machine.heartbeat("a", 2, [])) == [0]
    assert machine.member("a").revoking == {}


@pytest.mark.parametrize("owned", [[], None])
def test_a_member_is_told_that_what_it_has_not_taken_yet_is_revoked(machine: Machine, owned: list[Any] | None) -> None:
    """Else it would take it now, and lose its place in the group for that."""
    machine.join("a", "orders")
    machine.assign()
    assert numbers(machine.heartbeat("a", 1, [])) == [0, 1, 2, 3]
    machine.topics.delete("orders")
    machine.assign()
    revoke = machine.heartbeat("a", 1, owned)
    assert (revoke.member_epoch, numbers(revoke)) == (2, [])


def test_a_lost_response_is_repeated(machine: Machine) -> None:
    machine.join("a", "orders")
    machine.assign()
    machine.heartbeat("a", 1, [])
    assert numbers(machine.heartbeat("a", 1, [])) == [0, 1, 2, 3]
    machine.join("b", "orders")
    machine.assign()
    held = dict(machine.member("a").assigned)
    first = machine.heartbeat("a", 1, held)
    before = len(machine.log)
    assert machine.heartbeat("a", 1, held) == first
    assert machine.heartbeat("a", 1) == first
    assert len(machine.log) == before


def test_a_partition_given_back_before_it_was_given_up_is_revoked_first(machine: Machine) -> None:
    machine.join("a", "orders")
    machine.settle("a")
    machine.join("b", "orders")
    machine.assign()
    revoke = machine.heartbeat("a", 1, machine.member("a").assigned)
    machine.heartbeat("b", -1)
    machine.assign()
    assert len(machine.member("a").target) == 4
    assert numbers(machine.heartbeat("a", 2)) == [0, 1]
    assert numbers(machine.heartbeat("a", 2, revoke.assignment)) == [0, 1, 2, 3]
    assert sorted(machine.member("a").assigned.values()) == [1, 1, 3, 3]


@pytest.mark.parametrize("epoch", [1, 4, 9])
def test_an_epoch_that_the_member_cannot_have_is_fenced(machine: Machine, epoch: int) -> None:
    machine.join("a", "orders")
    machine.settle("a")
    for other in ("b", "c"):
        machine.join(other, "orders")
        machine.settle("a", "b", other)
    assert machine.member("a").epoch == 3
    with pytest.raises(errors.FencedMemberEpoch, match="join again"):
        machine.heartbeat("a", epoch, [])


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_claim_of_what_the_member_does_not_hold_is_fenced(machine: Machine, epoch: int) -> None:
    machine.join("a", "orders")
    machine.settle("a")
    everything = dict(machine.member("a").assigned)
    machine.join("b", "orders")
    machine.settle("a", "b")
    with pytest.raises(errors.FencedMemberEpoch, match="claims partition 2"):
        machine.heartbeat("a", epoch, everything)


def test_an_unknown_member_is_told_so(machine: Machine) -> None:
    with pytest.raises(errors.UnknownMemberId):
        machine.heartbeat("a", 1)
    machine.join("a", "orders")
    with pytest.raises(errors.UnknownMemberId):
        machine.heartbeat("b", 1)


def test_a_member_that_joins_again_keeps_its_partitions_in_a_new_epoch(machine: Machine) -> None:
    machine.join("a", "orders")
    machine.settle("a")
    again = machine.join("a", "orders")
    assert (again.member_epoch, numbers(again)) == (2, [0, 1, 2, 3])
    assert set(machine.member("a").assigned.values()) == {2}
    machine.settle("a")
    assert machine.member("a").is_settled(3)


def test_a_join_that_is_repeated_before_anything_was_assigned_writes_nothing(machine: Machine) -> None:
    first = machine.join("a", "orders")
    before = len(machine.log)
    assert machine.join("a", "orders") == first
    assert len(machine.log) == before


def test_after_a_load_the_assignment_is_sent_until_the_member_has_said_what_it_owns(machine: Machine) -> None:
    machine.join("a", "orders")
    machine.settle("a")
    loaded = Groups()
    for record in machine.log:
        loaded.replay(record)
    assert loaded == machine.groups
    machine.groups = loaded
    assert numbers(machine.heartbeat("a", 1)) == [0, 1, 2, 3]
    assert machine.heartbeat("a", 1, machine.member("a").assigned).assignment is None
    assert machine.heartbeat("a", 1).assignment is None


def test_a_new_subscription_begins_a_new_epoch(machine: Machine) -> None:
    machine.topics.create("users", 2)
    machine.join("a", "orders")
    machine.settle("a")
    machine.heartbeat("a", 1, topics=["users"], pattern="ord.*")
    group = present(machine.groups.get(GROUP))
    assert (group.state, group.epoch) == ("assigning", 2)
    machine.settle("a")
    assert len(machine.member("a").assigned) == 6


def test_a_pattern_stands_for_topics_that_its_principal_may_describe(machine: Machine) -> None:
    orders, secret = machine.topics.create("orders.eu", 2), machine.topics.create("orders.secret", 4)
    machine.topics.hidden = {("User:bob", "orders.secret")}
    machine.join("a", pattern="orders[.].*", principal="User:alice")
    machine.join("b", pattern="orders[.].*", principal="User:bob")
    machine.assign()
    assert {partition.topic_id for partition in machine.member("b").target} <= {orders.topic_id}
    assert {partition.topic_id for partition in machine.member("a").target} >= {secret.topic_id}
    epoch = machine.member("b").epoch
    machine.heartbeat("b", epoch, [], principal="User:carol")
    assert machine.assign()
    assert secret.topic_id in {partition.topic_id for partition in machine.member("b").target}
    machine.topics.hidden = {("User:carol", "orders.secret")}
    assert machine.assign()
    assert secret.topic_id not in {partition.topic_id for partition in machine.member("b").target}
    assert not machine.assign()


def test_a_pattern_stands_for_topics_that_come_later_and_for_whole_names(machine: Machine) -> None:
    machine.join("a", pattern="orders[.].*")
    machine.settle("a")
    assert machine.member("a").assigned == {}
    machine.topics.create("orders.eu", 1)
    machine.topics.create("old.orders.eu", 1)
    machine.settle("a")
    assert list(machine.member("a").assigned) == machine.topics.partitions("orders.eu")


def test_a_target_a_release_and_a_leave_are_news_for_others_and_a_join_is_not(machine: Machine) -> None:
    machine.join("a", "orders")
    group = present(machine.groups.get(GROUP))

    def is_news() -> bool:
        had, group.has_news = group.has_news, False
        return had

    assert not is_news()
    machine.assign()
    assert is_news()
    machine.settle("a")
    is_news()
    machine.join("b", "orders")
    assert not is_news()
    machine.assign()
    assert is_news()
    taken = machine.heartbeat("a", 1, machine.member("a").assigned)
    assert not is_news()
    machine.heartbeat("a", taken.member_epoch, taken.assignment)
    assert is_news()
    machine.heartbeat("b", 2, [])
    assert not is_news()
    machine.heartbeat("b", -1)
    assert is_news()


class TestStaticMembers:
    def test_a_new_process_takes_the_place_at_once(self, machine: Machine) -> None:
        machine.join("a1", "orders", instance_id="a")
        machine.join("b", "orders")
        machine.settle("a1", "b")
        taken = machine.join("a2", "orders", instance_id="a")
        assert (taken.member_epoch, numbers(taken)) == (2, [1, 3])
        assert machine.compute() is None
        assert machine.groups.member(GROUP, "a1") is None

    def test_the_old_process_is_told_in_heartbeats_commits_leaves_and_late_joins(self, machine: Machine) -> None:
        machine.join("a1", "orders", instance_id="a")
        machine.settle("a1")
        partition = next(iter(machine.member("a1").assigned))
        machine.join("a2", "orders", instance_id="a")
        machine.join("a3", "orders", instance_id="a")
        for epoch in (1, 0, -1, -2):
            with pytest.raises(errors.FencedInstanceId):
                machine.heartbeat("a1", epoch, instance_id="a")
        with pytest.raises(errors.FencedInstanceId):
            machine.commit("a1", 1, (partition, 1), instance_id="a")
        assert machine.member("a3").assigned.keys() == set(machine.topics.partitions("orders"))

    def test_one_that_leaves_for_a_while_keeps_its_partitions_and_gives_up_what_it_was_revoking(
        self, machine: Machine
    ) -> None:
        machine.join("a", "orders", instance_id="a")
        machine.settle("a")
        machine.join("b", "orders")
        machine.assign()
        machine.heartbeat("a", 1, machine.member("a").assigned)
        machine.heartbeat("a", -2, instance_id="a")
        assert numbers(machine.heartbeat("b", 2, [])) == [2, 3]
        assert [partition.number for partition in machine.member("a").assigned] == [0, 1]

    def test_other_subscriptions_of_the_new_process_begin_a_new_epoch(self, machine: Machine) -> None:
        machine.join("a1", "orders", instance_id="a")
        machine.settle("a1")
        machine.join("a2", "users", instance_id="a")
        assert machine.compute() is not None

    def test_a_member_without_an_instance_id_cannot_leave_for_a_while(self, machine: Machine) -> None:
        machine.join("a", "orders")
        with pytest.raises(errors.InvalidRequest, match="leave with -1"):
            machine.heartbeat("a", -2)

    def test_the_instance_id_of_a_member_does_not_change(self, machine: Machine) -> None:
        machine.join("a", "orders", instance_id="a")
        with pytest.raises(errors.InvalidRequest, match="another member id"):
            machine.join("a", "orders", instance_id="b")


class TestLeaving:
    @pytest.mark.parametrize("leaving", [-1, -2])
    def test_a_late_copy_of_a_leave_does_not_remove_a_member_that_joined_again(
        self, machine: Machine, leaving: int
    ) -> None:
        instance = {"instance_id": "i"} if leaving == -2 else {}
        machine.join("c", "orders", **instance)
        left = machine.member("c").epoch
        machine.heartbeat("c", -1, left_epoch=left)
        machine.join("c", "orders", **instance)
        machine.settle("c")
        machine.join("d", "orders")
        machine.assign()
        machine.heartbeat("c", machine.member("c").epoch, machine.member("c").assigned)
        assert machine.member("c").revoking, "what a leave for a while would release"
        before = len(machine.log)
        assert machine.heartbeat("c", leaving, left_epoch=left, **instance).member_epoch == leaving
        assert len(machine.log) == before
        machine.heartbeat("c", -1, left_epoch=machine.member("c").previous_epoch)
        assert machine.groups.member(GROUP, "c") is None, "the response with the last epoch may have been lost"

    def test_a_repeated_leave_changes_nothing(self, machine: Machine) -> None:
        assert machine.heartbeat("a", -1).member_epoch == -1
        machine.join("a", "orders")
        machine.heartbeat("a", -1)
        before = len(machine.log)
        machine.heartbeat("a", -1)
        assert len(machine.log) == before
        assert not machine.decided(membership.expire_member(machine.groups, GROUP, "a", now_ms=5))

    def test_the_group_stays_with_a_higher_epoch(self, machine: Machine) -> None:
        machine.join("a", "orders")
        machine.now_ms = 77
        machine.heartbeat("a", -1)
        group = present(machine.groups.get(GROUP))
        assert (group.state, group.epoch, group.empty_since_ms, group.owners) == ("empty", 2, 77, {})
        assert not machine.assign()


class TestDeadlines:
    def test_a_member_may_be_silent_for_its_session_timeout(self, machine: Machine) -> None:
        machine.join("a", "orders", session_timeout_ms=3000)
        assert machine.member("a").deadline_ms() == 4000
        machine.now_ms = 2500
        machine.heartbeat("a", 1)
        assert machine.member("a").deadline_ms() == 5500

    def test_a_member_may_revoke_for_its_rebalance_timeout_whatever_it_says_meanwhile(self, machine: Machine) -> None:
        machine.join("a", "orders", rebalance_timeout_ms=500)
        machine.settle("a")
        machine.join("b", "orders")
        machine.assign()
        machine.heartbeat("a", 1, machine.member("a").assigned)
        machine.now_ms = 1400
        machine.heartbeat("a", 2)
        assert machine.member("a").deadline_ms() == 1500
        machine.heartbeat("a", 2, machine.member("a").assigned)
        assert machine.member("a").deadline_ms() == 1400 + 45_000

    def test_after_a_load_all_timers_start_again(self, machine: Machine) -> None:
        machine.join("a", "orders", rebalance_timeout_ms=500)
        machine.settle("a")
        machine.join("b", "orders")
        machine.assign()
        machine.heartbeat("a", 1, machine.member("a").assigned)
        machine.groups.start_timers(9000)
        assert machine.member("a").deadline_ms() == 9500
        assert machine.member("b").deadline_ms() == 9000 + 45_000


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"group": ""}, errors.InvalidGroupId),
            ({"group": "g" * 250}, errors.InvalidGroupId),
            ({"group": "ü" * 125}, errors.InvalidGroupId),
            ({"member_id": ""}, errors.InvalidRequest),
            ({"member_id": "m" * 1_000_000}, errors.InvalidRequest),
            ({"instance_id": "ü" * 125}, errors.InvalidRequest),
            ({"client_id": "c" * 250}, errors.InvalidRequest),
            ({"topics": ["t" * 250]}, errors.InvalidRequest),
            ({"topics": [str(number) for number in range(1001)]}, errors.InvalidRequest),
            ({"pattern": "p" * 250}, errors.InvalidRequest),
            ({"assignor": "sticky"}, errors.UnsupportedAssignor),
            ({"session_timeout_ms": 1999}, errors.InvalidSessionTimeout),
            ({"session_timeout_ms": 600_001}, errors.InvalidSessionTimeout),
            ({"rebalance_timeout_ms": 0}, errors.InvalidRequest),
            ({"member_epoch": -3}, errors.InvalidRequest),
        ],
    )
    def test_bad_input_has_a_typed_error_and_changes_nothing(
        self, machine: Machine, fields: dict[str, Any], error: type[errors.ApiError]
    ) -> None:
        request = {"group": GROUP, "member_id": "a", "member_epoch": 0, "topics": ["orders"], **fields}
        with pytest.raises(error):
            membership.heartbeat(
                machine.groups, GroupHeartbeatRequest(**request), host="", now_ms=0, limits=machine.limits
            )
        assert len(machine.groups) == 0

    def test_names_may_have_249_bytes(self, machine: Machine) -> None:
        request = GroupHeartbeatRequest("ü" * 124, "m" * 249, 0, "i" * 249, ["t" * 249], "p" * 249)
        machine.decided(membership.heartbeat(machine.groups, request, host="", now_ms=0, limits=machine.limits))
        assert len(machine.groups) == 1

    def test_a_group_has_a_largest_size_which_a_takeover_does_not_pass(self) -> None:
        machine = Machine(Topics(orders=1), Limits(BrokerConfig(group_max_size=2)))
        machine.join("a", "orders", instance_id="one")
        machine.join("b", "orders")
        with pytest.raises(errors.GroupMaxSizeReached):
            machine.join("c", "orders")
        machine.join("b", "orders")
        machine.join("d", "orders", instance_id="one")

    def test_the_number_of_groups_is_bounded(self) -> None:
        machine = Machine(Topics(orders=1), Limits(BrokerConfig(group_max_groups=1)))
        machine.join("a", "orders")
        request = GroupHeartbeatRequest("other", "a", 0)
        with pytest.raises(errors.TooManyGroups):
            membership.heartbeat(machine.groups, request, host="", now_ms=0, limits=machine.limits)

    def test_the_interval_is_at_most_a_third_of_the_session(self, machine: Machine) -> None:
        assert machine.join("a", "orders").heartbeat_interval_ms == 5000
        assert machine.join("b", "orders", session_timeout_ms=3000).heartbeat_interval_ms == 1000

    def test_a_decision_that_is_not_applied_changes_nothing(self, machine: Machine) -> None:
        machine.join("a", "orders")
        machine.settle("a")
        copy = Groups()
        for record in machine.log:
            copy.replay(record)
        request = GroupHeartbeatRequest(GROUP, "b", 0, topics=["orders"])
        membership.heartbeat(machine.groups, request, host="", now_ms=0, limits=machine.limits)
        assert machine.groups == copy
