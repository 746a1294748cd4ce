"""What a leader knows of the other replicas, and what follows: the committed offset, who is in sync, its confirmation.

All of it is about one leader epoch, and forgotten with it. Nothing is assumed of a member of the in-sync set until it
has fetched in this epoch.
"""

from collections.abc import Mapping

import msgspec

from warmlog_broker.replication.alignment import Log
from warmlog_broker.replication.events import NEVER, Fetch, Report, Session, Sessions
from warmlog_broker.replication.record import PartitionRecord


class Follower(msgspec.Struct, frozen=True):
    """One replica, as of its last fetch that agreed with the leader's log."""

    broker_epoch: int
    flushed: int
    log_start: int
    echoed_ms: int = NEVER
    """The leader's time that it has echoed: it did not stand for election before that."""
    goal: int = 0
    goal_ms: int = NEVER
    caught_up_ms: int = NEVER
    """It had flushed all of the log as of this time: when it reaches `goal`, that of `goal_ms`."""


Followers = Mapping[int, Follower]


def progressed(follower: Follower, log_end: int, now_ms: int) -> Follower:
    """Return the follower with its goal moved on, if it has flushed up to the last one."""
    if follower.flushed < follower.goal:
        return follower
    caught_up_ms = now_ms if follower.flushed >= log_end else follower.goal_ms
    return msgspec.structs.replace(follower, goal=log_end, goal_ms=now_ms, caught_up_ms=caught_up_ms)


def after_fetch(known: Follower | None, fetch: Fetch, log_end: int, now_ms: int) -> Follower:
    """Return what a fetch that agrees says about its replica."""
    flushed = min(fetch.flushed, fetch.offset)
    if known is None or known.broker_epoch != fetch.broker_epoch:
        known = Follower(fetch.broker_epoch, flushed, fetch.log_start, fetch.echo_ms, flushed, now_ms, now_ms)
    follower = msgspec.structs.replace(
        known,
        flushed=max(known.flushed, flushed),
        log_start=max(known.log_start, fetch.log_start),
        echoed_ms=max(known.echoed_ms, fetch.echo_ms),
    )
    return progressed(follower, log_end, now_ms)


def after_echo(known: Follower, echo_ms: int, log_end: int, now_ms: int) -> Follower:
    """Return what an echo of the leader's time says about a replica whose fetch waits."""
    return progressed(msgspec.structs.replace(known, echoed_ms=echo_ms), log_end, now_ms)


def after_report(known: Follower, report: Report, log_end: int, now_ms: int) -> Follower:
    """Return what a report says about its replica; it counts only in the registration of its last fetch."""
    if known.broker_epoch != report.broker_epoch or report.flushed <= known.flushed:
        return known
    return progressed(msgspec.structs.replace(known, flushed=report.flushed), log_end, now_ms)


def maximal_isr(record: PartitionRecord, proposed: PartitionRecord | None) -> frozenset[int]:
    """Return the in-sync set together with the members of one that is written and may be stored already.

    Who leaves it counts until the write has succeeded, who joins it from before it is sent.
    """
    return frozenset(record.isr).union(proposed.isr if proposed is not None else ())


def committed(record: PartitionRecord, maximal: frozenset[int], followers: Followers, node: int, log: Log) -> int:
    """Return the offset below which the leader `node` may call everything committed; never below what it was."""
    if len(record.isr) < record.required:
        return log.high_watermark
    lowest = log.flushed
    for member in maximal:
        if member != node:
            follower = followers.get(member)
            if follower is None:
                return log.high_watermark
            lowest = min(lowest, follower.flushed)
    return max(log.high_watermark, lowest)


def lowest_start(record: PartitionRecord, maximal: frozenset[int], followers: Followers, node: int, log: Log) -> int:
    """Return the offset below which no replica that may be elected has records: below it they are deleted for good."""
    starts = [followers[each].log_start if each in followers else 0 for each in voters(record, maximal, node)]
    return min([log.start, *starts])


def voters(record: PartitionRecord, maximal: frozenset[int], node: int) -> frozenset[int]:
    """Return the other replicas that may be elected."""
    return maximal.union(record.elr) - {node}


def confirmed_ms(
    record: PartitionRecord, maximal: frozenset[int], followers: Followers, node: int, *, read_ms: int, now_ms: int
) -> int:
    """Return a time at which the leader `node` surely led: no other replica had been elected then.

    A candidate stops fetching before it stands, so the echo of each replica that may be elected proves it; so does a
    linearizable read of the record that began at `read_ms`.
    """
    echoes = [followers[each].echoed_ms if each in followers else NEVER for each in voters(record, maximal, node)]
    return max(read_ms, min(echoes, default=now_ms))


def may_join(
    record: PartitionRecord, node: int, follower: Follower, session: Session | None, log: Log, epoch_start: int
) -> bool:
    """Return whether a replica that is not in the in-sync set may be taken in.

    It has all that is committed, by this leader and by those before it, and has removed what was deleted.
    """
    return (
        node not in record.isr
        and node in record.replicas
        and session is not None
        and session.is_ready
        and session.broker_epoch == follower.broker_epoch
        and has_reached(follower, log, epoch_start)
        and follower.log_start >= log.start
    )


def has_reached(follower: Follower, log: Log, epoch_start: int) -> bool:
    """Return whether it has flushed what is known to be committed, and what was committed before this epoch."""
    return follower.flushed >= log.high_watermark and follower.flushed >= epoch_start


def lagging(
    record: PartitionRecord,
    followers: Followers,
    sessions: Sessions,
    node: int,
    *,
    since_ms: int,
    now_ms: int,
    lag_ms: int,
) -> frozenset[int]:
    """Return the members that are not in sync any more; the leader's epoch began at `since_ms`.

    One that stops is needed until it has told how far it is: without it nothing could be committed.
    """

    def is_late(member: int) -> bool:
        session, follower = sessions.get(member), followers.get(member)
        if session is None or (not session.is_ready and follower is not None):
            return True
        return now_ms - (since_ms if follower is None else follower.caught_up_ms) > lag_ms

    return frozenset(member for member in record.isr if member != node and is_late(member))
