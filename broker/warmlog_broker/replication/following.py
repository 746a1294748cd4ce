"""What a replica does that does not lead: agree with its leader's log, follow it, and stand for election."""

from warmlog_broker.replication import alignment, election
from warmlog_broker.replication import events as ev
from warmlog_broker.replication.record import NO_LEADER, Exclude
from warmlog_broker.replication.replica import Role, Turn


def follow(turn: Turn) -> None:
    """Begin to follow in the epoch of the record, with no assumption about how the leader's log looks."""
    replica = turn.replica
    replica.role = Role.ALIGNING
    replica.epoch = replica.record.leader_epoch
    replica.fetch = None
    replica.echo_ms = ev.NEVER
    replica.leader_high_watermark = replica.leader_start = replica.refilled_below = 0
    if replica.log.has_epoch_without_batches:
        cut(turn, replica.log.end)
    else:
        send_fetch(turn)


def cut(turn: Turn, end: int) -> None:
    turn.replica.is_cutting = True
    turn.do(ev.Truncate(end))


def send_fetch(turn: Turn) -> None:
    """Ask the leader for what comes after the log."""
    replica = turn.replica
    if replica.is_cutting or replica.fetch is not None or replica.record.leader == NO_LEADER:
        return
    replica.fetch = ev.Fetch(
        node=replica.node,
        broker_epoch=replica.broker_epoch,
        leader_epoch=replica.epoch,
        number=turn.next_number(),
        offset=replica.log.end,
        last_epoch=replica.log.last_epoch,
        flushed=replica.log.flushed,
        log_start=replica.log.start,
        echo_ms=replica.echo_ms,
        refilled_below=replica.refilled_below,
    )
    replica.fetch_again_ms = turn.now_ms + replica.times.lag_ms // 4
    turn.do(ev.Send(replica.record.leader, replica.fetch))


def answered(turn: Turn, event: ev.Answered) -> None:
    """Take in an answer of the leader, if it is the one that was asked for."""
    replica, answer = turn.replica, event.answer
    if not is_expected(turn, answer):
        return
    replica.fetch = None
    match answer.verdict:
        case ev.Verdict.REFUSED:
            replica.fetch_again_ms = turn.now_ms + replica.times.retry_ms
        case ev.Verdict.DIVERGES:
            replica.role = Role.ALIGNING
            _diverged(turn, answer.diverging, answer.log_start)
        case ev.Verdict.AGREES if event.next_offset < replica.log.end:
            replica.role, replica.is_cutting = Role.ALIGNING, True
            turn.do(ev.Empty(replica.log.end, 0, event.next_offset))
        case ev.Verdict.AGREES:
            _agreed(turn, event)
        case _:
            _begin_anew(turn, answer)


def is_expected(turn: Turn, answer: ev.Answer) -> bool:
    """Return whether it answers the request that is under way: numbers are used once, also over connections."""
    replica = turn.replica
    return (
        replica.fetch is not None
        and answer.number == replica.fetch.number
        and answer.leader_epoch == replica.epoch
        and answer.offset == replica.log.end
    )


def _diverged(turn: Turn, diverging: alignment.Diverging, leader_start: int) -> None:
    replica = turn.replica
    end = alignment.cut_to(replica.log, diverging, leader_start)
    if end < replica.log.high_watermark and replica.record.recovering == replica.obeyed:
        turn.refuse(
            f"the leader's log ends at {diverging.end} in epoch {diverging.epoch}, which asks for a cut to {end}: below"
            f" the high watermark {replica.log.high_watermark}"
        )
        return
    if end < replica.log.start:
        replica.is_cutting = True
        turn.do(ev.Empty(leader_start, 0))
    else:
        cut(turn, end)


def _begin_anew(turn: Turn, answer: ev.Answer) -> None:
    """Empty the log, if it may be: that of an eligible replica never is, whatever the leader says."""
    replica = turn.replica
    is_behind = answer.verdict is ev.Verdict.REFILL or replica.log.end <= answer.log_start
    if not is_behind or replica.node in replica.record.eligible:
        replica.fetch_again_ms = turn.now_ms + replica.times.retry_ms
        turn.do(
            ev.Alarm(f"the leader says {answer.verdict.value} to an eligible replica that ends at {replica.log.end}")
        )
        return
    replica.is_cutting = True
    replica.refilled_below = answer.removed_below
    turn.do(ev.Empty(answer.log_start, answer.removed_below))


def _agreed(turn: Turn, event: ev.Answered) -> None:
    replica, answer = turn.replica, event.answer
    replica.role = Role.FOLLOWING
    replica.heard_ms = turn.now_ms
    replica.echo_ms = answer.sent_ms
    replica.leader_high_watermark = answer.high_watermark
    replica.leader_start = answer.log_start
    if replica.obeyed != replica.record.recovering:
        replica.obeyed = replica.record.recovering
        turn.do(ev.Obey(replica.obeyed))
    take_over(turn)  # before what a full disk refuses: a raised start may make room
    if event.next_offset > replica.log.end:
        epochs = replica.log.epochs
        for epoch, start in event.epochs:
            epochs = alignment.with_epoch(epochs, epoch, start)
        turn.move(end=event.next_offset, epochs=epochs)
        turn.do(ev.Append())
    send_fetch(turn)


def take_over(turn: Turn) -> None:
    """Raise high watermark and start to those of the leader, as far as its own log is flushed."""
    replica = turn.replica
    high_watermark = min(replica.leader_high_watermark, replica.log.flushed)
    if high_watermark > replica.log.high_watermark:
        turn.move(high_watermark=high_watermark)
        turn.do(ev.Commit(high_watermark))
    start = min(replica.leader_start, replica.log.high_watermark)
    if start > max(replica.log.start, replica.raising_start):
        replica.raising_start = start
        turn.do(ev.RaiseStart(start))


def flushed(turn: Turn) -> None:
    """Tell the leader what is on disk."""
    replica = turn.replica
    take_over(turn)
    report = ev.Report(replica.node, replica.broker_epoch, replica.epoch, replica.log.flushed)
    turn.do(ev.Send(replica.record.leader, report))


def ticked(turn: Turn) -> None:
    """Fetch again if no answer came, and stand for election if there is no leader."""
    replica = turn.replica
    if replica.is_cutting or replica.proposal is not None:
        return
    if not election.is_vacant(replica.record, replica.sessions):
        replica.vacant_since_ms = None
    elif replica.vacant_since_ms is None:
        replica.vacant_since_ms = turn.now_ms
    elif _must_stand(turn, replica.vacant_since_ms):
        stand(turn)
        return
    fetch, times, sent_ms = replica.fetch, replica.times, replica.fetch_again_ms - replica.times.lag_ms // 4
    # A fetch that waits is repeated in case the leader has lost it: seldom, as that wakes two replicas at rest.
    waits_ms = 3 * times.lag_ms if fetch is not None and replica.heard_ms > sent_ms else 0
    is_outdated = fetch is not None and replica.broker_epoch not in (0, fetch.broker_epoch)
    if is_outdated or turn.now_ms >= replica.fetch_again_ms + waits_ms:
        replica.fetch = None
        send_fetch(turn)


def _must_stand(turn: Turn, vacant_since_ms: int) -> bool:
    replica = turn.replica
    at_ms = election.standing_at_ms(
        replica.record,
        replica.sessions,
        replica.node,
        vacant_since_ms=vacant_since_ms,
        heard_ms=replica.heard_ms,
        times=replica.times,
    )
    return at_ms is not None and turn.now_ms >= at_ms and replica.broker_epoch != 0


def stand(turn: Turn, recovering: str = "") -> None:
    """Write its own election. It fetches no more: its fetches say that it has not stood."""
    replica = turn.replica
    change = election.candidacy(replica.record, replica.sessions, recovering)
    if turn.propose(change, election.conditions(replica.record, replica.node, replica.broker_epoch)):
        replica.role = Role.STANDING
        replica.fetch = None


def repair(turn: Turn) -> None:
    """Let a damaged log be replaced: by a new registration, its exclusion, and then the leader's log.

    The registration comes first: no fetch of before lets a leader take this replica in after it, and the record that is
    known then is not older. The last copy of what is committed is never given away.
    """
    replica = turn.replica
    record = replica.record
    if replica.failed_in is None or replica.proposal is not None or replica.is_cutting:
        return
    if replica.broker_epoch == 0 or record.eligible == {replica.node}:
        return
    if replica.broker_epoch == replica.failed_in:
        turn.do(ev.Register())
    elif replica.node in record.eligible:
        turn.propose(Exclude())
    elif record.leader != NO_LEADER:
        replica.is_cutting = replica.is_repairing = True
        turn.do(ev.Empty(0, 0))
