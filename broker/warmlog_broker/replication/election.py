"""Who stands for election, and when."""

from warmlog_broker.replication.events import Sessions, Times
from warmlog_broker.replication.record import NO_LEADER, Elect, Nodes, PartitionRecord


def is_vacant(record: PartitionRecord, sessions: Sessions) -> bool:
    """Return whether the partition has no leader that is alive."""
    return record.leader == NO_LEADER or record.leader not in sessions


def candidates(record: PartitionRecord, sessions: Sessions) -> Nodes:
    """Return who may stand, first those who should: of the in-sync set, else of the other eligible replicas.

    Those that started after a clean stop come first: a disk that lies about its flushes has not lost anything there.
    """
    for group in (record.isr, record.elr):
        ready = [node for node in record.replicas if node in group and node in sessions and sessions[node].is_ready]
        if ready:
            return tuple(sorted(ready, key=lambda node: not sessions[node].was_clean))
    return ()


def standing_at_ms(
    record: PartitionRecord, sessions: Sessions, node: int, *, vacant_since_ms: int, heard_ms: int, times: Times
) -> int | None:
    """Return when a replica stands for election; None if others may, and it may not.

    One that has heard from the leader a short while ago waits: the registration may have been lost, not the leader.
    """
    order = candidates(record, sessions)
    if node not in order:
        return None
    at_ms = vacant_since_ms + order.index(node) * times.rank_ms
    return at_ms if record.leader == NO_LEADER else max(at_ms, heard_ms + times.grace_ms)


def candidacy(record: PartitionRecord, sessions: Sessions, recovering: str = "") -> Elect:
    """Return the change by which a replica stands: members that are not alive leave."""
    return Elect(frozenset(member for member in record.isr if member not in sessions), recovering)


def conditions(record: PartitionRecord, node: int, broker_epoch: int) -> dict[int, int]:
    """Return the registrations that must hold for an election to be valid: its own, and none of the old leader.

    Without the second, a candidate whose view lags would depose a leader that is alive.
    """
    gone = {} if record.leader in (NO_LEADER, node) else {record.leader: 0}
    return {node: broker_epoch, **gone}
