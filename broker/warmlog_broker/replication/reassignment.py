"""The next step of moving a partition to other replicas, and back to its preferred leader. The leader takes the steps.

A reassignment grows (what is missing is added), catches up (until all that stay are in sync), and completes (the others
leave). Another target takes it back first: what is added leaves. Each step is a change of the record, so any leader
goes on where the last one was.
"""

from collections.abc import Sequence

from warmlog_broker.replication.events import Sessions
from warmlog_broker.replication.record import Cancel, Complete, Grow, HandOver, Nodes, PartitionRecord


def next_step(
    record: PartitionRecord, target: Nodes | None, sessions: Sessions
) -> Cancel | Complete | Grow | HandOver | None:
    """Return what the leader changes to come closer to `target`; None if it waits, or has arrived.

    Without a target it goes on with a reassignment that is under way.
    """
    staying = tuple(node for node in record.replicas if node not in record.removing)
    if target is not None and staying != target:
        if not (record.adding or record.removing):
            return Grow(target)
        if record.leader not in record.adding:
            return Cancel()
        return _handed_over([node for node in record.isr if node not in record.adding], sessions)
    if not (record.adding or record.removing) or not set(staying) <= set(record.isr):
        return None
    if record.leader not in record.removing:
        return Complete()
    return _handed_over(staying, sessions)


def _handed_over(nodes: Sequence[int], sessions: Sessions) -> HandOver | None:
    ready = [node for node in nodes if node in sessions and sessions[node].is_ready]
    return HandOver(ready[0]) if ready else None


def preferred_leader(record: PartitionRecord, sessions: Sessions) -> int | None:
    """Return the replica that should lead instead: the first one, if it is in sync and able; None if it leads.

    The caller waits until this has been so for a while: a slow member would get and lose the leadership in turns.
    """
    first = record.replicas[0]
    session = sessions.get(first)
    is_able = session is not None and session.is_ready and session.has_room
    is_staying = first in record.isr and first not in record.removing
    return first if is_able and is_staying and first != record.leader else None
