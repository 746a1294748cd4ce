"""What clients may store in groups and transactional ids: bytes in all, and for each principal."""

from collections.abc import Callable
from typing import Any

import pytest

from present import present
from unit.broker.coordinator.group.machine import GROUP, Machine
from unit.broker.coordinator.group.topics import Topics, run_steps
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.coordinator.framework.decision import Decision, PartitionId
from warmlog_broker.coordinator.group.decisions import target
from warmlog_broker.coordinator.group.decisions.membership import heartbeat
from warmlog_broker.coordinator.group.decisions.offsets import commit, delete_offsets
from warmlog_broker.coordinator.group.decisions.state import GROUP_BYTES, Groups, Limits
from warmlog_broker.coordinator.surroundings import Holdings
from warmlog_broker.coordinator.transaction.decisions import jobs, producers
from warmlog_broker.coordinator.transaction.decisions.state import (
    ID_BYTES,
    PART_BYTES,
    Given,
    Incarnation,
    Transactions,
)
from warmlog_protocol.errors import PolicyViolation
from warmlog_protocol.messages.coordinators.groups import (
    DeleteOffsetsRequest,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    OffsetCommitPartition,
    OffsetCommitRequest,
    TopicPartitions,
)

ALICE, BOB = "User:alice", "User:bob"
MIB = 1 << 20


def limited(*states: Any, total: int = MIB, each: int = MIB) -> Holdings:
    holdings = Holdings(BrokerConfig(coordinator_max_bytes=total, coordinator_principal_max_bytes=each))
    holdings.add_source(lambda: (state.held for state in states))
    return holdings


def apply(state: Any, decision: Decision[Any]) -> Any:
    for record in decision.records:
        state.replay(record)
    return decision.result


def repeated(act: Callable[[int], object]) -> None:
    """Do something 1,000 times."""
    for number in range(1000):
        act(number)


class Room:
    """Groups and transactional ids under limits."""

    def __init__(self, **limits: int) -> None:
        self.groups, self.ids = Groups(), Transactions()
        self.topics = Topics(t=4)
        self.machine = Machine(self.topics)
        holdings = limited(self.groups, self.ids, **limits)
        self.group_limits = Limits(may_hold=holdings.check)
        self.may_hold = holdings.check

    def join(self, group: str, member: str, owner: str, epoch: int = 0, **fields: Any) -> int:
        request = GroupHeartbeatRequest(group, member, epoch, **{"topics": ["t"], **fields})
        decision = heartbeat(self.groups, request, host="h", owner=owner, now_ms=0, limits=self.group_limits)
        response: GroupHeartbeatResponse = apply(self.groups, decision)
        return response.member_epoch

    def commit(self, group: str, owner: str, offset: int = 1, metadata: str = "") -> None:
        items = [OffsetCommitPartition(b"", "t", number, offset, -1, metadata) for number in range(4)]
        request = OffsetCommitRequest(group, items)
        apply(self.groups, commit(self.groups, request, self.topics, owner=owner, now_ms=0, limits=self.group_limits))

    def initialise(self, name: str, owner: str, fresh_id: int) -> Incarnation:
        given = Given(0, unused_id=fresh_id, may_hold=self.may_hold)
        decision = producers.initialise(self.ids, given, name, 1000, producers.NOBODY, owner)
        producer = apply(self.ids, decision)
        assert isinstance(producer, Incarnation)
        return producer


def test_one_principal_cannot_take_what_others_may_have() -> None:
    room = Room(each=64 << 10)
    names = [f"{number:0240}" for number in range(100)]
    with pytest.raises(PolicyViolation, match=r"User:alice created .* coordinator\.principal\.max\.bytes allows 65536"):
        repeated(lambda number: room.join(f"g{number}", "m", ALICE, topics=names))
    assert room.groups.held[ALICE] <= 64 << 10
    room.join("bobs", "m", BOB, topics=names)
    with pytest.raises(PolicyViolation):
        repeated(lambda number: room.initialise(f"id{number}", ALICE, number))
    room.initialise("bobs", BOB, 1)


def test_all_of_them_together_hold_no_more_than_the_broker_allows_and_what_is_there_goes_on() -> None:
    room = Room()
    epoch = room.join("first", "m", "")
    room.commit("second", "", 1, "x" * 100)
    with pytest.raises(PolicyViolation, match=r"coordinator\.max\.bytes allows 1048576"):
        repeated(lambda number: room.commit(f"g{number}", f"User:{number}", metadata="x" * 4000))
    assert sum(room.groups.held.values()) <= MIB
    with pytest.raises(PolicyViolation):
        repeated(lambda number: room.initialise(f"id{number}", BOB, number))
    assert room.join("first", "m", "", epoch, topics=None) == epoch
    room.commit("second", "", 2, "y" * 100)
    with pytest.raises(PolicyViolation):
        room.commit("second", "", 3, "y" * 4000)
    with pytest.raises(PolicyViolation):
        room.join("first", "m", "", epoch, topics=[f"{number:0240}" for number in range(100)])


def test_what_a_principal_holds_is_counted_until_it_is_removed() -> None:
    room = Room()
    room.commit("g", ALICE, metadata="m" * 100)
    held_bytes = room.groups.held[ALICE]
    assert held_bytes > GROUP_BYTES + 4 * 100
    room.commit("g", BOB, metadata="")  # the group is alice's
    assert room.groups.held == {ALICE: held_bytes - 4 * 100}
    partitions = [TopicPartitions(b"", "t", [0, 1, 2, 3])]
    request = DeleteOffsetsRequest("g", partitions)
    apply(room.groups, delete_offsets(room.groups, request, room.machine.subscriptions))
    assert (room.groups.held, len(room.groups)) == ({}, 0)


def test_a_target_that_its_owner_cannot_hold_is_not_assigned() -> None:
    machine = Machine(Topics(**{f"t{number}": 100 for number in range(100)}))
    machine.join("m", pattern="t.*")
    computed = present(machine.compute())
    holdings = limited(machine.groups)
    with pytest.raises(PolicyViolation):
        target.assign(machine.groups, computed, machine.subscriptions, holdings.check)
    group = present(machine.groups.get(GROUP))
    assert run_steps(target.compute(group, machine.subscriptions)) is not None


def test_the_partitions_of_transactions_and_the_members_of_jobs_count() -> None:
    room = Room(each=64 << 10)
    producer = room.initialise("id", ALICE, 1)
    assert room.ids.held == {ALICE: ID_BYTES}

    def enrol(number: int) -> None:
        place = PartitionId(b"t" * 16, number)
        apply(
            room.ids,
            producers.enrol(room.ids, Given(0, may_hold=room.may_hold), "id", producer, partitions={place: "t"}),
        )

    enrol(0)
    assert room.ids.held == {ALICE: ID_BYTES + PART_BYTES}
    with pytest.raises(PolicyViolation):
        repeated(enrol)

    def join(number: int) -> None:
        apply(
            room.ids, jobs.join(room.ids, Given(0, unused_id=10 + number, may_hold=room.may_hold), "job", 1, 1000, BOB)
        )

    with pytest.raises(PolicyViolation):
        repeated(join)
    assert room.ids.held[BOB] <= 64 << 10
