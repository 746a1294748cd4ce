"""Single turns of a replica: the cases that the simulation has found, and the ones that a shell relies on."""

from typing import TypeVar

from msgspec.structs import replace

from warmlog_broker.replication import events as ev
from warmlog_broker.replication import leading
from warmlog_broker.replication.alignment import Diverging, Log
from warmlog_broker.replication.record import NO_LEADER, PartitionRecord, Withdraw, changed
from warmlog_broker.replication.replica import Replica, Role, accepts_appends
from warmlog_broker.replication.step import step

RECORD = PartitionRecord(leader=2, leader_epoch=4, replicas=(1, 2, 3), isr=(1, 2, 3), min_isr=2)
SESSIONS = {node: ev.Session(10 + node) for node in (1, 2, 3)}
LOG = Log(0, 20, 20, 15, ((4, 0),))
Action = TypeVar("Action")


class Driven:
    """Replica 1, and what it did last."""

    def __init__(self, record: PartitionRecord = RECORD, log: Log = LOG) -> None:
        self.replica = Replica(1, 1, log)
        self.now_ms = 1000
        self.actions: list[ev.Action] = []
        self.see(ev.SessionsSeen(SESSIONS, 11))
        self.see(ev.RecordSeen(record, 50))

    def see(self, event: ev.Event) -> None:
        self.replica, self.actions = step(self.replica, event, self.now_ms)

    def did(self, kind: type[Action]) -> Action:
        """Return the only action of a kind."""
        found = [action for action in self.actions if isinstance(action, kind)]
        assert len(found) == 1, self.actions
        return found[0]

    def fetch(self) -> ev.Fetch:
        message = self.did(ev.Send).message
        assert isinstance(message, ev.Fetch)
        return message

    def answer(
        self, fetch: ev.Fetch, verdict: ev.Verdict = ev.Verdict.AGREES, next_offset: int = 0, **more: object
    ) -> None:
        answer = ev.Answer(fetch.number, fetch.leader_epoch, fetch.offset, verdict)
        self.see(ev.Answered(replace(answer, **more), max(next_offset, fetch.offset)))

    def after(self, ms: int) -> None:
        self.now_ms += ms
        self.see(ev.Ticked())


def leader() -> Driven:
    return Driven(replace(RECORD, leader=1))


def fetched(node: int, offset: int = 20, flushed: int = 20, number: int = 1) -> ev.Fetch:
    return ev.Fetch(node, 10 + node, 4, number, offset, 4, flushed, 0, 990)


def test_a_follower_appends_after_the_leader_has_agreed_and_reports_its_flush() -> None:
    driven = Driven()
    assert driven.replica.role is Role.ALIGNING
    driven.answer(driven.fetch(), next_offset=22, high_watermark=18)
    assert driven.replica.role is Role.FOLLOWING
    assert driven.replica.log.high_watermark == 18
    driven.did(ev.Append)
    assert driven.did(ev.Send).message == replace(driven.replica.fetch, offset=22), (
        "the next fetch goes before the flush"
    )
    driven.see(ev.Flushed(22, 0))
    assert driven.did(ev.Send).message == ev.Report(1, 11, 4, 22)


def test_a_cut_below_the_high_watermark_is_refused_unless_it_is_a_recovery() -> None:
    driven = Driven()
    driven.answer(driven.fetch(), ev.Verdict.DIVERGES, diverging=Diverging(3, 9))
    assert driven.replica.role is Role.REFUSED
    recovering = Driven(replace(RECORD, recovering="by hand"))
    recovering.answer(recovering.fetch(), ev.Verdict.DIVERGES, diverging=Diverging(4, 9))
    assert recovering.did(ev.Truncate).end == 9
    recovering.see(ev.Cut(Log(0, 9, 9, 9, ((4, 0),), 1)))
    recovering.answer(recovering.fetch())
    assert recovering.did(ev.Obey).recovering == "by hand"


def test_the_start_of_the_leader_is_taken_when_the_high_watermark_has_reached_it() -> None:
    driven = Driven(log=Log(0, 20, 12, 12, ((4, 0),)))
    driven.answer(driven.fetch(), high_watermark=20, log_start=16)
    assert not any(isinstance(action, ev.RaiseStart) and action.start > 12 for action in driven.actions)
    driven.see(ev.Flushed(20, 0))
    assert driven.did(ev.RaiseStart).start == 16


def test_the_start_is_raised_before_what_a_full_disk_refuses_and_although_it_does() -> None:
    driven = Driven()
    driven.answer(driven.fetch(), next_offset=22, high_watermark=20, log_start=16)
    kinds = [type(action) for action in driven.actions]
    assert kinds.index(ev.RaiseStart) < kinds.index(ev.Append)
    driven.see(ev.NotAppended(replace(LOG, high_watermark=20)))
    assert driven.replica.raising_start == 16


def test_what_a_full_disk_refuses_is_not_asked_for_all_the_time() -> None:
    driven = Driven()
    driven.answer(driven.fetch(), next_offset=22)
    driven.see(ev.NotAppended(LOG))
    for _ in range(20):
        driven.after(100)
        assert driven.actions == []
    driven.after(500)
    assert driven.fetch().offset == 20


def test_a_recovery_that_goes_back_below_the_start_of_the_log_empties_it() -> None:
    driven = Driven(replace(RECORD, recovering="by hand"), Log(12, 20, 20, 15, ((4, 12),)))
    driven.answer(driven.fetch(), ev.Verdict.DIVERGES, diverging=Diverging(-1, 9), log_start=3)
    assert driven.did(ev.Empty).start == 3


def test_an_empty_log_begins_with_the_batch_that_holds_its_start() -> None:
    driven = Driven(replace(RECORD, isr=(2, 3)), Log(12, 12, 12, 12))
    fetch = driven.fetch()
    driven.see(ev.Answered(ev.Answer(fetch.number, 4, 12, ev.Verdict.AGREES, log_start=12), 10))
    assert driven.did(ev.Empty) == ev.Empty(12, 0, 10)
    driven.after(10_000)
    assert driven.actions == [], "nothing is fetched during the cut"
    driven.see(ev.Cut(Log(12, 12, 12, 12, (), 1)))
    driven.answer(driven.fetch(), next_offset=15)
    driven.did(ev.Append)
    assert (driven.replica.log.start, driven.replica.log.end) == (12, 15)


def test_a_leader_commits_what_all_members_have_flushed_and_then_loads() -> None:
    driven = leader()
    driven.see(fetched(2))
    assert not leading.is_known(driven.replica)
    driven.see(fetched(3, flushed=19))
    assert driven.did(ev.Commit).high_watermark == 19
    driven.see(ev.Report(3, 13, 4, 20))
    assert driven.did(ev.Commit).high_watermark == 20
    assert leading.is_known(driven.replica)


def test_a_reader_is_sent_to_the_in_sync_replica_of_its_rack_that_has_most_and_that_serves_while_it_hears() -> None:
    driven = leader()
    racks = {1: "a", 2: "b", 3: "b"}
    driven.see(ev.SessionsSeen({node: replace(SESSIONS[node], rack=rack) for node, rack in racks.items()}, 11))
    assert leading.near_replica(driven.replica, "b", 0) == NO_LEADER, "none has fetched in this epoch"
    driven.see(fetched(2, flushed=18))
    driven.see(fetched(3))
    assert leading.near_replica(driven.replica, "b", 18) == 3
    assert leading.near_replica(driven.replica, "b", 19) == NO_LEADER, "above what is committed"
    assert leading.near_replica(driven.replica, "a", 18) == leading.near_replica(driven.replica, "c", 18) == NO_LEADER
    follower = Driven()
    assert not leading.may_serve(follower.replica, follower.now_ms)
    follower.answer(follower.fetch(), high_watermark=18)
    assert leading.may_serve(follower.replica, follower.now_ms + 2000)
    assert not leading.may_serve(follower.replica, follower.now_ms + 2001)
    assert leading.near_replica(follower.replica, "b", 0) == NO_LEADER
    follower.see(ev.RecordSeen(replace(RECORD, isr=(2, 3)), 51))
    assert not leading.may_serve(follower.replica, follower.now_ms)


def test_a_candidate_stops_fetching_and_leads_when_it_is_elected() -> None:
    driven = Driven()
    driven.see(ev.SessionsSeen({1: SESSIONS[1]}, 11))
    driven.after(1)
    write = driven.did(ev.Write)
    assert (driven.replica.role, driven.replica.fetch) == (Role.STANDING, None)
    assert write.sessions == {1: 11, 2: 0}
    driven.see(ev.Written(write.number, ev.Outcome.SUCCEEDED, 51, write.record))
    assert (driven.replica.role, driven.replica.epoch) == (Role.LEADING, 5)
    assert accepts_appends(driven.replica)


def standing_for_an_unknown_outcome() -> tuple[Driven, ev.Write]:
    """Its write has been sent for the second time, as the outcome of the first is not known."""
    driven = Driven()
    driven.see(ev.SessionsSeen({1: SESSIONS[1]}, 11))
    driven.after(1)
    write = driven.did(ev.Write)
    driven.see(ev.Written(write.number, ev.Outcome.UNKNOWN))
    driven.after(60)
    assert driven.did(ev.Write) == write
    return driven, write


def test_an_election_of_unknown_outcome_is_written_again_and_withdrawn_when_the_leader_is_back() -> None:
    driven, write = standing_for_an_unknown_outcome()
    driven.see(ev.Written(write.number, ev.Outcome.FAILED, 50, RECORD))
    assert driven.replica.role is Role.STANDING, "the first copy may be applied yet"
    withdrawal = driven.did(ev.Write)
    assert withdrawal.record == changed(RECORD, Withdraw(), withdrawal.record.by)
    driven.see(ev.Written(withdrawal.number, ev.Outcome.SUCCEEDED, 51, withdrawal.record))
    assert driven.replica.role is Role.ALIGNING


def test_a_write_of_unknown_outcome_is_not_sent_again_while_it_is_under_way_and_less_often_in_time() -> None:
    """etcd may be away for a thousand partitions at once."""
    driven, write = standing_for_an_unknown_outcome()
    for _ in range(20):
        driven.after(100)
        assert driven.actions == []
    driven.see(ev.Written(write.number, ev.Outcome.UNKNOWN))
    driven.after(900)
    assert driven.actions == []
    driven.after(100)
    assert driven.did(ev.Write) == write


def test_a_damaged_replica_registers_again_then_excludes_itself_then_begins_anew() -> None:
    driven = Driven()
    driven.see(ev.Failed("bits have flipped"))
    driven.did(ev.Register)
    driven.see(ev.SessionsSeen({**SESSIONS, 1: ev.Session(21)}, 21))
    write = driven.did(ev.Write)
    assert write.record.isr == (2, 3)
    driven.see(ev.Written(write.number, ev.Outcome.SUCCEEDED, 51, write.record))
    assert driven.did(ev.Empty).start == 0
    driven.see(ev.Cut(Log(truncations=1)))
    assert driven.replica.role is Role.ALIGNING


def test_a_replica_that_is_damaged_again_excludes_itself_again_if_it_was_taken_in() -> None:
    driven = Driven()
    for broker_epoch in (21, 31):
        driven.see(ev.Failed("bits have flipped"))
        driven.see(ev.SessionsSeen({**SESSIONS, 1: ev.Session(broker_epoch)}, broker_epoch))
        write = driven.did(ev.Write)
        driven.see(ev.Written(write.number, ev.Outcome.SUCCEEDED, 40 + broker_epoch, write.record))
        driven.see(ev.Cut(Log(truncations=1)))
        driven.see(ev.RecordSeen(RECORD, 41 + broker_epoch))


def test_a_damaged_replica_that_is_not_eligible_begins_anew_under_its_next_registration() -> None:
    driven = Driven(replace(RECORD, isr=(2,), elr=()))
    driven.see(ev.Failed("bits have flipped"))
    driven.did(ev.Register)
    driven.see(ev.SessionsSeen({**SESSIONS, 1: ev.Session(21)}, 21))
    assert driven.did(ev.Empty).start == 0


def test_a_cut_that_was_under_way_does_not_make_a_damaged_log_sound() -> None:
    driven = Driven()
    driven.answer(driven.fetch(), ev.Verdict.DIVERGES, diverging=Diverging(4, 18))
    driven.see(ev.Failed("bits have flipped"))
    driven.see(ev.Cut(Log(0, 18, 18, 15, ((4, 0),), 1)))
    assert driven.replica.role is Role.REFUSED


def test_the_last_copy_is_not_given_away() -> None:
    driven = Driven(replace(RECORD, leader=1, isr=(1,), elr=(), min_isr=1))
    driven.see(ev.Failed("bits have flipped"))
    driven.see(ev.SessionsSeen({**SESSIONS, 1: ev.Session(21)}, 21))
    driven.after(100)
    assert not any(isinstance(action, ev.Write | ev.Empty) for action in driven.actions)


def test_a_leader_whose_disk_hangs_hands_over() -> None:
    driven = leader()
    driven.see(ev.Produced(25))
    for _ in range(120):
        driven.see(fetched(2, 25, 25))
        driven.see(fetched(3, 25, 25))
        driven.after(100)
    assert driven.replica.proposal is not None
    assert driven.replica.proposal.write.record.leader == 2
    assert not accepts_appends(driven.replica)


def test_a_leader_that_has_written_another_name_is_not_confirmed_any_more() -> None:
    driven = leader()
    driven.see(ev.HandOverAsked(2))
    for node in (2, 3):
        driven.see(fetched(node))
    assert driven.did(ev.Write).record.leader == 2
    driven.now_ms += 50
    for node in (2, 3):
        driven.see(ev.Fetch(node, 10 + node, 4, 2, 20, 4, 20, 0, 1040))
    assert leading.confirmed_ms(driven.replica, 1050) == 1000


def test_a_record_of_an_older_epoch_than_the_log_is_refused() -> None:
    driven = Driven(replace(RECORD, leader_epoch=3))
    assert driven.replica.role is Role.REFUSED
    assert "gone back" in driven.did(ev.Alarm).text


def test_a_record_of_the_same_epoch_with_another_leader_is_refused() -> None:
    for driven in (Driven(), leader()):
        before = driven.replica.record
        driven.see(ev.RecordSeen(replace(before, leader=3), 51))
        assert driven.replica.role is Role.REFUSED
        assert f"two leaders of the epoch 4: {before.leader}, and later 3" in driven.did(ev.Alarm).text
        assert not accepts_appends(driven.replica)


def test_an_operator_makes_a_replica_lead_that_is_not_eligible() -> None:
    driven = Driven(replace(RECORD, leader=NO_LEADER, isr=(), elr=(3,)))
    driven.see(ev.RecoveryAsked("by hand"))
    assert driven.did(ev.Write).record.recovering == "by hand"
    assert driven.did(ev.Write).record.isr == (1,)


def test_echoes_of_followers_whose_fetches_wait_confirm_the_leader_and_keep_them_in_sync() -> None:
    driven = leader()
    for node in (2, 3):
        driven.see(fetched(node))
    for _ in range(20):
        driven.now_ms += 1000
        driven.see(ev.Ticked(echoes=dict.fromkeys((2, 3), driven.now_ms - 100)))
        assert driven.actions == []
        assert leading.confirmed_ms(driven.replica, driven.now_ms) == driven.now_ms - 100
    driven.now_ms += 11_000
    driven.see(ev.Ticked(echoes={2: driven.now_ms - 100}))
    assert driven.did(ev.Write).record.isr == (1, 2)


def test_a_follower_whose_fetch_the_leader_has_asks_again_only_after_a_longer_while() -> None:
    driven = Driven()
    driven.answer(driven.fetch())
    for _ in range(32):
        driven.now_ms += 1000
        driven.see(ev.Ticked(heard_ms=driven.now_ms - 100))
        assert driven.actions == []
    driven.now_ms += 1000
    driven.see(ev.Ticked(heard_ms=driven.now_ms - 100))
    assert driven.fetch() == driven.replica.fetch


def test_a_follower_that_has_registered_again_asks_again_at_once() -> None:
    for is_asked_meanwhile in (False, True):
        driven = Driven()
        driven.answer(driven.fetch())
        before = driven.fetch()
        driven.see(ev.SessionsSeen({2: SESSIONS[2], 3: SESSIONS[3]}, 0))
        assert driven.actions == [], "the fetch that waits counts until the next registration"
        if is_asked_meanwhile:
            driven.answer(before)
            before = driven.fetch()
            assert before.broker_epoch == 0
        driven.see(ev.SessionsSeen({**SESSIONS, 1: ev.Session(21)}, 21))
        assert driven.fetch() == replace(before, number=driven.fetch().number, broker_epoch=21)
        assert driven.fetch().number > before.number
        driven.see(ev.Ticked(heard_ms=driven.now_ms))
        assert driven.actions == [], "once"


def test_a_fetch_that_does_not_count_is_refused() -> None:
    driven = leader()
    driven.see(fetched(2))
    driven.see(replace(fetched(2, number=2), broker_epoch=0))
    refused = driven.did(ev.Send).message
    assert isinstance(refused, ev.Answer)
    assert (refused.number, refused.verdict) == (2, ev.Verdict.REFUSED)


def test_a_member_that_stops_stays_in_sync_until_the_next_leader_knows_how_far_it_is() -> None:
    driven = Driven(replace(RECORD, leader=1, isr=(1, 2)))
    driven.see(ev.SessionsSeen({**SESSIONS, 2: replace(SESSIONS[2], is_ready=False)}, 11))
    driven.after(100)
    assert driven.actions == []
    driven.see(fetched(2))
    assert driven.did(ev.Commit).high_watermark == 20
    assert leading.is_known(driven.replica)
    driven.after(100)
    assert driven.did(ev.Write).record.isr == (1,)
