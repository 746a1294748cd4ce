"""The steps of a reassignment, one after the other."""

from msgspec.structs import replace

from warmlog_broker.replication import record as rec
from warmlog_broker.replication.events import Session
from warmlog_broker.replication.reassignment import next_step, preferred_leader
from warmlog_broker.replication.record import Author, PartitionRecord, changed

RECORD = PartitionRecord(leader=1, leader_epoch=4, replicas=(1, 2, 3), isr=(1, 2, 3), min_isr=2)
SESSIONS = {node: Session(10 + node) for node in (1, 2, 3, 4, 5)}
TARGET = (4, 5, 3)


def after(record: PartitionRecord, change: rec.Change, node: int = 1) -> PartitionRecord:
    changed_record = changed(record, change, Author(node))
    assert isinstance(changed_record, PartitionRecord), changed_record
    return changed_record


def test_a_partition_moves_step_by_step() -> None:
    assert next_step(RECORD, TARGET, SESSIONS) == rec.Grow(TARGET)
    record = after(RECORD, rec.Grow(TARGET))
    assert next_step(record, TARGET, SESSIONS) is None, "the new replicas catch up"
    record = after(after(record, rec.Expand(4)), rec.Expand(5))
    assert next_step(record, TARGET, SESSIONS) == next_step(record, None, SESSIONS) == rec.HandOver(4)
    record = after(record, rec.HandOver(4))
    assert next_step(record, TARGET, SESSIONS) == rec.Complete()
    record = after(record, rec.Complete(), 4)
    assert (record.replicas, record.isr) == (TARGET, TARGET)
    assert next_step(record, TARGET, SESSIONS) is next_step(record, None, SESSIONS) is None


def test_another_target_takes_the_first_one_back() -> None:
    record = after(RECORD, rec.Grow(TARGET))
    assert next_step(record, (1, 2, 4), SESSIONS) == rec.Cancel()
    assert next_step(after(record, rec.Cancel()), (1, 2, 4), SESSIONS) == rec.Grow((1, 2, 4))


def test_a_reassignment_is_taken_back_when_a_replica_that_was_added_leads() -> None:
    record = after(after(after(RECORD, rec.Grow(TARGET)), rec.Expand(4)), rec.Expand(5))
    record = after(record, rec.HandOver(4))
    record = after(record, rec.Shrink(frozenset({1, 5})), 4)
    back = (1, 2, 3)
    assert next_step(record, back, {4: SESSIONS[4]}) is None, "it waits for one of those that were there before"
    step = next_step(record, back, SESSIONS)
    assert step in (rec.HandOver(2), rec.HandOver(3))
    assert isinstance(step, rec.HandOver)
    record = after(record, step, 4)
    assert next_step(record, back, SESSIONS) == rec.Cancel()
    record = after(record, rec.Cancel(), step.to)
    assert sorted(record.replicas) == [1, 2, 3]
    assert record.adding == record.removing == ()


def test_the_first_replica_leads_if_it_is_in_sync_and_able() -> None:
    record = replace(RECORD, leader=2)
    assert preferred_leader(record, SESSIONS) == 1
    assert preferred_leader(RECORD, SESSIONS) is None
    assert preferred_leader(replace(record, isr=(2, 3)), SESSIONS) is None
    assert preferred_leader(record, {2: Session(12)}) is None
    assert preferred_leader(record, {**SESSIONS, 1: Session(11, has_room=False)}) is None
