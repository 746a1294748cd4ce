"""What a leader makes of its followers' fetches: what is committed, who is in sync, whether it still leads."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from warmlog_broker.replication import followers as fol
from warmlog_broker.replication.alignment import Log
from warmlog_broker.replication.events import NEVER, Fetch, Report, Session
from warmlog_broker.replication.followers import Follower
from warmlog_broker.replication.record import PartitionRecord

RECORD = PartitionRecord(leader=1, leader_epoch=4, replicas=(1, 2, 3), isr=(1, 2), min_isr=2)
LOG = Log(0, 20, 15, 5)


def fetch(offset: int = 12, flushed: int = 10, broker_epoch: int = 7) -> Fetch:
    return Fetch(2, broker_epoch, 4, 1, offset, 4, flushed, 0, 900)


@given(st.dictionaries(st.sampled_from([2, 3]), st.integers(0, 30)), st.booleans(), st.integers(1, 3))
def test_nothing_is_committed_that_a_member_has_not_flushed(
    flushed: dict[int, int], is_joining: bool, min_isr: int
) -> None:
    record = replace(RECORD, min_isr=min_isr)
    known = {node: Follower(7, offset, 0) for node, offset in flushed.items()}
    maximal = fol.maximal_isr(record, replace(record, isr=(1, 2, 3)) if is_joining else None)
    committed = fol.committed(record, maximal, known, 1, LOG)
    assert committed >= LOG.high_watermark
    if committed > LOG.high_watermark:
        assert len(record.isr) >= min_isr
        assert committed <= min(LOG.flushed, *(flushed[node] for node in maximal - {1}))


def test_a_report_counts_in_the_registration_of_the_last_fetch() -> None:
    known = fol.after_fetch(None, fetch(), 20, 1000)
    assert fol.after_report(known, Report(2, 7, 4, 14), 20, 1001).flushed == 14
    assert fol.after_report(known, Report(2, 6, 4, 14), 20, 1001).flushed == 10


def test_flushed_is_not_counted_above_what_agrees() -> None:
    assert fol.after_fetch(None, fetch(offset=12, flushed=14), 20, 1000).flushed == 12


def test_a_replica_joins_with_all_that_is_committed_and_only_as_registered() -> None:
    follower, session = Follower(7, 12, 0), Session(7)
    assert fol.may_join(RECORD, 3, follower, session, LOG, 12)
    assert not fol.may_join(RECORD, 3, follower, session, LOG, 13), (
        "the leader does not know what is committed before 13"
    )
    assert not fol.may_join(RECORD, 3, replace(follower, flushed=4), session, LOG, 0)
    assert not fol.may_join(RECORD, 3, follower, Session(8), LOG, 12)
    assert not fol.may_join(RECORD, 3, follower, Session(7, is_ready=False), LOG, 12)
    assert not fol.may_join(RECORD, 3, follower, None, LOG, 12)
    assert not fol.may_join(RECORD, 3, follower, session, replace(LOG, start=2), 12), "it has what was deleted"


def test_a_member_that_flushes_too_slowly_lags_even_if_it_fetches() -> None:
    known = fol.after_fetch(None, fetch(20, 20), 20, 1000)
    sessions = {2: Session(7)}
    for now_ms in range(1100, 3000, 100):
        known = fol.after_fetch(known, fetch(now_ms, 20), now_ms, now_ms)
    late = fol.lagging(RECORD, {2: known}, sessions, 1, since_ms=0, now_ms=3000, lag_ms=1500)
    assert late == {2}
    caught_up = fol.after_fetch(fol.after_fetch(known, fetch(3000, 2900), 3000, 3000), fetch(3050, 3050), 3060, 3060)
    assert not fol.lagging(RECORD, {2: caught_up}, sessions, 1, since_ms=0, now_ms=3100, lag_ms=1500)
    assert fol.lagging(RECORD, {2: caught_up}, {}, 1, since_ms=0, now_ms=3000, lag_ms=1500) == {2}


def test_a_leader_is_confirmed_by_all_who_may_be_elected() -> None:
    known = {2: Follower(7, 12, 0, echoed_ms=800), 3: Follower(7, 12, 0, echoed_ms=700)}
    members = frozenset(RECORD.isr)
    assert fol.confirmed_ms(RECORD, members, known, 1, read_ms=NEVER, now_ms=900) == 800
    assert fol.confirmed_ms(RECORD, members | {3}, known, 1, read_ms=NEVER, now_ms=900) == 700
    assert fol.confirmed_ms(RECORD, members, {}, 1, read_ms=650, now_ms=900) == 650
    waiting = replace(RECORD, isr=(1,), elr=(2,))
    assert fol.confirmed_ms(waiting, frozenset((1,)), known, 1, read_ms=NEVER, now_ms=900) == 800
    alone = replace(RECORD, isr=(1,), elr=())
    assert fol.confirmed_ms(alone, frozenset((1,)), {}, 1, read_ms=NEVER, now_ms=900) == 900
