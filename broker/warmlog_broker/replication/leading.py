"""What a leader does: it answers fetches, commits, changes the in-sync set, and hands over."""

from collections.abc import Mapping

from msgspec.structs import replace

from warmlog_broker.replication import alignment, followers, reassignment
from warmlog_broker.replication import events as ev
from warmlog_broker.replication.record import NO_LEADER, Expand, HandOver, Nodes, SetMinIsr, Shrink
from warmlog_broker.replication.replica import Leading, Proposal, Replica, Role, Turn


def lead(turn: Turn) -> None:
    """Begin the epoch of the record, at the end of the log. The high watermark stays what it is."""
    replica = turn.replica
    log = replica.log
    replica.role = Role.LEADING
    replica.epoch = replica.record.leader_epoch
    replica.fetch = None
    replica.vacant_since_ms = None
    own = followers.Follower(0, log.flushed, log.start, goal=log.flushed, goal_ms=turn.now_ms, caught_up_ms=turn.now_ms)
    replica.leading = Leading(log.end, turn.now_ms, own)
    turn.move(epochs=alignment.with_epoch(log.epochs, replica.epoch, log.end))
    if replica.obeyed != replica.record.recovering:
        replica.obeyed = replica.record.recovering
        turn.do(ev.Obey(replica.obeyed))
    turn.do(ev.Flush())
    advance(turn)


def resign(turn: Turn) -> None:
    """Lead no more: whatever flush ends now commits nothing."""
    turn.replica.leading = None


def maximal_isr(replica: Replica) -> frozenset[int]:
    proposal = replica.proposal
    return followers.maximal_isr(replica.record, proposal.write.record if proposal is not None else None)


def advance(turn: Turn) -> None:
    """Commit what all members have flushed."""
    replica, leading = turn.replica, turn.replica.leading
    assert leading is not None
    offset = followers.committed(replica.record, maximal_isr(replica), leading.followers, replica.node, replica.log)
    if offset > replica.log.high_watermark:
        turn.move(high_watermark=offset)
        turn.do(ev.Commit(offset))


def is_known(replica: Replica) -> bool:
    """Return whether the leader knows all that the leaders before it have committed."""
    return replica.leading is not None and replica.log.high_watermark >= replica.leading.epoch_start


def fetched(turn: Turn, fetch: ev.Fetch) -> None:
    """Note how far a follower is, if its log agrees, and answer it: at once if there is something wrong."""
    replica, leading = turn.replica, turn.replica.leading
    verdict = judge(replica, fetch)
    if leading is None or verdict is not ev.Verdict.AGREES:
        turn.do(ev.Send(fetch.node, answer(replica, fetch, turn.now_ms)))
        return
    known = leading.followers.get(fetch.node)
    if known is not None and fetch.broker_epoch < known.broker_epoch:
        turn.do(ev.Send(fetch.node, refusal(fetch)))
        return
    if known is not None and has_gone_back(known, fetch):
        if fetch.node in replica.record.eligible:
            _take_out(turn, fetch)
            return
        known = None
    after = followers.after_fetch(known, fetch, replica.log.end, turn.now_ms)
    turn.change(followers={**leading.followers, fetch.node: after})
    turn.do(ev.Hold(fetch))
    advance(turn)
    _progressed(turn, fetch.node)


def echoed(turn: Turn, echoes: Mapping[int, int]) -> None:
    """Note what followers have echoed whose fetches wait: they have not stood, and are as far as they were."""
    replica, leading = turn.replica, turn.replica.leading
    assert leading is not None
    new = {
        node: followers.after_echo(known, echo_ms, replica.log.end, turn.now_ms)
        for node, echo_ms in echoes.items()
        if (known := leading.followers.get(node)) is not None and echo_ms > known.echoed_ms
    }
    if new:
        turn.change(followers={**leading.followers, **new})


def has_gone_back(known: followers.Follower, fetch: ev.Fetch) -> bool:
    """Return whether a replica that has registered again has less on its disk than it has reported: an old image."""
    return fetch.broker_epoch > known.broker_epoch and fetch.flushed < known.flushed


def _take_out(turn: Turn, fetch: ev.Fetch) -> None:
    """Take a replica that has lost something out of the sets: it may come back with what it fetches from now on."""
    if turn.replica.proposal is None:
        turn.propose(Shrink(frozenset((fetch.node,)), lost=True))
    turn.do(ev.Send(fetch.node, refusal(fetch)))


def refusal(fetch: ev.Fetch) -> ev.Answer:
    """Return the answer to a fetch that does not count: the follower fetches again after a while."""
    return ev.Answer(fetch.number, fetch.leader_epoch, fetch.offset, ev.Verdict.REFUSED)


def judge(replica: Replica, fetch: ev.Fetch) -> ev.Verdict:
    """Return how the follower's log, as its fetch tells it, compares with that of this broker."""
    leads = replica.leading is not None and fetch.leader_epoch == replica.epoch
    if not leads or fetch.node not in replica.record.replicas or fetch.last_epoch > replica.epoch:
        return ev.Verdict.REFUSED
    log = replica.log
    if fetch.offset < log.start or may_be_others(replica, fetch):
        return ev.Verdict.OUT_OF_RANGE
    if must_refill(replica, fetch):
        return ev.Verdict.REFILL
    if alignment.divergence(log, fetch.offset, fetch.last_epoch, fetch.log_start) is not None:
        return ev.Verdict.OUT_OF_RANGE if fetch.offset == log.start else ev.Verdict.DIVERGES
    return ev.Verdict.AGREES


def may_be_others(replica: Replica, fetch: ev.Fetch) -> bool:
    """Return whether all that a follower has may be other batches than this log has had: they were deleted here.

    An eligible replica has those that were committed.
    """
    is_known = fetch.node in replica.record.eligible | maximal_isr(replica)
    return fetch.log_start < fetch.offset == replica.log.start and not is_known


def must_refill(replica: Replica, fetch: ev.Fetch) -> bool:
    """Return whether the follower may have what this log has removed together with its tombstone.

    One that has nothing yet must know, too, what was removed: it may lead others later that have it.
    """
    return fetch.offset < replica.removed_below > fetch.refilled_below


def answer(replica: Replica, fetch: ev.Fetch, now_ms: int) -> ev.Answer:
    """Return the answer to a fetch as of now; batches from its offset on go with it if the logs agree."""
    log = replica.log
    return ev.Answer(
        number=fetch.number,
        leader_epoch=fetch.leader_epoch,
        offset=fetch.offset,
        verdict=judge(replica, fetch),
        diverging=alignment.divergence(log, fetch.offset, fetch.last_epoch, fetch.log_start) or ev.NO_DIVERGENCE,
        high_watermark=log.high_watermark,
        log_start=log.start,
        sent_ms=now_ms,
        removed_below=replica.removed_below,
    )


def reported(turn: Turn, report: ev.Report) -> None:
    """Count what a follower has flushed in this epoch."""
    leading = turn.replica.leading
    if leading is None or report.leader_epoch != turn.replica.epoch or report.node not in leading.followers:
        return
    after = followers.after_report(leading.followers[report.node], report, turn.replica.log.end, turn.now_ms)
    turn.change(followers={**leading.followers, report.node: after})
    advance(turn)
    _progressed(turn, report.node)


def _progressed(turn: Turn, node: int) -> None:
    """Look whether a follower's progress allows a change: it may join, or what waits to be handed over is committed.

    Who lags is found by time: this is called for every batch.
    """
    leading = turn.replica.leading
    if leading is not None and (node not in turn.replica.record.isr or leading.hand_over_ms is not None):
        improve(turn)


def flushed(turn: Turn) -> None:
    """Count what this broker has flushed itself."""
    leading, log = turn.replica.leading, turn.replica.log
    assert leading is not None
    own = replace(leading.own, flushed=log.flushed)
    turn.change(own=followers.progressed(own, log.end, turn.now_ms))
    advance(turn)


def improve(turn: Turn) -> None:
    """Propose the next change of the record, if there is one; the one before must have ended."""
    replica, leading = turn.replica, turn.replica.leading
    if leading is None or replica.proposal is not None or replica.broker_epoch == 0:
        return
    record, wanted = replica.record, replica.wanted_min_isr
    if wanted is not None and wanted != record.min_isr:
        turn.propose(SetMinIsr(wanted))
        return
    late = followers.lagging(
        record,
        leading.followers,
        replica.sessions,
        replica.node,
        since_ms=leading.began_ms,
        now_ms=turn.now_ms,
        lag_ms=replica.times.lag_ms,
    )
    if late:
        turn.propose(Shrink(late))
        return
    for node, follower in leading.followers.items():
        session = replica.sessions.get(node)
        if followers.may_join(record, node, follower, session, replica.log, leading.epoch_start):
            turn.propose(Expand(node), joining(node, follower))
            return
    if leading.hand_over_ms is not None:
        _hand_over(turn, leading)
    else:
        _reassign(turn, replica.wanted_replicas)


def _reassign(turn: Turn, target: Nodes | None) -> None:
    step = reassignment.next_step(turn.replica.record, target, turn.replica.sessions)
    if isinstance(step, HandOver):
        hand_over_asked(turn, ev.HandOverAsked(step.to))
    elif step is not None:
        turn.propose(step)


def joining(node: int, follower: followers.Follower) -> dict[int, int]:
    """Return the registration that must hold for a replica to join: that of its fetch, since a restart may lose all."""
    return {node: follower.broker_epoch}


def min_isr_set(turn: Turn, event: ev.MinIsrSet) -> None:
    turn.replica.wanted_min_isr = event.min_isr
    improve(turn)


def target_set(turn: Turn, event: ev.TargetSet) -> None:
    turn.replica.wanted_replicas = event.replicas
    improve(turn)


def hand_over_asked(turn: Turn, event: ev.HandOverAsked) -> None:
    """Begin to hand over: producers wait for the next leader from now on."""
    leading = turn.replica.leading
    if leading is not None and leading.hand_over_ms is None and turn.replica.record.isr != (turn.replica.node,):
        turn.change(hand_over_ms=turn.now_ms, hand_over_to=event.to)
        improve(turn)


def _hand_over(turn: Turn, leading: Leading) -> None:
    """Make the member the leader that has most, when all is committed, or when that takes too long."""
    replica, asked_ms = turn.replica, leading.hand_over_ms
    assert asked_ms is not None
    waits_ms = turn.now_ms - asked_ms
    if replica.log.high_watermark < replica.log.end and waits_ms < replica.times.hand_over_ms:
        return
    ready = [
        node
        for node in replica.record.isr
        if node in leading.followers and node in replica.sessions and replica.sessions[node].is_ready
    ]
    if leading.hand_over_to in ready:
        turn.propose(HandOver(leading.hand_over_to))
    elif ready:
        turn.propose(HandOver(max(ready, key=lambda node: leading.followers[node].flushed)))
    elif waits_ms > 2 * replica.times.hand_over_ms:
        turn.change(hand_over_ms=None)


def ticked(turn: Turn) -> None:
    """Look at what time changes: members that lag, a disk that hangs, a confirmation that runs out."""
    replica, leading = turn.replica, turn.replica.leading
    assert leading is not None
    own, times = followers.progressed(leading.own, replica.log.end, turn.now_ms), replica.times
    turn.change(own=own)
    if is_stuck(own, turn.now_ms, times.flush_ms):
        hand_over_asked(turn, ev.HandOverAsked())
    improve(turn)
    needs_read = confirmed_ms(replica, turn.now_ms) < turn.now_ms - times.confirmation_ms // 2
    if needs_read and turn.now_ms - leading.asked_read_ms > times.confirmation_ms // 2:
        turn.change(asked_read_ms=turn.now_ms)
        turn.do(ev.ReadRecord())


def is_stuck(own: followers.Follower, now_ms: int, flush_ms: int) -> bool:
    return own.flushed < own.goal and now_ms - own.goal_ms > flush_ms


# Questions of the shell.


def confirmed_ms(replica: Replica, now_ms: int) -> int:
    """Return a time at which it surely led; NEVER if it does not. A read must not go back: it waits until this is later
    than the request came."""
    leading = replica.leading
    if leading is None:
        return ev.NEVER
    confirmed = followers.confirmed_ms(
        replica.record, maximal_isr(replica), leading.followers, replica.node, read_ms=leading.read_ms, now_ms=now_ms
    )
    handed_over_ms = now_ms if replica.proposal is None else handed_over_since_ms(replica, replica.proposal, now_ms)
    return min(confirmed, handed_over_ms)


def handed_over_since_ms(replica: Replica, proposal: Proposal, now_ms: int) -> int:
    """Return when this leader wrote the name of another, who may lead since then without knowing it; else `now_ms`."""
    return now_ms if proposal.write.record.leader == replica.node else proposal.began_ms


def is_confirmed(replica: Replica, asked_ms: int, now_ms: int) -> bool:
    """Return whether it has surely led since then, and knows all that was committed before."""
    is_alone = not followers.voters(replica.record, maximal_isr(replica), replica.node)
    return is_known(replica) and (is_alone or confirmed_ms(replica, now_ms) > asked_ms)


def may_serve(replica: Replica, now_ms: int) -> bool:
    """Return whether consumers may read: not from a replica that could be cut off, or lags."""
    if replica.role is Role.FOLLOWING:
        since_ms = replica.heard_ms if replica.node in replica.record.isr else ev.NEVER
    else:
        since_ms = confirmed_ms(replica, now_ms)
    return now_ms - since_ms <= replica.times.confirmation_ms


def near_replica(replica: Replica, rack: str, offset: int) -> int:
    """Return the in-sync replica of a consumer's rack that has most, and all before `offset`; -1: it reads here."""
    leading, sessions = replica.leading, replica.sessions
    near = [node for node in replica.record.isr if node in sessions and sessions[node].rack == rack]
    if leading is None or replica.node in near or offset > replica.log.high_watermark:
        return NO_LEADER
    ready = [node for node in near if node in leading.followers and sessions[node].is_ready]
    return max(ready, key=lambda node: leading.followers[node].flushed, default=NO_LEADER)


def deleted_below(replica: Replica) -> int:
    """Return the offset below which deleted records cannot come back: DeleteRecords waits for it."""
    leading = replica.leading
    if leading is None:
        return 0
    return followers.lowest_start(replica.record, maximal_isr(replica), leading.followers, replica.node, replica.log)
