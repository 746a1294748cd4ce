"""A partition on a real log: its states, who waits, who is woken, who is failed."""

import asyncio
import errno
from itertools import pairwise

import pytest

from present import present
from truncating import truncate_to
from unit.broker.conftest import NOW_MS, MakePartition, flush
from warmlog_broker.config.listeners import parse_listeners
from warmlog_broker.replica.cluster_view import Leadership, LoneClusterView
from warmlog_broker.replica.commitment import OnDurable
from warmlog_broker.replica.partition import Partition, read_bound
from warmlog_broker.replica.partition_state import Allowed, PartitionState, Role, allowed
from warmlog_broker.storage.producer.verification import NO_GUARD, VerificationGuard
from warmlog_broker.storage.segment import file_records
from warmlog_protocol import errors
from warmlog_protocol.batch import ControlType
from warmlog_protocol.messages import ACKS_ALL, ACKS_LEADER
from wire_client import batch_of


class Waiter:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.done: list[tuple[int, errors.ApiError | None]] = []
        self.moves = 0

    def call(self, number: int) -> OnDurable:
        """What to give to `append`; `done` gets the number and the error."""
        return lambda error: self.done.append((number, error))

    def partition_moved(self, partition: Partition) -> None:
        self.moves += 1


def append(
    partition: Partition,
    on_durable: OnDurable | None = None,
    *,
    acks: int = ACKS_ALL,
    producer: int = -1,
    sequence: int = -1,
    guard: VerificationGuard | None = None,
) -> int:
    """Appends one record; returns the offset after it."""
    epoch = -1 if producer < 0 else 0
    batch = batch_of(
        [b"x"],
        timestamp_ms=NOW_MS,
        producer=(producer, epoch),
        base_sequence=sequence,
        is_transactional=guard is not None,
    )
    info = partition.append(batch, acks, on_durable, now_ms=NOW_MS, next_producer_id=100, guard=guard)
    return info.last_offset + 1


def test_an_append_is_durable_once_its_flush_is_over(make_partition: MakePartition) -> None:
    partition, waiter = make_partition(), Waiter()
    end_offset = append(partition, waiter.call(3))
    assert partition.log.high_watermark < end_offset
    partition.wake()
    assert waiter.done == []
    flush(partition)
    assert waiter.done == [(3, None)]
    assert partition.log.high_watermark == end_offset
    assert partition.prepare_flush() is None


def test_what_was_appended_during_a_flush_waits_for_the_next(make_partition: MakePartition) -> None:
    partition, waiter = make_partition(), Waiter()
    append(partition, waiter.call(0))
    plan = present(partition.prepare_flush())
    append(partition, waiter.call(1))
    plan.run()
    partition.flushed(plan)
    partition.wake()
    assert waiter.done == [(0, None)]
    flush(partition)
    assert waiter.done == [(0, None), (1, None)]


def test_a_flush_of_the_log_that_a_partition_had_before_says_nothing_of_the_one_it_has(
    make_partition: MakePartition,
) -> None:
    partition, copy, waiter = make_partition(0), make_partition(1), Waiter()
    append(partition, waiter.call(0))
    plan = present(partition.prepare_flush())
    plan.run()
    append(copy)
    partition.begin_move()
    partition.switch_to(copy.log)
    partition.flushed(plan)
    partition.wake()
    assert copy.log.recovery_point == 0
    assert partition.prepare_flush() is None, "what a crash would take back is not flushed, and not acknowledged"
    assert partition.must_wait(ACKS_LEADER)
    append(partition, waiter.call(1), acks=ACKS_LEADER)
    assert waiter.done == []
    partition.complete_switch()
    flush(partition)
    assert waiter.done == [(0, None), (1, None)]
    assert not partition.must_wait(ACKS_LEADER)


def test_a_duplicate_waits_for_its_original_only(make_partition: MakePartition) -> None:
    partition, waiter = make_partition(), Waiter()
    first = append(partition, waiter.call(0), producer=1, sequence=0)
    plan = present(partition.prepare_flush())
    append(partition, waiter.call(1), producer=1, sequence=1)
    assert append(partition, waiter.call(2), producer=1, sequence=0) == first
    plan.run()
    partition.flushed(plan)
    partition.wake()
    assert waiter.done == [(0, None), (2, None)]


async def test_a_duplicate_of_what_is_durable_is_called_back_in_the_next_turn(make_partition: MakePartition) -> None:
    partition, waiter = make_partition(), Waiter()
    first = append(partition, producer=1, sequence=0)
    flush(partition)
    assert append(partition, waiter.call(0), producer=1, sequence=0) == first
    assert waiter.done == []
    await asyncio.sleep(0)
    assert waiter.done == [(0, None)]


async def test_with_write_caching_an_append_counts_at_once(make_partition: MakePartition) -> None:
    partition, waiter = make_partition(write_caching="true"), Waiter()
    partition.add_reader(waiter, "high_watermark")
    assert append(partition, waiter.call(0)) == partition.log.high_watermark
    assert (waiter.moves, waiter.done) == (1, [])
    await asyncio.sleep(0)
    assert waiter.done == [(0, None)]


def test_readers_are_woken_when_their_own_bound_moves(make_partition: MakePartition) -> None:
    partition, consumer, replica = make_partition(), Waiter(), Waiter()
    partition.add_reader(consumer, "high_watermark")
    partition.add_reader(replica, "log_end")
    append(partition)
    assert (consumer.moves, replica.moves) == (0, 1)
    assert partition.log.bounds.end_of("log_end").offset == 1
    assert partition.log.bounds.end_of("high_watermark").offset == 0
    flush(partition)
    assert consumer.moves == 1
    partition.remove_reader(consumer)
    partition.remove_reader(consumer)
    append(partition)
    flush(partition)
    assert consumer.moves == 1


def test_a_transactional_batch_needs_the_coordinator_and_its_marker_is_waited_for_as_a_batch_is(
    make_partition: MakePartition,
) -> None:
    partition, waiter = make_partition(), Waiter()
    with pytest.raises(errors.InvalidTxnState):
        append(partition, waiter.call(0), producer=1, sequence=0, guard=NO_GUARD)
    guard = partition.log.producers.start_verification(1, 0, NOW_MS)
    append(partition, waiter.call(1), producer=1, sequence=0, guard=guard)
    append(partition, waiter.call(2), producer=1, sequence=1, guard=NO_GUARD)
    info = partition.append_end_transaction(1, 1, ControlType.COMMIT, 0, waiter.call(3), now_ms=NOW_MS)
    assert (info.first_offset, partition.log.bounds.last_stable_offset) == (2, 0)
    assert waiter.done == []
    flush(partition)
    assert waiter.done == [(1, None), (2, None), (3, None)]
    assert partition.log.bounds.last_stable_offset == 3


def test_a_transactional_batch_without_a_guard_is_refused(make_partition: MakePartition) -> None:
    partition = make_partition()
    batch = batch_of([b"x"], timestamp_ms=NOW_MS, producer=(1, 0), base_sequence=0, is_transactional=True)
    with pytest.raises(errors.InvalidTxnState):
        partition.append(batch, ACKS_ALL, None, now_ms=NOW_MS, next_producer_id=100)
    assert partition.log.log_end_offset == 0


def test_going_offline_fails_who_waits_and_who_comes(make_partition: MakePartition) -> None:
    partition, waiter = make_partition(), Waiter()
    append(partition, waiter.call(0))
    partition.add_reader(waiter, "high_watermark")
    partition.take_offline("the disk is broken")
    ((index, error),) = waiter.done
    assert index == 0
    assert isinstance(error, errors.StorageError)
    assert waiter.moves == 1
    assert partition.state is PartitionState.OFFLINE
    assert partition.prepare_flush() is None
    with pytest.raises(errors.StorageError, match="the disk is broken"):
        append(partition)
    with pytest.raises(errors.StorageError, match="the disk is broken"):
        partition.log.bounds.end_of("high_watermark")
    assert partition.offsets is not None


def test_a_write_that_fails_for_good_fails_who_waits(
    make_partition: MakePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, waiter = make_partition(), Waiter()
    append(partition, waiter.call(0))

    def broken(*arguments: object) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(file_records, "_pwritev", broken)
    with pytest.raises(errors.StorageError):
        append(partition)
    assert partition.state is PartitionState.OFFLINE
    assert isinstance(waiter.done[0][1], errors.StorageError)


def test_a_log_that_could_not_be_opened_is_offline(make_partition: MakePartition) -> None:
    opened = make_partition()
    partition = Partition(opened.key, None, opened.config)
    assert partition.state is PartitionState.OFFLINE
    assert partition.offsets is None
    with pytest.raises(errors.StorageError, match="could not be opened"):
        append(partition)
    partition.take_offline("again")


def test_deleting_fails_who_waits(make_partition: MakePartition) -> None:
    partition, waiter = make_partition(), Waiter()
    append(partition, waiter.call(0))
    partition.deleted()
    ((_, error),) = waiter.done
    assert isinstance(error, errors.UnknownTopicOrPartition)
    assert partition.prepare_flush() is None
    with pytest.raises(errors.UnknownTopicOrPartition, match="'t' was deleted"):
        append(partition)


def test_an_idempotent_producer_needs_acks_all_and_an_id_of_ours(make_partition: MakePartition) -> None:
    partition = make_partition()
    with pytest.raises(errors.InvalidRequiredAcks):
        append(partition, acks=ACKS_LEADER, producer=1, sequence=0)
    with pytest.raises(errors.UnknownProducerId):
        append(partition, producer=100, sequence=0)
    assert append(partition, producer=99, sequence=0) == 1


def test_the_epoch_of_the_asker_must_be_the_one_in_force(make_partition: MakePartition) -> None:
    partition = make_partition(leader_epoch=5)
    partition.check_leader_epoch(-1)
    partition.check_leader_epoch(5)
    with pytest.raises(errors.FencedLeaderEpoch):
        partition.check_leader_epoch(4)
    with pytest.raises(errors.UnknownLeaderEpoch):
        partition.check_leader_epoch(6)


def test_who_reads_up_to_where() -> None:
    assert read_bound(isolation=0) == "high_watermark"
    assert read_bound(isolation=1) == "committed"


# States


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


@pytest.mark.parametrize(
    ("action", "roles"),
    [
        ("append", {"LEADING"}),
        ("commit", {"LEADING", "FOLLOWING"}),
        ("read", {"LEADING", "FOLLOWING", "IDLE"}),
        ("flush", {"LEADING", "FOLLOWING", "IDLE"}),
        ("trim", {"LEADING", "FOLLOWING"}),
        ("compact", {"LEADING", "FOLLOWING"}),
        ("move", {"LEADING", "FOLLOWING"}),
    ],
)
def test_what_is_allowed_by_state_and_role(action: str, roles: set[str]) -> None:
    for state in STATES:
        by_role = {role.name for role in Role if getattr(allowed(state, role), action)}
        assert by_role == (roles if getattr(state.allows, action) else set())


def test_a_move_goes_one_way() -> None:
    way = [PartitionState.ONLINE, PartitionState.MOVING, PartitionState.SWITCHING, PartitionState.ONLINE]
    steps = set(pairwise(way)) | {(PartitionState.MOVING, PartitionState.ONLINE)}
    found = {(one, other) for one in way for other in way if one.may_become(other)}
    assert found == steps


# Roles


def no_rule() -> int:
    return 0


def test_without_a_role_nothing_is_appended_answered_or_committed(make_partition: MakePartition) -> None:
    led = make_partition()
    append(led)
    led.close(sync=True)
    opened = make_partition(commit_rule=no_rule)
    partition = Partition(opened.key, opened.log, opened.config)
    assert (partition.role, partition.log.high_watermark, partition.log.log_end_offset) == (Role.IDLE, 0, 1)
    partition.advance()
    assert partition.log.high_watermark == 0
    for refused in (lambda: append(partition), lambda: partition.check_leader_epoch(-1)):
        with pytest.raises(errors.NotLeaderOrFollower, match="t-0"):
            refused()
    partition.become_leader(3)
    assert (partition.log.high_watermark, partition.leader_epoch) == (1, 3)


def test_only_who_begins_to_lead_begins_its_epoch_in_the_log(make_partition: MakePartition) -> None:
    partition = make_partition(leader_epoch=2)
    assert partition.log.epochs.entries == ((2, 0),)
    append(partition)
    partition.resign(4)
    partition.become_follower(4, no_rule)
    assert partition.log.epochs.entries == ((2, 0),), "batches of the leader's that are older would be refused"
    partition.become_leader(6)
    assert partition.log.epochs.entries == ((2, 0), (6, 1))


def test_a_broker_that_ceases_to_lead_fails_what_waits_and_is_told_once(make_partition: MakePartition) -> None:
    told, waiter = list[str](), Waiter()
    partition = make_partition(on_unloaded=lambda gone: told.append(gone.role.name))
    append(partition, waiter.call(0))
    partition.add_reader(waiter, "high_watermark")
    partition.become_follower(1, no_rule)
    partition.become_follower(2, no_rule)
    partition.resign(3)
    ((_, error),) = waiter.done
    assert isinstance(error, errors.NotLeaderOrFollower)
    assert told == ["IDLE"]
    assert waiter.moves > 0
    with pytest.raises(errors.NotLeaderOrFollower):
        partition.delete_records(0)


def test_a_leader_in_a_new_epoch_has_ceased_to_lead_in_the_one_before(make_partition: MakePartition) -> None:
    epochs, waiter = list[int](), Waiter()
    partition = make_partition(on_unloaded=lambda gone: epochs.append(gone.leader_epoch))
    append(partition, waiter.call(0))
    partition.become_leader(7)
    assert epochs == [0]
    assert isinstance(waiter.done[0][1], errors.NotLeaderOrFollower)
    assert append(partition, waiter.call(1)) == 2
    flush(partition)
    assert waiter.done[1] == (1, None)
    with pytest.raises(errors.FencedLeaderEpoch):
        partition.check_leader_epoch(0)
    with pytest.raises(AssertionError):
        partition.become_leader(7)


def test_a_flush_that_ends_in_another_role_commits_by_the_rule_of_that_role(make_partition: MakePartition) -> None:
    partition = make_partition()
    append(partition)
    plan = present(partition.prepare_flush())
    plan.run()
    partition.become_follower(1, no_rule)
    partition.flushed(plan)
    assert (partition.log.recovery_point, partition.log.high_watermark) == (1, 0)
    partition.resign(2)
    partition.advance()
    assert partition.log.high_watermark == 0


def test_a_flush_from_before_a_truncation_commits_nothing(make_partition: MakePartition) -> None:
    partition = make_partition()
    append(partition)
    append(partition)
    plan = present(partition.prepare_flush())
    plan.run()
    truncate_to(partition.log, 1, NOW_MS)
    partition.flushed(plan)
    assert (partition.log.log_end_offset, partition.log.high_watermark, partition.log.recovery_point) == (1, 1, 1)


def test_an_offline_partition_has_an_epoch_and_leads_nothing(make_partition: MakePartition) -> None:
    opened = make_partition()
    told = list[str]()
    partition = Partition(opened.key, None, opened.config, on_leadership=lambda each: told.append(each.role.name))
    partition.become_leader(3)
    assert (partition.leader_epoch, told, any(partition.allows)) == (3, [], False)


def test_a_client_is_told_the_address_of_the_listener_that_it_came_by() -> None:
    listeners = parse_listeners(
        "inside=plaintext://127.0.0.1:1,outside=ssl://10.0.0.1:2", "outside=logs.example.org:7443"
    )
    cluster = LoneClusterView("c", 7, listeners)
    assert cluster.brokers("outside") == [(7, "logs.example.org", 7443, "")]
    assert cluster.brokers("inside") == [(7, "", 0, "")]


def test_one_broker_leads_what_it_can_read_in_the_partitions_leader_epoch(make_partition: MakePartition) -> None:
    cluster = LoneClusterView("c", 7)

    def leadership(partition: Partition) -> Leadership:
        return cluster.leadership(bytes(16), partition.key.partition, partition)

    first, second = make_partition(0, leader_epoch=2), make_partition(1, leader_epoch=5)
    assert cluster.brokers("default") == [(7, "", 0, "")]
    assert [leadership(each) for each in (first, second)] == [(7, 2, [7], [7]), (7, 5, [7], [7])]
    second.set_read_only("its disk takes no writes")
    assert leadership(second) == (7, 5, [7], [7])
    second.take_offline("its disk has failed")
    assert leadership(second) == (-1, 5, [7], [])
