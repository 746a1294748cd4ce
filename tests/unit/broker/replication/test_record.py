"""The record of a partition: its bytes, and what each change makes of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from warmlog_broker.replication import record as rec
from warmlog_broker.replication.record import NO_LEADER, Author, PartitionRecord, changed, from_bytes, to_bytes
from warmlog_protocol.errors import ApiError, FencedLeaderEpoch, InvalidRequest, UnsupportedVersion, WarmlogError

THREE = PartitionRecord(leader=1, leader_epoch=4, replicas=(1, 2, 3), isr=(1, 2, 3), min_isr=2)
NODES = st.integers(1, 5)
SETS = st.frozensets(NODES, max_size=3)
CHANGES = st.one_of(
    st.builds(rec.Elect, SETS),
    st.builds(rec.Withdraw),
    st.builds(rec.Expand, NODES),
    st.builds(rec.Shrink, SETS, st.booleans()),
    st.builds(rec.HandOver, NODES),
    st.builds(rec.Exclude),
    st.builds(rec.Restart, st.booleans()),
    st.builds(rec.SetMinIsr, st.integers(1, 4)),
    st.builds(rec.Grow, st.lists(NODES, max_size=4).map(tuple)),
    st.builds(rec.Complete),
    st.builds(rec.Cancel),
)


def after(record: PartitionRecord, change: rec.Change, node: int = 1) -> PartitionRecord:
    changed_record = changed(record, change, Author(node, 1, 1))
    assert isinstance(changed_record, PartitionRecord), changed_record
    return changed_record


@given(st.lists(st.tuples(CHANGES, NODES), max_size=12))
def test_a_record_keeps_its_rules_over_any_changes(changes: list[tuple[rec.Change, int]]) -> None:
    record = THREE
    for number, (change, node) in enumerate(changes):
        following = changed(record, change, Author(node, 1, number))
        if isinstance(following, ApiError):
            continue
        assert from_bytes(to_bytes(following)) == following
        assert not set(following.isr) & set(following.elr)
        assert not following.elr or len(following.isr) < following.required
        assert following.leader in (NO_LEADER, *following.isr)
        assert set(following.replicas) >= set(following.isr) | set(following.elr) | set(following.last_known_elr)
        assert following.leader_epoch >= record.leader_epoch
        assert following.leader == record.leader or following.leader_epoch > record.leader_epoch
        if not isinstance(change, rec.Expand):
            assert following.eligible <= record.eligible, "only the leader makes a replica eligible"
        record = following


def test_fields_of_a_newer_version_survive_a_change() -> None:
    value = json.loads(to_bytes(THREE)) | {"tier": {"start": 12}}
    record = after(from_bytes(json.dumps(value).encode()), rec.Shrink(frozenset({3})))
    assert json.loads(to_bytes(record))["tier"] == {"start": 12}


def test_what_may_be_missing_has_its_default() -> None:
    short = b'{"v": 1, "leader": 1, "leader_epoch": 4, "replicas": [1, 2, 3], "isr": [1, 2, 3]}'
    assert from_bytes(short) == replace(THREE, min_isr=1)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[1]",
        b'{"v": 1, "leader": 1}',
        b'{"v": 1, "leader": "1", "leader_epoch": 4, "replicas": [1], "isr": [1]}',
        b'{"v": 1, "leader": 2, "leader_epoch": 4, "replicas": [1, 2], "isr": [1]}',
        b'{"v": 1, "leader": 1, "leader_epoch": 4, "replicas": [1], "isr": [1, 2]}',
    ],
)
def test_a_value_that_is_no_record_is_refused(value: bytes) -> None:
    with pytest.raises(WarmlogError):
        from_bytes(value)


def test_another_version_is_refused() -> None:
    with pytest.raises(UnsupportedVersion):
        from_bytes(to_bytes(THREE).replace(b'"v":1', b'"v":2'))


def test_who_leaves_stays_eligible_only_while_nothing_can_be_committed() -> None:
    two = after(THREE, rec.Shrink(frozenset({3})))
    assert (two.isr, two.elr) == ((1, 2), ())
    one = after(two, rec.Shrink(frozenset({2})))
    assert (one.isr, one.elr) == ((1,), (2,))
    assert after(one, rec.Expand(3)).elr == ()
    assert after(one, rec.SetMinIsr(1)).elr == ()


def test_a_replica_that_excludes_itself_is_not_eligible_and_remembered() -> None:
    alone = after(THREE, rec.Shrink(frozenset({2, 3})))
    assert (alone.isr, alone.elr) == ((1,), (2, 3))
    excluded = after(alone, rec.Exclude())
    assert (excluded.leader, excluded.leader_epoch) == (NO_LEADER, 5)
    assert (excluded.isr, excluded.elr, excluded.last_known_elr) == ((), (2, 3), (1,))


def test_an_eligible_replica_that_is_elected_is_alone_in_sync() -> None:
    one = after(THREE, rec.Shrink(frozenset({2, 3})))
    elected = after(one, rec.Elect(frozenset({1})), 3)
    assert (elected.leader, elected.isr, elected.elr) == (3, (3,), (1, 2))


def test_another_replica_is_elected_only_as_a_recovery() -> None:
    one = after(THREE, rec.Shrink(frozenset({3})))
    assert isinstance(changed(one, rec.Elect(), Author(3)), InvalidRequest)
    recovered = after(one, rec.Elect(recovering="by hand"), 3)
    assert (recovered.leader, recovered.isr, recovered.elr) == (3, (3,), ())


def test_only_the_leader_changes_the_in_sync_set() -> None:
    assert isinstance(changed(THREE, rec.Shrink(frozenset({3})), Author(2)), FencedLeaderEpoch)
    assert isinstance(changed(THREE, rec.HandOver(3), Author(2)), FencedLeaderEpoch)


def test_a_leader_that_starts_again_leaves_the_epoch_to_others() -> None:
    assert after(THREE, rec.Restart()).leader == NO_LEADER
    assert after(THREE, rec.Restart(was_closed=True)).leader == 1
    alone = after(THREE, rec.Shrink(frozenset({2, 3})))
    assert after(replace(alone, elr=()), rec.Restart()).leader == 1


def test_a_reassignment_adds_first_and_removes_when_the_new_ones_are_in_sync() -> None:
    grown = after(THREE, rec.Grow((1, 4, 5)))
    assert (grown.replicas, grown.adding, grown.removing) == ((1, 4, 5, 2, 3), (4, 5), (2, 3))
    assert grown.required == 2, "who is being added does not make it harder to commit"
    assert isinstance(changed(grown, rec.Complete(), Author(1)), InvalidRequest)
    both = after(after(grown, rec.Expand(4)), rec.Expand(5))
    done = after(both, rec.Complete())
    assert (done.replicas, done.isr, done.adding, done.removing) == ((1, 4, 5), (1, 4, 5), (), ())
    cancelled = after(both, rec.Cancel())
    assert (set(cancelled.replicas), set(cancelled.isr)) == ({1, 2, 3}, {1, 2, 3})


def test_an_epoch_begins_when_replicas_leave_since_they_may_come_back_without_their_logs() -> None:
    grown = after(THREE, rec.Grow((1, 2)))
    assert grown.leader_epoch == THREE.leader_epoch
    left = after(grown, rec.Complete())
    assert (left.leader, left.leader_epoch) == (1, THREE.leader_epoch + 1)
    added = after(after(left, rec.Grow((1, 2, 3))), rec.Expand(3))
    assert after(added, rec.Complete()).leader_epoch == left.leader_epoch, "no replica leaves"
    assert after(added, rec.Cancel()).leader_epoch == left.leader_epoch + 1


def test_a_leader_that_is_removed_hands_over_first() -> None:
    grown = after(after(THREE, rec.Grow((2, 3))), rec.SetMinIsr(1))
    assert isinstance(changed(grown, rec.Complete(), Author(1)), InvalidRequest)
    assert after(after(grown, rec.HandOver(2)), rec.Complete(), 2).replicas == (2, 3)
