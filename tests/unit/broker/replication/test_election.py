"""Who stands for election, and when."""

from msgspec.structs import replace

from warmlog_broker.replication import election
from warmlog_broker.replication.events import NEVER, Session, Times
from warmlog_broker.replication.record import NO_LEADER, PartitionRecord

RECORD = PartitionRecord(leader=1, leader_epoch=4, replicas=(1, 2, 3, 4), isr=(1, 3, 2), min_isr=2)
READY = {2: Session(12), 3: Session(13), 4: Session(14)}
TIMES = Times(rank_ms=150, grace_ms=2000)


def at_ms(node: int, heard_ms: int = NEVER, record: PartitionRecord = RECORD) -> int | None:
    return election.standing_at_ms(record, READY, node, vacant_since_ms=100, heard_ms=heard_ms, times=TIMES)


def test_members_stand_in_the_order_of_the_replicas() -> None:
    assert [at_ms(node) for node in (2, 3, 4)] == [100, 250, None]


def test_who_has_stopped_cleanly_comes_first() -> None:
    assert election.candidates(RECORD, {**READY, 2: Session(12, was_clean=False)}) == (3, 2)


def test_who_hands_over_does_not_stand() -> None:
    assert election.candidates(RECORD, {**READY, 2: Session(12, is_ready=False)}) == (3,)


def test_other_eligible_replicas_stand_only_if_no_member_is_left() -> None:
    record = replace(RECORD, isr=(1,), elr=(2, 4))
    assert election.candidates(record, {**READY, 1: Session(11)}) == (1,)
    assert election.candidates(record, READY) == (2, 4)


def test_who_has_just_heard_from_the_leader_waits_for_its_registration() -> None:
    assert at_ms(2, heard_ms=90) == 2090
    assert at_ms(2, heard_ms=90, record=replace(RECORD, leader=NO_LEADER)) == 100


def test_an_election_needs_that_the_leader_is_not_registered() -> None:
    assert election.conditions(RECORD, 2, 12) == {2: 12, 1: 0}
    assert election.conditions(replace(RECORD, leader=NO_LEADER), 2, 12) == {2: 12}
    assert election.candidacy(RECORD, READY).dead == {1}
