"""What an operator changes in a cluster by etcd: orders for brokers, and the exclusion of one whose disks are lost."""

from collections.abc import Iterable
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
from warmlog_broker.cluster.settling import new_author, settled
from warmlog_broker.cluster.start import changed_record
from warmlog_broker.cluster.store import OUTCOME_TIMEOUT_S
from warmlog_broker.cluster.view import View
from warmlog_broker.etcd.coordination import ChangedAt, Coordination, Delete, Failed, Operation, Put
from warmlog_broker.replication.record import Exclude
from warmlog_broker.runtime.clock import now_ms
from warmlog_protocol.errors import InvalidRequest, RequestTimedOut, ResourceNotFound


async def order(etcd: Coordination, view: View, key: PartitionKey, wanted: OrderValue) -> None:
    """Want something of a partition, in place of what was wanted before. InvalidRequest if it cannot be."""
    record = view.records[key].record
    unknown = [node for node in wanted.replicas or () if node not in view.brokers]
    if unknown:
        raise InvalidRequest(f"brokers {unknown} are not registered: {sorted(view.brokers)} are")
    if wanted.leader is not None and wanted.leader not in record.isr:
        raise InvalidRequest(f"broker {wanted.leader} is not in sync: the in-sync set is {list(record.isr)}")
    if wanted.recover is not None:
        if wanted.recover not in record.replicas:
            raise InvalidRequest(f"broker {wanted.recover} is not one of the replicas {list(record.replicas)}")
        if record.leader in view.brokers:
            raise InvalidRequest(f"broker {record.leader} leads the partition: nothing has to be recovered")
        wanted = replace(wanted, nonce=str(uuid4()))
    await _write(etcd, view, view.keys.order(*key), wanted)


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
    nodes = {
        view.keys.parts(key)[1]: from_bytes(key, item.value, NodeValue)
        for key, item in view.items.items()
        if view.keys.parts(key)[0] == "nodes"
    }
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


def preferred(view: View, keys: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
    """Return the partitions whose first replica could lead, and does not, with that replica."""
    found = {}
    for key in keys:
        record = view.records[key].record
        first = record.replicas[0]
        if first != record.leader and first in record.isr and first in view.brokers:
            found[key] = first
    return found


async def _write(etcd: Coordination, view: View, key: str, value: Value | None) -> None:
    """Put a value, or delete the key. RequestTimedOut if it is changed at the same time."""
    by = new_author(-1)
    operation: Operation = Delete(key) if value is None else Put(key, to_bytes(replace(value, by=by)))
    done = await settled(etcd, by, [ChangedAt(key, view.changed_at(key))], [operation], timeout_s=OUTCOME_TIMEOUT_S)
    if isinstance(done, Failed):
        raise RequestTimedOut(f"{key} was changed at the same time: try again")
    await view.reached(done.revision)
