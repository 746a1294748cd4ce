"""Each rule of replication, and how it is taken out: the simulation has to find that it is missing.

The numbers are those of the failures that each rule prevents, which others have had.
"""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from unit.broker.replication.simulation.broker import FakeBroker
from unit.broker.replication.simulation.disk import Entry, FakeDisk
from unit.broker.replication.simulation.etcd import Item
from warmlog_broker.replication import alignment, following, leading, membership, record, step
from warmlog_broker.replication import events as ev
from warmlog_broker.replication import followers as fol
from warmlog_broker.replication.alignment import Diverging, Log
from warmlog_broker.replication.membership import Comparison
from warmlog_broker.replication.record import Exclude, PartitionRecord, Restart
from warmlog_broker.replication.replica import Role, Turn

Patch = Callable[[pytest.MonkeyPatch], None]
RULES: list[tuple[str, Patch]] = []
"""The numbers of the failures, and what takes the rule out."""


def rule(numbers: str) -> Callable[[Patch], Patch]:
    def add(take_out: Patch) -> Patch:
        RULES.append((numbers, take_out))
        return take_out

    return add


@rule("1")
def a_follower_cuts_to_its_high_watermark(patch: pytest.MonkeyPatch) -> None:
    follow = following.follow

    def cutting(turn: Turn) -> None:
        follow(turn)
        if not turn.replica.is_cutting and turn.replica.log.end > turn.replica.log.high_watermark:
            turn.replica.fetch = None
            turn.actions = [action for action in turn.actions if not isinstance(action, ev.Send)]
            following.cut(turn, turn.replica.log.high_watermark)

    patch.setattr(following, "follow", cutting)


@rule("2")
def a_log_is_compared_once(patch: pytest.MonkeyPatch) -> None:
    cut = step._STEPS[ev.Cut]

    def trusting(turn: Turn, event: Any) -> None:
        cut(turn, event)
        if turn.replica.fetch is not None:
            turn.replica.fetch = replace(turn.replica.fetch, log_start=turn.replica.fetch.offset)
            turn.actions = [
                ev.Send(action.to, turn.replica.fetch) if isinstance(action, ev.Send) else action
                for action in turn.actions
            ]

    patch.setitem(step._STEPS, ev.Cut, trusting)


@rule("2")
def epochs_without_batches_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(alignment.Log, "has_epoch_without_batches", property(lambda _: False))


@rule("2")
def an_unknown_epoch_is_no_divergence(patch: pytest.MonkeyPatch) -> None:
    def lenient(leader: Log, offset: int, last_epoch: int, log_start: int) -> Diverging | None:
        end = alignment.end_of(last_epoch, leader)
        return end if end.end < offset else None

    patch.setattr(alignment, "divergence", lenient)


@rule("3")
def any_answer_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(following, "is_expected", lambda turn, answer: turn.replica.fetch is not None)


@rule("4")
def a_replica_joins_below_the_start_of_the_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fol, "has_reached", lambda follower, log, epoch_start: follower.flushed >= log.high_watermark)


@rule("4")
def a_replica_joins_below_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fol, "has_reached", lambda follower, log, epoch_start: follower.flushed >= epoch_start)


@rule("5")
def a_new_member_counts_when_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fol, "maximal_isr", lambda known, proposed: frozenset(known.isr))


@rule("5")
def a_member_leaves_when_that_is_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fol, "maximal_isr", lambda known, proposed: frozenset((proposed or known).isr))


@rule("6")
def a_replica_joins_by_a_fetch_of_before_its_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leading, "joining", lambda node, follower: {})


@rule("7")
def a_fetch_that_diverges_counts(patch: pytest.MonkeyPatch) -> None:
    fetched = leading.fetched

    def counting(turn: Turn, fetch: ev.Fetch) -> None:
        knowledge = turn.replica.leading
        if knowledge is not None and leading.judge(turn.replica, fetch) is ev.Verdict.DIVERGES:
            known = knowledge.followers.get(fetch.node)
            after = fol.after_fetch(known, fetch, turn.replica.log.end, turn.now_ms)
            turn.change(followers={**knowledge.followers, fetch.node: after})
            leading.advance(turn)
        fetched(turn, fetch)

    patch.setitem(step._STEPS, ev.Fetch, counting)


@rule("8")
def the_high_watermark_of_any_answer_counts(patch: pytest.MonkeyPatch) -> None:
    diverged = following._diverged

    def believing(turn: Turn, diverging: Diverging, leader_start: int) -> None:
        high_watermark = min(turn.replica.log.flushed, diverging.end + 2)
        if high_watermark > turn.replica.log.high_watermark:
            turn.move(high_watermark=high_watermark)
            turn.do(ev.Commit(high_watermark))
        diverged(turn, diverging, leader_start)

    patch.setattr(following, "_diverged", believing)


@rule("9")
def a_flush_of_before_a_cut_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(step, "counts", lambda log, event: True)


@rule("9")
def a_leader_that_resigns_goes_on_committing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leading, "resign", lambda turn: None)


@rule("10")
def what_is_fetched_counts_as_flushed(patch: pytest.MonkeyPatch) -> None:
    after_fetch = fol.after_fetch
    patch.setattr(
        fol,
        "after_fetch",
        lambda known, fetch, end, now_ms: after_fetch(known, replace(fetch, flushed=fetch.offset), end, now_ms),
    )


@rule("11")
def a_start_excludes_nothing(patch: pytest.MonkeyPatch) -> None:
    start_change = membership.start_change
    patch.setattr(
        membership,
        "start_change",
        lambda known, node, *, is_lost, was_closed: start_change(known, node, is_lost=False, was_closed=was_closed),
    )


@rule("12")
def damage_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(step._STEPS, ev.Failed, lambda turn, event: None)


@rule("12")
def a_damaged_replica_keeps_its_registration(patch: pytest.MonkeyPatch) -> None:
    repair = following.repair

    def hasty(turn: Turn) -> None:
        if turn.replica.failed_in == turn.replica.broker_epoch:
            turn.replica.failed_in = -5
        repair(turn)

    patch.setattr(following, "repair", hasty)


@rule("12")
def a_damaged_replica_knows_what_was_before_its_registration(patch: pytest.MonkeyPatch) -> None:
    see_record = FakeBroker._see_record

    def late(broker: FakeBroker, topic_id: str, item: Item) -> None:
        broker._see_sessions()
        see_record(broker, topic_id, item)

    patch.setattr(FakeBroker, "_see_record", late)


@rule("13, 25")
def a_new_leader_knows_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leading, "is_known", lambda replica: replica.leading is not None)


@rule("14")
def a_failed_write_teaches_nothing(patch: pytest.MonkeyPatch) -> None:
    written = step._STEPS[ev.Written]

    def deaf(turn: Turn, event: ev.Written) -> None:
        proposal = turn.replica.proposal
        if proposal is not None and event.number == proposal.write.number and event.outcome is ev.Outcome.FAILED:
            turn.replica.proposal = None
            step.take_role(turn)
        else:
            written(turn, event)

    patch.setitem(step._STEPS, ev.Written, deaf)


@rule("16, 26")
def a_leader_believes_its_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        leading,
        "confirmed_ms",
        lambda replica, now_ms: now_ms if replica.broker_epoch and replica.leading else ev.NEVER,
    )


@rule("16, 26")
def a_leader_that_hands_over_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leading, "handed_over_since_ms", lambda replica, proposal, now_ms: now_ms)


@rule("16, 26")
def a_candidate_goes_on_fetching(patch: pytest.MonkeyPatch) -> None:
    stand = following.stand

    def fetching(turn: Turn, recovering: str = "") -> None:
        role, fetch = turn.replica.role, turn.replica.fetch
        stand(turn, recovering)
        turn.replica.role, turn.replica.fetch = role, fetch

    def ticked(turn: Turn) -> None:
        proposal, turn.replica.proposal = turn.replica.proposal, None
        if proposal is None:
            tick(turn)
            return
        following.send_fetch(turn)
        turn.replica.proposal = proposal

    tick = following.ticked
    patch.setattr(following, "stand", fetching)
    patch.setattr(following, "ticked", ticked)


@rule("17")
def a_log_is_found_by_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FakeDisk, "is_of", lambda disk, topic_id: True)


@rule("18")
def a_follower_does_not_know_producers(patch: pytest.MonkeyPatch) -> None:
    append_copy = FakeDisk.append_copy

    def forgetful(disk: FakeDisk, entries: list[Entry | None]) -> None:
        producers = dict(disk.producers)
        append_copy(disk, entries)
        disk.producers = producers

    patch.setattr(FakeDisk, "append_copy", forgetful)


@rule("18")
def a_cut_does_not_restore_producers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FakeDisk, "_replay_all", lambda disk: None)


@rule("19")
def a_read_settles_what_is_unknown(patch: pytest.MonkeyPatch) -> None:
    def forget(turn: Turn) -> None:
        turn.replica.proposal = None
        if turn.replica.role is Role.STANDING:
            step.take_role(turn)

    patch.setattr(step, "unsettled", forget)


@rule("19")
def a_condition_that_fails_settles_what_is_unknown(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(step, "may_be_applied_yet", lambda proposal: False)


@rule("20")
def a_start_begins_an_epoch_in_each_log(patch: pytest.MonkeyPatch) -> None:
    recover = FakeDisk.recover

    def eager(disk: FakeDisk, max_epoch: int) -> None:
        recover(disk, max_epoch)
        disk.begin_epoch(max_epoch)

    patch.setattr(FakeDisk, "recover", eager)
    epochs_without_batches_stay(patch)


@rule("21")
def recovery_takes_an_old_epoch_for_the_highest(patch: pytest.MonkeyPatch) -> None:
    recover = FakeDisk.recover
    patch.setattr(FakeDisk, "recover", lambda disk, max_epoch: recover(disk, max_epoch - 1))


@rule("22")
def each_start_excludes(patch: pytest.MonkeyPatch) -> None:
    def strict(known: PartitionRecord, node: int, *, is_lost: bool, was_closed: bool) -> Exclude | Restart | None:
        if node in known.eligible and not was_closed:
            return Exclude()
        return Restart(was_closed) if known.leader == node else None

    patch.setattr(membership, "start_change", strict)


@rule("23")
def nothing_is_eligible_beside_the_in_sync_set(patch: pytest.MonkeyPatch) -> None:
    with_isr = record._with_isr
    patch.setattr(record, "_with_isr", lambda *args, **lost: replace(with_isr(*args, **lost), elr=()))


@rule("23")
def the_eligible_stay_when_enough_are_in_sync(patch: pytest.MonkeyPatch) -> None:
    with_isr = record._with_isr

    def keeping(known: PartitionRecord, isr: Any, **lost: Any) -> PartitionRecord:
        after = with_isr(known, isr, **lost)
        left = known.eligible.difference(after.isr, lost.get("lost", ()))
        return replace(after, elr=tuple(sorted(left)))

    patch.setattr(record, "_with_isr", keeping)


@rule("a replica that left, and comes back")
def who_leaves_may_come_back_in_the_same_epoch(patch: pytest.MonkeyPatch) -> None:
    without = record._without

    def staying(known: PartitionRecord, leaving: record.Nodes) -> Any:
        after = without(known, leaving)
        return replace(after, leader_epoch=known.leader_epoch) if isinstance(after, PartitionRecord) else after

    patch.setattr(record, "_without", staying)


@rule("24")
def disks_are_never_old(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "compare", lambda marks, stored, revision: Comparison.AGREES)


@rule("25, 26")
def a_read_needs_no_confirmation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leading, "confirmed_ms", lambda replica, now_ms: now_ms + 1 if replica.leading else ev.NEVER)


@rule("27")
def batches_without_an_epoch_agree_everywhere(patch: pytest.MonkeyPatch) -> None:
    divergence = alignment.divergence
    patch.setattr(
        alignment,
        "divergence",
        lambda log, offset, epoch, start: (
            None if epoch < 0 and offset <= log.end else divergence(log, offset, epoch, start)
        ),
    )


@rule("28")
def a_log_is_emptied_whenever_the_leader_says_so(patch: pytest.MonkeyPatch) -> None:
    def obedient(turn: Turn, answer: ev.Answer) -> None:
        turn.replica.is_cutting = True
        turn.do(ev.Empty(answer.log_start, answer.removed_below))

    patch.setattr(following, "_begin_anew", obedient)


@rule("29")
def the_start_of_the_leader_is_taken_at_once(patch: pytest.MonkeyPatch) -> None:
    take_over = following.take_over

    def hasty(turn: Turn) -> None:
        take_over(turn)
        if turn.replica.leader_start > max(turn.replica.log.start, turn.replica.raising_start):
            turn.replica.raising_start = turn.replica.leader_start
            turn.do(ev.RaiseStart(turn.replica.leader_start))

    patch.setattr(following, "take_over", hasty)


@rule("30")
def a_replica_that_was_away_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leading, "must_refill", lambda replica, fetch: False)


@rule("31")
def deletions_are_answered_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leading, "deleted_below", lambda replica: replica.log.start if replica.leading else 0)


@rule("31")
def a_replica_joins_with_what_was_deleted(patch: pytest.MonkeyPatch) -> None:
    may_join = fol.may_join

    def lenient(known: PartitionRecord, node: int, follower: fol.Follower, session: Any, log: Log, start: int) -> bool:
        return may_join(known, node, replace(follower, log_start=log.start), session, log, start)

    patch.setattr(fol, "may_join", lenient)


@rule("35")
def any_directory_will_do(patch: pytest.MonkeyPatch) -> None:
    lost = membership.lost

    def lenient(found: membership.FoundLog | None, directory: str | None, end: int) -> str | None:
        return lost(found and replace(found, directory=directory or ""), directory, end)

    patch.setattr(membership, "lost", lenient)


@rule("36")
def a_leader_with_a_disk_that_hangs_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leading, "is_stuck", lambda own, now_ms, flush_ms: False)


@rule("P#9348")
def a_leader_that_starts_again_goes_on(patch: pytest.MonkeyPatch) -> None:
    start_change = membership.start_change

    def staying(known: PartitionRecord, node: int, *, is_lost: bool, was_closed: bool) -> Exclude | Restart | None:
        change = start_change(known, node, is_lost=is_lost, was_closed=was_closed)
        return None if isinstance(change, Restart) else change

    patch.setattr(membership, "start_change", staying)


@rule("a copy in flight")
def a_damaged_log_is_taken_for_sound_after_a_cut(patch: pytest.MonkeyPatch) -> None:
    cut = step._STEPS[ev.Cut]

    def forgiving(turn: Turn, event: Any) -> None:
        turn.replica.is_repairing = turn.replica.role is Role.REFUSED
        cut(turn, event)

    patch.setitem(step._STEPS, ev.Cut, forgiving)
