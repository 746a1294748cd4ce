"""`step`: one event for one replica. Nothing here knows a store, a socket, a file or a clock."""

from collections.abc import Callable
from copy import copy
from typing import Any

from msgspec.structs import replace

from warmlog_broker.replication import election, following, leading
from warmlog_broker.replication import events as ev
from warmlog_broker.replication.alignment import Log
from warmlog_broker.replication.record import PartitionRecord, Withdraw
from warmlog_broker.replication.replica import Proposal, Replica, Role, Turn


def step(replica: Replica, event: ev.Event, now_ms: int) -> tuple[Replica, list[ev.Action]]:
    """Return the replica after an event, and what is to be done, in this order. `replica` itself is not changed."""
    turn = Turn(copy(replica), now_ms)
    _STEPS[type(event)](turn, event)
    return turn.replica, turn.actions


def _record_seen(turn: Turn, event: ev.RecordSeen) -> None:
    replica = turn.replica
    if event.record is None:
        leading.resign(turn)
        turn.replica.role = Role.IDLE
        turn.replica.proposal = None
        return
    if event.revision > replica.revision:
        see(turn, event.record, event.revision)
    leads = replica.leading is not None and event.record.leader == replica.node
    if event.began_ms is not None and leads and event.record.leader_epoch == replica.epoch:
        turn.change(read_ms=event.began_ms)


def see(turn: Turn, record: PartitionRecord, revision: int) -> None:
    """Believe a record that is newer than the known one. It settles what was proposed on the known one."""
    replica, known = turn.replica, turn.replica.record
    replica.record, replica.revision, replica.proposal = record, revision, None
    if record.leader_epoch == known.leader_epoch and record.leader != known.leader:
        turn.refuse(
            f"the store has two leaders of the epoch {record.leader_epoch}: {known.leader}, and later {record.leader}"
        )
        return
    if record.leader_epoch < replica.log.latest_epoch:
        turn.refuse(
            f"the store has gone back: epoch {record.leader_epoch} of the record is older than"
            f" {replica.log.latest_epoch} of the log"
        )
        return
    take_role(turn)


def take_role(turn: Turn) -> None:
    """Take the role that the record gives, if it is another one."""
    replica = turn.replica
    record = replica.record
    if replica.leading is not None and record.leader_epoch == replica.epoch and record.leader == replica.node:
        leading.advance(turn)
        leading.improve(turn)
        return
    leading.resign(turn)
    if replica.role is Role.REFUSED:
        following.repair(turn)
    elif replica.node not in record.replicas:
        replica.role = Role.IDLE
    elif replica.is_cutting:
        replica.role, replica.epoch, replica.fetch = Role.ALIGNING, -1, None
    elif record.leader == replica.node:
        leading.lead(turn)
    elif record.leader_epoch > replica.epoch or replica.role in (Role.IDLE, Role.STANDING):
        following.follow(turn)


def _sessions_seen(turn: Turn, event: ev.SessionsSeen) -> None:
    turn.replica.sessions = event.sessions
    turn.replica.broker_epoch = event.broker_epoch
    _ticked(turn, event)


def _written(turn: Turn, event: ev.Written) -> None:
    """Settle what was proposed. What is there after a failure is news, also if the proposal was settled before.

    After an unknown outcome, the same is written again until it succeeds, or fails since the record has changed. If
    another condition has failed, which may hold again, the first write may be applied yet: it is withdrawn.
    """
    replica, proposal = turn.replica, turn.replica.proposal
    if event.outcome is ev.Outcome.FAILED and event.record is not None and event.revision > replica.revision:
        see(turn, event.record, event.revision)
        return
    if proposal is None or event.number != proposal.write.number:
        return
    if event.outcome is ev.Outcome.SUCCEEDED:
        see(turn, proposal.write.record, event.revision)
    elif event.outcome is ev.Outcome.UNKNOWN:
        unsettled(turn)
    elif may_be_applied_yet(proposal):
        turn.propose(Withdraw())
    else:
        replica.proposal = None
        take_role(turn)


def unsettled(turn: Turn) -> None:
    """Write the same again after a pause, which grows: as long as the store is away, all partitions may do so."""
    proposal, times = turn.replica.proposal, turn.replica.times
    assert proposal is not None
    pause_ms = min(max(turn.now_ms - proposal.began_ms, times.retry_ms), times.confirmation_ms // 2)
    turn.replica.proposal = replace(proposal, is_unknown=True, again_ms=turn.now_ms + pause_ms)


def may_be_applied_yet(proposal: Proposal) -> bool:
    """Return whether a write that has failed may succeed yet: as an earlier copy, when a broker is not registered."""
    return proposal.is_unknown and 0 in proposal.write.sessions.values()


def _answered(turn: Turn, event: ev.Answered) -> None:
    if turn.replica.role in (Role.ALIGNING, Role.FOLLOWING):
        following.answered(turn, event)


def _not_appended(turn: Turn, event: ev.NotAppended) -> None:
    """Ask for the same again after a while: not soon, as all of it is sent again, and a full disk stays full."""
    replica = turn.replica
    replica.log, replica.fetch = event.log, None
    replica.fetch_again_ms = turn.now_ms + replica.times.lag_ms // 4


def _produced(turn: Turn, event: ev.Produced) -> None:
    assert turn.replica.leading is not None, "only a leader appends what it is sent by producers"
    turn.move(end=event.end)


def _flushed(turn: Turn, event: ev.Flushed) -> None:
    replica = turn.replica
    if not counts(replica.log, event) or replica.is_cutting:
        return
    turn.move(flushed=max(replica.log.flushed, event.end))
    if replica.leading is not None:
        leading.flushed(turn)
    elif replica.role is Role.FOLLOWING:
        following.flushed(turn)


def counts(log: Log, event: ev.Flushed) -> bool:
    """Return whether the flush was of this log: one that was cut since has other bytes at the same offsets."""
    return event.truncations == log.truncations


def _cut(turn: Turn, event: ev.Cut) -> None:
    replica = turn.replica
    replica.log, replica.is_cutting, replica.raising_start = event.log, False, 0
    if replica.is_repairing:
        replica.is_repairing, replica.failed_in, replica.role = False, None, Role.IDLE
    if replica.role is Role.ALIGNING and replica.epoch == replica.record.leader_epoch:
        following.send_fetch(turn)
    else:
        take_role(turn)


def _start_raised(turn: Turn, event: ev.StartRaised) -> None:
    turn.move(start=event.start, epochs=event.epochs)


def _compacted(turn: Turn, event: ev.Compacted) -> None:
    turn.replica.removed_below = max(turn.replica.removed_below, event.removed_below)


def _failed(turn: Turn, event: ev.Failed) -> None:
    replica = turn.replica
    replica.fetch, replica.is_repairing = None, False
    replica.failed_in = replica.broker_epoch
    turn.refuse(event.reason)
    following.repair(turn)


def _recovery_asked(turn: Turn, event: ev.RecoveryAsked) -> None:
    replica = turn.replica
    is_able = replica.role in (Role.ALIGNING, Role.FOLLOWING) and replica.proposal is None and not replica.is_cutting
    if is_able and replica.broker_epoch and election.is_vacant(replica.record, replica.sessions):
        following.stand(turn, event.nonce)


def _heard(turn: Turn, event: ev.Ticked) -> None:
    if turn.replica.leading is not None:
        leading.echoed(turn, event.echoes)
    turn.replica.heard_ms = max(turn.replica.heard_ms, event.heard_ms)
    _ticked(turn, event)


def _ticked(turn: Turn, _: ev.Event) -> None:
    replica = turn.replica
    proposal = replica.proposal
    if proposal is not None and proposal.again_ms is not None and turn.now_ms >= proposal.again_ms:
        replica.proposal = replace(proposal, again_ms=None)
        turn.do(proposal.write)
    if replica.leading is not None:
        leading.ticked(turn)
    elif replica.role is Role.REFUSED:
        following.repair(turn)
    elif replica.role in (Role.ALIGNING, Role.FOLLOWING):
        following.ticked(turn)


_STEPS: dict[type[Any], Callable[[Turn, Any], None]] = {
    ev.RecordSeen: _record_seen,
    ev.SessionsSeen: _sessions_seen,
    ev.Written: _written,
    ev.Fetch: leading.fetched,
    ev.Answered: _answered,
    ev.NotAppended: _not_appended,
    ev.Report: leading.reported,
    ev.Produced: _produced,
    ev.Flushed: _flushed,
    ev.Cut: _cut,
    ev.StartRaised: _start_raised,
    ev.Compacted: _compacted,
    ev.Failed: _failed,
    ev.MinIsrSet: leading.min_isr_set,
    ev.RecoveryAsked: _recovery_asked,
    ev.TargetSet: leading.target_set,
    ev.HandOverAsked: leading.hand_over_asked,
    ev.Ticked: _heard,
}
