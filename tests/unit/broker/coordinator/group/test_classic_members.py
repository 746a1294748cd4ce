"""Decisions about classic members: what is written, what kind a group is of, and what bounds it."""

from typing import Any

import pytest
from msgspec.structs import replace

from unit.broker.coordinator.group.machine import GROUP, Machine
from unit.broker.coordinator.group.topics import Topics
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.coordinator.classic import events, phases
from warmlog_broker.coordinator.classic import messages as m
from warmlog_broker.coordinator.classic.consumer_protocol import subscription
from warmlog_broker.coordinator.group.decisions import classic_members, offsets, records
from warmlog_broker.coordinator.group.decisions.state import Groups, Limits
from warmlog_broker.coordinator.surroundings import Holdings
from warmlog_protocol import errors
from warmlog_protocol.messages import DeleteOffsetsRequest, OffsetCommitPartition, OffsetCommitRequest, TopicPartitions

OWNER = "User:etl"


class Room:
    """A machine of groups, with classic members."""

    def __init__(self, **config: int) -> None:
        self.machine = Machine(Topics(orders=1), Limits(BrokerConfig(group_initial_rebalance_delay_ms=0, **config)))

    @property
    def groups(self) -> Groups:
        return self.machine.groups

    def join(self, member_id: str = "", group: str = GROUP, metadata: bytes = b"", **fields: Any) -> list[Any]:
        """Let a member join; return the keys of the records."""
        request = m.JoinGroupRequest(group, member_id, "consumer", [("range", metadata)], 10_000, 10_000, **fields)
        decision = classic_members.decide_join(
            self.groups,
            request,
            object(),
            new_id="m1",
            host="h",
            owner=OWNER,
            now_ms=1000,
            time_ms=1000,
            limits=self.machine.limits,
        )
        return self._happens(group, decision)

    def happens(self, event: classic_members.Event, group: str = GROUP) -> list[Any]:
        return self._happens(
            group, classic_members.decide(self.groups, group, event, now_ms=2000, limits=self.machine.limits)
        )

    def _happens(self, group: str, decision: Any) -> list[Any]:
        self.machine.decided(decision)
        self.groups.happened(group, decision.result)
        return [type(records.read(each)[0]) for each in decision.records]  # type: ignore[index]

    def stable(self, metadata: bytes = b"") -> None:
        """Let one member join and sync."""
        self.join(metadata=metadata)
        self.happens(lambda before: events.expire(before, now_ms=1000))
        generation = classic_members.rebalance_of(self.groups.get(GROUP)).generation
        request = m.SyncGroupRequest(GROUP, "m1", generation, assignments=[("m1", b"all")])
        assert self.happens(lambda before: events.sync(before, request, object(), now_ms=1000)) == [records.ClassicKey]


def leave(before: Any) -> phases.Step:
    return events.leave(before, m.LeaveGroupRequest(GROUP, [m.LeavingMember("m1")]), object(), now_ms=2000)


def test_a_group_is_created_by_its_first_member_and_written_when_it_is_assigned_and_when_it_is_empty() -> None:
    room = Room()
    assert room.join(needs_member_id=True) == [records.GroupKey]
    assert room.join("m1") == []
    assert room.happens(lambda before: events.expire(before, now_ms=1000)) == []
    room.happens(leave)
    room.stable()
    assert room.happens(leave) == [records.GroupKey, records.ClassicKey]
    group = room.groups.get(GROUP)
    assert group is not None
    assert (group.epoch, group.empty_since_ms, group.owner, group.rebalance) == (4, 2000, OWNER, None)


def test_a_group_has_members_of_one_kind_and_its_numbers_rise() -> None:
    room = Room()
    room.stable()
    with pytest.raises(errors.InconsistentGroupProtocol, match="classic"):
        room.machine.join("own", "orders")
    room.happens(leave)
    assert room.machine.join("own", "orders").member_epoch == 3
    with pytest.raises(errors.InconsistentGroupProtocol, match="KIP-848"):
        room.join()
    room.machine.heartbeat("own", -1)
    room.join()
    room.happens(lambda before: events.expire(before, now_ms=1000))
    assert classic_members.rebalance_of(room.groups.get(GROUP)).generation == 5


def test_groups_with_classic_members_are_in_use() -> None:
    room = Room()
    room.stable(subscription(["orders"]))
    with pytest.raises(errors.NonEmptyGroup):
        offsets.delete_group(room.groups, GROUP)
    item = OffsetCommitPartition(b"", "orders", 0, 0)
    with pytest.raises(errors.NonEmptyGroup):
        room.machine.decided(
            offsets.commit(
                room.groups,
                OffsetCommitRequest(GROUP, [item]),
                room.machine.topics,
                now_ms=1000,
                limits=room.machine.limits,
            )
        )
    deleted = offsets.delete_offsets(
        room.groups, DeleteOffsetsRequest(GROUP, [TopicPartitions(b"", "orders", [0])]), room.machine.subscriptions
    )
    assert deleted.result.partitions[0].error_code == errors.ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    expired = offsets.expire_offsets(room.groups, GROUP, now_ms=10**15, retention_ms=1000, topics=room.machine.topics)
    assert not expired.records


def test_a_transaction_need_not_say_which_member_it_commits_for() -> None:
    room = Room()
    room.stable()
    limits, request = room.machine.limits, OffsetCommitRequest(GROUP, [OffsetCommitPartition(b"", "orders", 0, 0)])

    def check(request: OffsetCommitRequest, *, is_transactional: bool) -> int:
        accepted, _ = offsets.check_commit(
            room.groups,
            request,
            room.machine.topics,
            now_ms=1000,
            limits=limits,
            is_transactional=is_transactional,
        )
        return len(accepted)

    assert check(request, is_transactional=True) == 1
    with pytest.raises(errors.NonEmptyGroup):
        check(request, is_transactional=False)
    with pytest.raises(errors.IllegalGeneration):
        check(replace(request, member_id="m1", member_epoch=7), is_transactional=True)


def test_what_members_say_counts_for_the_principal_that_created_the_group() -> None:
    config = {"coordinator_principal_max_bytes": 64 << 10}
    room = Room(**config)
    holdings = Holdings(room.machine.limits.config)
    holdings.add_source(lambda: [room.groups.held])
    room.machine.limits = room.machine.limits._replace(may_hold=holdings.check)
    with pytest.raises(errors.PolicyViolation, match="User:etl"):
        room.join(metadata=bytes(64 << 10))
    assert room.groups.held == {}
    room.join(metadata=bytes(16 << 10))
    assert 16 << 10 < room.groups.held[OWNER] < 32 << 10
    large = [("m1", bytes(64 << 10))]
    room.happens(lambda before: events.expire(before, now_ms=1000))
    with pytest.raises(errors.PolicyViolation):
        room.happens(
            lambda before: events.sync(
                before, m.SyncGroupRequest(GROUP, "m1", 1, assignments=large), object(), now_ms=1000
            )
        )
    room.happens(leave)
    room.machine.decided(offsets.delete_group(room.groups, GROUP))
    assert room.groups.held == {}


def test_groups_are_no_more_than_the_broker_allows() -> None:
    room = Room(group_max_groups=2)
    room.join(group="a")
    room.join(group="b", needs_member_id=True)
    with pytest.raises(errors.TooManyGroups):
        room.join(group="c")
    with pytest.raises(errors.InvalidGroupId):
        room.join(group="")
    request = m.JoinGroupRequest("a", "", "consumer", [(str(number), b"") for number in range(101)], 1, 1)
    with pytest.raises(errors.InvalidRequest, match="101 protocols"):
        classic_members._check_names(request)
