"""Committed offsets: who may commit what, and when they are removed."""

import time
from collections.abc import Iterable
from types import SimpleNamespace

import msgspec
import pytest

from present import present
from processor_time import slowness
from unit.broker.coordinator.group.machine import GROUP, Machine
from unit.broker.coordinator.group.topics import LOG_END, Topics
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.coordinator.framework.decision import PartitionId, Record
from warmlog_broker.coordinator.group.decisions import offsets
from warmlog_broker.coordinator.group.decisions.offsets import add_pending, end_pending
from warmlog_broker.coordinator.group.decisions.records import OffsetValue, PendingKey, put
from warmlog_broker.coordinator.group.decisions.state import Groups, Limits
from warmlog_protocol import errors
from warmlog_protocol.messages.coordinators.groups import (
    DeleteOffsetsRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetFetchRequest,
    TopicPartitions,
)

OUTSIDE = ("", -1)


@pytest.fixture
def machine() -> Machine:
    return Machine(Topics(orders=4, users=1))


@pytest.fixture
def orders(machine: Machine) -> list[PartitionId]:
    return machine.topics.partitions("orders")


@pytest.fixture
def owner(machine: Machine) -> str:
    machine.join("a", "orders")
    machine.settle("a")
    return "a"


def test_the_owner_commits_and_the_offset_is_fetched(machine: Machine, orders: list[PartitionId], owner: str) -> None:
    item = OffsetCommitPartition(orders[1].topic_id, "", 1, 42, 7, "state")
    request = OffsetCommitRequest(GROUP, [item], owner, 1)
    machine.decided(offsets.commit(machine.groups, request, machine.topics, now_ms=99, limits=machine.limits))
    fetched = offsets.fetch_offsets(machine.groups, OffsetFetchRequest(GROUP)).partitions
    assert [tuple(getattr(f, name) for name in f.__struct_fields__) for f in fetched] == [
        (orders[1].topic_id, "orders", 1, 42, 7, "state", 99, 0)
    ]


def test_each_partition_is_accepted_or_refused_by_itself(
    machine: Machine, orders: list[PartitionId], owner: str
) -> None:
    users = machine.topics.partitions("users")[0]
    foreign = PartitionId(b"?" * 16, 0)
    beyond = PartitionId(orders[0].topic_id, 4)
    items = [(orders[0], 1), (users, 1), (foreign, 1), (beyond, 1), (orders[1], LOG_END + 1), (orders[2], LOG_END)]
    assert machine.commit(owner, 1, *items, (orders[3], -1)) == [
        errors.ErrorCode.NONE,
        errors.ErrorCode.STALE_MEMBER_EPOCH,
        errors.ErrorCode.UNKNOWN_TOPIC_ID,
        errors.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        errors.ErrorCode.OFFSET_OUT_OF_RANGE,
        errors.ErrorCode.NONE,
        errors.ErrorCode.OFFSET_OUT_OF_RANGE,
    ]
    assert machine.committed() == {orders[0]: 1, orders[2]: LOG_END}


def test_metadata_has_a_largest_size_in_bytes(machine: Machine, owner: str) -> None:
    items = [OffsetCommitPartition(b"", "orders", 0, 1, metadata="ü" * length) for length in (2048, 2049)]
    request = OffsetCommitRequest(GROUP, [*items, OffsetCommitPartition(b"", "gone", 0, 1)], owner, 1)
    decision = offsets.commit(machine.groups, request, machine.topics, now_ms=0, limits=machine.limits)
    codes = [result.error_code for result in decision.result.partitions]
    assert codes == [
        errors.ErrorCode.NONE,
        errors.ErrorCode.OFFSET_METADATA_TOO_LARGE,
        errors.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert len(decision.records) == 1


def test_what_a_member_is_revoking_it_may_still_commit(machine: Machine, orders: list[PartitionId], owner: str) -> None:
    machine.join("b", "orders")
    machine.assign()
    held = dict(machine.member(owner).assigned)
    revoke = machine.heartbeat(owner, 1, held)
    assert machine.commit(owner, 1, (orders[3], 5)) == [errors.ErrorCode.NONE]
    assert machine.commit(owner, 2, (orders[3], 6)) == [errors.ErrorCode.NONE]
    machine.heartbeat(owner, 2, revoke.assignment)
    assert machine.commit(owner, 2, (orders[3], 7)) == [errors.ErrorCode.STALE_MEMBER_EPOCH]


def test_a_commit_of_no_member_or_of_a_later_epoch_is_refused_as_a_whole(
    machine: Machine, orders: list[PartitionId], owner: str
) -> None:
    with pytest.raises(errors.UnknownMemberId):
        machine.commit("b", 1, (orders[0], 1))
    with pytest.raises(errors.UnknownMemberId):
        machine.commit("", 1, (orders[0], 1))
    with pytest.raises(errors.FencedMemberEpoch):
        machine.commit(owner, 2, (orders[0], 1))


def test_a_late_copy_of_a_commit_takes_no_offset_back(machine: Machine, orders: list[PartitionId], owner: str) -> None:
    machine.commit(owner, 1, (orders[0], 1), sequence=1)
    machine.commit(owner, 1, (orders[0], 1), sequence=1)
    machine.commit(owner, 1, (orders[0], 2), sequence=2)
    with pytest.raises(errors.StaleMemberEpoch, match="late copy"):
        machine.commit(owner, 1, (orders[0], 1), sequence=1)
    assert machine.commit(owner, 1, (orders[0], 0)) == [errors.ErrorCode.NONE], (
        "without a number, it is the user's will"
    )


def test_a_recreated_topic_has_no_committed_offset(machine: Machine, orders: list[PartitionId], owner: str) -> None:
    machine.commit(owner, 1, (orders[0], 9))
    new = machine.topics.create("orders", 4)
    asked = [TopicPartitions(new.topic_id, "orders", [0]), TopicPartitions(orders[0].topic_id, "orders", [0])]
    fetched = offsets.fetch_offsets(machine.groups, OffsetFetchRequest(GROUP, asked)).partitions
    assert [offset.offset for offset in fetched] == [-1, 9]


def test_a_member_fetches_with_its_epoch_or_the_one_before(machine: Machine, owner: str) -> None:
    machine.join("b", "orders")
    machine.settle("a", "b")
    for epoch in (1, 2):
        offsets.fetch_offsets(machine.groups, OffsetFetchRequest(GROUP, None, owner, epoch))
    with pytest.raises(errors.StaleMemberEpoch):
        offsets.fetch_offsets(machine.groups, OffsetFetchRequest(GROUP, None, owner, 3))
    with pytest.raises(errors.UnknownMemberId):
        offsets.fetch_offsets(machine.groups, OffsetFetchRequest(GROUP, None, "c", 1))
    assert offsets.fetch_offsets(machine.groups, OffsetFetchRequest("other")).partitions == []


def test_names_and_the_number_of_groups_are_bounded(orders: list[PartitionId]) -> None:
    machine = Machine(Topics(orders=1), Limits(BrokerConfig(group_max_groups=0)))
    with pytest.raises(errors.TooManyGroups):
        machine.commit(*OUTSIDE, (machine.topics.partitions("orders")[0], 1))
    for name in ("", "g" * 1_000_000):
        request = OffsetCommitRequest(name, [])
        with pytest.raises(errors.InvalidGroupId):
            offsets.commit(machine.groups, request, machine.topics, now_ms=0, limits=machine.limits)
        with pytest.raises(errors.InvalidGroupId):
            offsets.fetch_offsets(machine.groups, OffsetFetchRequest(name))


class TestExpiry:
    def expire(self, machine: Machine, now_ms: int) -> int:
        decision = offsets.expire_offsets(machine.groups, GROUP, now_ms=now_ms, retention_ms=500, topics=machine.topics)
        expired: int = machine.decided(decision)
        return expired

    def test_the_time_runs_from_when_the_group_became_empty(
        self, machine: Machine, orders: list[PartitionId], owner: str
    ) -> None:
        machine.commit(owner, 1, (orders[0], 9))
        assert self.expire(machine, 10**9) == 0, "the group has members"
        machine.now_ms = 20_000
        machine.heartbeat(owner, -1)
        assert self.expire(machine, 20_499) == 0
        assert self.expire(machine, 20_500) == 1
        assert len(machine.groups) == 0

    def test_the_time_runs_from_the_last_commit_from_outside(self, machine: Machine, orders: list[PartitionId]) -> None:
        machine.commit(*OUTSIDE, (orders[0], 9))
        machine.now_ms = 1300
        machine.commit(*OUTSIDE, (orders[1], 9))
        assert self.expire(machine, 1799) == 0, "a partition without new records is not committed again"
        assert self.expire(machine, 1800) == 2
        assert len(machine.groups) == 0

    def test_that_a_reader_was_connected_is_remembered_over_a_restart(
        self, machine: Machine, orders: list[PartitionId]
    ) -> None:
        machine.commit(*OUTSIDE, (orders[0], 9))
        present(machine.groups.get(GROUP)).reader = SimpleNamespace(is_over=False)
        records_before = len(machine.log)
        for now_ms in range(1000, 5000, 10):
            assert self.expire(machine, now_ms) == 0
        assert 0 < len(machine.log) - records_before <= 4000 // (500 // offsets.NOTES_OF_USE)
        machine.groups = Groups()
        for record in machine.log:
            machine.groups.replay(record)
        assert self.expire(machine, 4990 + 500 - 500 // offsets.NOTES_OF_USE - 10) == 0
        assert self.expire(machine, 4990 + 500) == 1
        assert len(machine.groups) == 0

    def test_nothing_is_left_of_a_group_whose_use_was_noted(self, machine: Machine, orders: list[PartitionId]) -> None:
        machine.commit(*OUTSIDE, (orders[0], 9))
        present(machine.groups.get(GROUP)).reader = SimpleNamespace(is_over=False)
        self.expire(machine, 1400)
        machine.topics.delete("orders")
        assert self.expire(machine, 1400) == 1
        replayed = Groups()
        for record in machine.log:
            replayed.replay(record)
        assert len(machine.groups) == len(replayed) == 0

    def test_offsets_of_deleted_topics_expire_at_once(
        self, machine: Machine, orders: list[PartitionId], owner: str
    ) -> None:
        machine.commit(owner, 1, (orders[0], 9))
        machine.topics.delete("orders")
        assert self.expire(machine, 1000) == 1
        assert len(machine.groups) == 1

    def test_a_group_that_is_not_there_has_nothing_to_expire(self, machine: Machine) -> None:
        assert self.expire(machine, 10**9) == 0


class TestDeletion:
    def test_a_group_without_members_is_deleted_with_its_offsets(
        self, machine: Machine, orders: list[PartitionId], owner: str
    ) -> None:
        machine.commit(owner, 1, (orders[0], 9))
        with pytest.raises(errors.NonEmptyGroup):
            offsets.delete_group(machine.groups, GROUP)
        machine.heartbeat(owner, -1)
        machine.decided(offsets.delete_group(machine.groups, GROUP))
        assert len(machine.groups) == 0
        with pytest.raises(errors.GroupIdNotFound):
            offsets.delete_group(machine.groups, GROUP)

    def delete(self, machine: Machine, *topics: TopicPartitions) -> list[int]:
        decision = offsets.delete_offsets(
            machine.groups, DeleteOffsetsRequest(GROUP, list(topics)), machine.subscriptions
        )
        return [result.error_code for result in machine.decided(decision).partitions]

    def test_offsets_are_deleted_by_id_or_by_name(self, machine: Machine, orders: list[PartitionId]) -> None:
        machine.commit(*OUTSIDE, *((partition, 9) for partition in orders))
        by_id = TopicPartitions(orders[0].topic_id, "", [0, 1])
        by_name = TopicPartitions(b"", "orders", [2, 17])
        assert self.delete(machine, by_id, by_name) == [errors.ErrorCode.NONE] * 4
        assert machine.committed() == {orders[3]: 9}

    def test_offsets_that_members_need_stay(self, machine: Machine, orders: list[PartitionId], owner: str) -> None:
        machine.commit(owner, 1, (orders[0], 9))
        subscribed = errors.ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        assert self.delete(machine, TopicPartitions(orders[0].topic_id, "", [0])) == [subscribed]
        assert self.delete(machine, TopicPartitions(b"", "orders", [0])) == [subscribed]
        machine.heartbeat(owner, 1, topics=[], pattern="or.*s")
        assert self.delete(machine, TopicPartitions(b"", "orders", [0])) == [subscribed]
        machine.heartbeat(owner, 1, topics=[], pattern="or")
        assert self.delete(machine, TopicPartitions(b"", "orders", [0])) == [errors.ErrorCode.NONE]

    def test_a_request_that_names_much_takes_no_longer_than_its_size(self) -> None:
        machine = Machine(Topics(orders=1000))
        machine.commit(*OUTSIDE, *((partition, 9) for partition in machine.topics.partitions("orders")))
        topic_id = machine.topics.partitions("orders")[0].topic_id
        began_s = time.process_time()
        unknown = [TopicPartitions(b"", "unknown", [])] * 10_000
        assert self.delete(machine, *unknown, TopicPartitions(topic_id, "", [1000] * 10_000 + [1, 1])) == [0] * 10_002
        assert time.process_time() - began_s < 0.5 * slowness()
        assert len(machine.committed()) == 999

    def test_offsets_of_a_group_that_is_not_there_are_not_deleted(self, machine: Machine) -> None:
        with pytest.raises(errors.GroupIdNotFound):
            self.delete(machine, TopicPartitions(b"", "orders", [0]))


# Offsets that wait for the end of a transaction


PART = PartitionId(b"t" * 16, 0)
PRODUCER, EPOCH = 7, 3


@pytest.fixture
def groups() -> Groups:
    return Groups()


def apply(groups: Groups, records: Iterable[Record]) -> None:
    for record in records:
        groups.replay(record)


def add(groups: Groups, epoch: int, offset: int, partition: PartitionId = PART, *, coordinator_epoch: int = 1) -> None:
    offsets = {partition: OffsetValue(offset, -1, "", "t", 0)}
    to = {"coordinator_epoch": coordinator_epoch, "now_ms": 0}
    apply(groups, add_pending(groups, "g", PRODUCER, epoch, offsets, **to, limits=Limits()))


def end(
    groups: Groups, epoch: int, *, commits: bool, keeps_epoch: bool = False, coordinator_epoch: int = 1
) -> list[Record]:
    """Returns the records, which are applied."""
    kind = {"commits": commits, "keeps_epoch": keeps_epoch, "coordinator_epoch": coordinator_epoch}
    records = list(end_pending(groups, "g", PRODUCER, epoch, **kind, now_ms=0).records)
    apply(groups, records)
    return records


def test_late_ones_of_a_transaction_that_has_ended_are_refused_and_the_next_one_adds_its_own(groups: Groups) -> None:
    add(groups, EPOCH, 5)
    ended = EPOCH + 1
    end(groups, ended, commits=False)
    with pytest.raises(errors.InvalidProducerEpoch, match="epoch 3 is fenced by 4"):
        add(groups, EPOCH, 6)
    assert end(groups, ended, commits=True) == []
    add(groups, ended, 7)
    end(groups, ended + 1, commits=True)
    group = present(groups.get("g"))
    assert group.offsets[PART].offset == 7


def test_transactions_of_one_epoch_add_their_offsets_one_after_the_other(groups: Groups) -> None:
    for offset, commits in ((5, True), (6, False), (7, True)):
        add(groups, EPOCH, offset)
        for _ in range(2):
            end(groups, EPOCH, commits=commits, keeps_epoch=True)
        group = present(groups.get("g"))
        assert not group.pending[PRODUCER].offsets
        assert group.offsets[PART].offset == (offset if commits else 5)
    end(groups, EPOCH - 1, commits=True, keeps_epoch=True)
    assert present(groups.get("g")).pending[PRODUCER].epoch == EPOCH


def test_what_a_coordinator_sends_late_is_none_of_the_next_transaction_of_the_same_epoch(groups: Groups) -> None:
    """Another broker coordinates the transactional id by then."""
    add(groups, EPOCH, 5, coordinator_epoch=1)
    end(groups, EPOCH, commits=True, keeps_epoch=True, coordinator_epoch=2)
    with pytest.raises(errors.TransactionCoordinatorFenced, match="coordinator epoch 1 is fenced by 2"):
        add(groups, EPOCH, 6, coordinator_epoch=1)
    add(groups, EPOCH, 9, coordinator_epoch=2)
    with pytest.raises(errors.TransactionCoordinatorFenced, match="coordinator epoch 1 is fenced by 2"):
        end(groups, EPOCH, commits=True, keeps_epoch=True, coordinator_epoch=1)
    end(groups, EPOCH, commits=False, keeps_epoch=True, coordinator_epoch=2)
    assert present(groups.get("g")).offsets[PART].offset == 5


def test_pending_offsets_that_know_no_coordinator_are_added_to_and_end(groups: Groups) -> None:
    """As an earlier version has written them."""
    add(groups, EPOCH, 5)
    record = put(PendingKey("g", PRODUCER), present(groups.get("g")).pending[PRODUCER])
    *before, coordinator_epoch = msgspec.msgpack.decode(present(record.value))
    assert coordinator_epoch == 1
    groups.replay(Record(record.key, msgspec.msgpack.encode(before)))
    assert present(groups.get("g")).pending[PRODUCER].coordinator_epoch == -1
    add(groups, EPOCH, 6, coordinator_epoch=0)
    end(groups, EPOCH + 1, commits=True, coordinator_epoch=0)
    assert present(groups.get("g")).offsets[PART].offset == 6


def test_what_waits_of_an_earlier_transaction_goes_into_no_later_one(groups: Groups) -> None:
    add(groups, EPOCH, 5)  # an older copy of the log, as a restore may have it, does not know how this has ended
    other = PartitionId(PART.topic_id, 1)
    add(groups, EPOCH + 2, 6, other)
    end(groups, EPOCH + 3, commits=True)
    group = present(groups.get("g"))
    assert set(group.offsets) == {other}


def test_a_commit_takes_no_offsets_of_another_epoch_than_the_one_before(groups: Groups) -> None:
    add(groups, EPOCH, 5)
    end(groups, EPOCH + 3, commits=True)
    group = present(groups.get("g"))
    assert not group.offsets


def test_more_than_one_decision_can_make_committed_is_refused(groups: Groups) -> None:
    """Two requests that are small enough, of one transaction whose end would not fit into a segment."""
    name = "g" * 249

    def add_some(first: int) -> None:
        value = OffsetValue(0, -1, "m" * 4096, "t" * 249, 0)
        offsets = {PartitionId(b"t" * 16, number): value for number in range(first, first + 900)}
        records = add_pending(groups, name, PRODUCER, EPOCH, offsets, coordinator_epoch=1, now_ms=0, limits=Limits())
        apply(groups, records)

    add_some(0)
    with pytest.raises(errors.OffsetMetadataTooLarge, match="the offsets of one transaction with their metadata take"):
        add_some(900)
    ended = end_pending(groups, name, PRODUCER, EPOCH + 1, commits=True, coordinator_epoch=1, now_ms=0).records
    assert len(ended) == 901
