"""What an operator changes in a cluster by etcd: orders for brokers, and the exclusion of one whose disks are lost.

The command line does so itself, and a broker for the clients that ask it to.
"""

from collections.abc import Sequence
from uuid import uuid4

from msgspec.structs import replace

from warmlog_broker.cluster.keys import (
    FEATURE_LEVEL,
    ClusterValue,
    DrainedValue,
    NodeValue,
    OrderValue,
    Value,
    from_bytes,
    to_bytes,
)
from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.cluster.settling import asked, new_author
from warmlog_broker.cluster.start import changed_record
from warmlog_broker.cluster.view import View
from warmlog_broker.etcd.coordination import ChangedAt, Coordination, Delete, Failed, Operation, Put
from warmlog_broker.replication.record import Exclude, Nodes, PartitionRecord
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.topics.topics import check_replicas
from warmlog_protocol.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidReplicationFactor,
    InvalidRequest,
    NoReassignmentInProgress,
    PreferredLeaderNotAvailable,
    RequestTimedOut,
    ResourceNotFound,
    UnknownTopicOrPartition,
)


async def order(etcd: Coordination, view: View, key: PartitionKey, wanted: OrderValue) -> OrderValue:
    """Want something of a partition, in place of what was wanted before; a recovery leaves a move as it is.

    Return the order. InvalidRequest or InvalidReplicaAssignment if it cannot be.
    """
    record, moved_to = _record(view, key), _moved_to(view, key)
    if wanted.replicas is not None:
        check_replicas([wanted.replicas], len(wanted.replicas), {*view.brokers, *record.replicas})
    if wanted.leader is not None and moved_to is not None:
        raise InvalidRequest(f"the partition is moved to the brokers {list(moved_to)}: wait, or take that back first")
    if wanted.leader is not None and wanted.leader not in record.isr:
        raise InvalidRequest(f"broker {wanted.leader} is not in sync: the in-sync set is {list(record.isr)}")
    if wanted.recover is not None:
        if wanted.recover not in record.replicas:
            raise InvalidRequest(f"broker {wanted.recover} is not one of the replicas {list(record.replicas)}")
        if record.leader in view.brokers:
            raise InvalidRequest(f"broker {record.leader} leads the partition: nothing has to be recovered")
        wanted = replace(wanted, replicas=moved_to, nonce=str(uuid4()))
    await _write(etcd, view, view.keys.order(*key), wanted)
    return wanted


def is_wanted(view: View, key: PartitionKey, election: OrderValue) -> bool:
    """Return whether an election that was ordered is not done yet."""
    now = view.orders.get(key)
    return now is not None and (now.leader, now.nonce) == (election.leader, election.nonce)


async def withdraw(etcd: Coordination, view: View, key: PartitionKey) -> None:
    """Want no election of a partition any more; a move stays as it is."""
    moved_to = _moved_to(view, key)
    await _write(etcd, view, view.keys.order(*key), None if moved_to is None else OrderValue(replicas=moved_to))


async def drain(etcd: Coordination, view: View, node: int, *, is_drained: bool) -> None:
    """Let a broker hand over what it leads, and lead nothing; or take that back."""
    if node not in view.brokers and is_drained:
        raise ResourceNotFound(f"broker {node} is not registered: {sorted(view.brokers)} are")
    value = DrainedValue(since_ms=now_ms()) if is_drained else None
    await _write(etcd, view, view.keys.drained(node), value)


async def exclude(etcd: Coordination, view: View, node: int) -> int:
    """Take a broker whose disks are lost out of all in-sync sets, so that it may start with new ones.

    Return the number of partitions that it has a replica of. Raises InvalidRequest if it is registered, and
    ResourceNotFound.
    """
    if node in view.brokers:
        raise InvalidRequest(f"broker {node} is registered, so it runs: stop it first, or wait until it has run out")
    if view.items.get(view.keys.node(node)) is None:
        raise ResourceNotFound(f"the cluster has no node {node}")
    own = {key: seen for key, seen in view.records.items() if node in seen.record.replicas}
    for key, seen in own.items():
        if node in seen.record.eligible:
            await changed_record(etcd, view, key, seen, Exclude(), node)
    await _write(etcd, view, view.keys.node(node), None)
    return len(own)


async def raise_level(etcd: Coordination, view: View) -> None:
    """Let the cluster have the feature level of this version. InvalidRequest if a node does not know it yet."""
    keys = {node: view.keys.node(node) for node in sorted(view.nodes)}
    nodes = {node: from_bytes(key, view.items[key].value, NodeValue) for node, key in keys.items()}
    if old := {node: value.version for node, value in nodes.items() if value.level < FEATURE_LEVEL}:
        told = ", ".join(f"{node} ({version})" for node, version in old.items())
        raise InvalidRequest(
            f"brokers that do not know the feature level {FEATURE_LEVEL} yet: {told}. Start them with this version "
            "first; one that is gone for good is taken out by `warmlog cluster replace`"
        )
    key = view.keys.cluster
    value = from_bytes(key, view.items[key].value, ClusterValue)
    if value.level < FEATURE_LEVEL:
        await _write(etcd, view, key, replace(value, level=FEATURE_LEVEL))


def alone_in(view: View, node: int) -> list[PartitionKey]:
    """Return the partitions of which no other broker has all records: they are lost with the disks of `node`."""
    return [key for key, seen in view.records.items() if seen.record.eligible == {node}]


def election(view: View, key: PartitionKey, *, is_unclean: bool = False) -> OrderValue:
    """Return the order for the first replica to lead, or for any one, if it `is_unclean` and there is no leader.

    ElectionNotNeeded, PreferredLeaderNotAvailable, EligibleLeadersNotAvailable.
    """
    record = _record(view, key)
    first, leader = record.replicas[0], record.leader
    if leader in view.brokers and (is_unclean or leader == first):
        raise ElectionNotNeeded(f"broker {leader} leads the partition")
    if is_unclean:
        if not (able := [node for node in record.replicas if node in view.brokers]):
            raise EligibleLeadersNotAvailable(f"none of the brokers {list(record.replicas)} runs: start one of them")
        best = min(able, key=lambda node: (node not in record.eligible, node not in record.last_known_elr))
        return OrderValue(recover=best)
    if (moved_to := _moved_to(view, key)) is not None:
        raise PreferredLeaderNotAvailable(f"the partition is moved to the brokers {list(moved_to)}: wait for that")
    if first not in record.isr or first not in view.racks():
        raise PreferredLeaderNotAvailable(f"broker {first} is stopping, or not in sync: {list(record.isr)} are")
    return OrderValue(leader=first)


def target(view: View, key: PartitionKey) -> Nodes | None:
    """Return the replicas that a partition is about to have; None if it is not moved to other brokers."""
    record, moved_to = _record(view, key), _moved_to(view, key)
    if moved_to is not None:
        return moved_to
    staying = tuple(node for node in record.replicas if node not in record.removing)
    return staying if record.adding or record.removing else None


def reassignment(view: View, key: PartitionKey, wanted: Sequence[int] | None, *, keeps_count: bool) -> OrderValue:
    """Return the order for other replicas, or, without `wanted`, for those of before the move that is under way.

    NoReassignmentInProgress; InvalidReplicationFactor if there are more or fewer, and with `keeps_count` must not be.
    """
    record = _record(view, key)
    present = [node for node in record.replicas if node not in record.adding]
    if wanted is None:
        if target(view, key) is None:
            raise NoReassignmentInProgress("the partition is not moved to other brokers: there is nothing to take back")
        wanted = present
    elif keeps_count and len(wanted) != len(present):
        raise InvalidReplicationFactor(f"{len(wanted)} replicas in the place of {len(present)}: allow another number")
    return OrderValue(replicas=tuple(wanted))


def _moved_to(view: View, key: PartitionKey) -> Nodes | None:
    wanted = view.orders.get(key)
    return None if wanted is None else wanted.replicas


def _record(view: View, key: PartitionKey) -> PartitionRecord:
    if (seen := view.records.get(key)) is None:
        raise UnknownTopicOrPartition("the topic was just deleted")
    return seen.record


async def _write(etcd: Coordination, view: View, key: str, value: Value | None) -> None:
    """Put a value, or delete the key. RequestTimedOut if it is changed at the same time."""
    by = new_author(-1)
    operation: Operation = Delete(key) if value is None else Put(key, to_bytes(replace(value, by=by)))
    done = await asked(etcd, view, by, [ChangedAt(key, view.changed_at(key))], [operation])
    if isinstance(done, Failed):
        raise RequestTimedOut(f"{key} was changed at the same time: try again")
    await view.reached(done.revision)
