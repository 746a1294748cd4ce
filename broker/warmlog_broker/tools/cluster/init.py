"""Creates a cluster in etcd: an empty one, or of a broker that was alone, which is stopped.

What the metadata log of that broker has of topics, users, rights and quotas is written to etcd, each partition with the
one replica that it has; the broker then starts as the first of the cluster. The cluster's own key is written last, and
no broker starts without it: an attempt that was interrupted is made again.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from warmlog_broker.cluster.keys import FEATURE_LEVEL, ClusterValue, Keys, to_bytes
from warmlog_broker.cluster.settling import OUTCOME_TIMEOUT_S, new_author, settled
from warmlog_broker.cluster.store import EtcdStore
from warmlog_broker.cluster.view import View
from warmlog_broker.etcd.coordination import ChangedAt, Coordination, Failed, Put
from warmlog_broker.metadata import metadata_log
from warmlog_broker.metadata.log_file import FILE_NAME, read_state
from warmlog_broker.metadata.store import Replicas
from warmlog_broker.replication.record import PartitionRecord
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.storage.directory.data_dir import DataDirectory
from warmlog_protocol.errors import DuplicateResource, StorageError


class TakenOver(NamedTuple):
    """What a cluster has from a broker that was alone."""

    cluster_id: str
    node: int
    topics: int
    partitions: int
    users: int
    rules: int


async def create_cluster(etcd: Coordination, cluster_id: str, level: int = FEATURE_LEVEL) -> None:
    """Create an empty cluster of this feature level.

    DuplicateResource if there is one of this name, RequestTimedOut, Refused.
    """
    keys, by = Keys(cluster_id), new_author(-1)
    put = Put(keys.cluster, to_bytes(ClusterValue(by=by, created_ms=now_ms(), level=level)))
    done = await settled(etcd, by, [ChangedAt(keys.cluster, 0)], [put], timeout_s=OUTCOME_TIMEOUT_S)
    if isinstance(done, Failed):
        raise _exists(cluster_id)


def _exists(cluster_id: str) -> DuplicateResource:
    return DuplicateResource(f"etcd has a cluster {cluster_id!r} already; nothing was changed")


def read_broker(data_dir: Path) -> tuple[metadata_log.MetadataState, TakenOver]:
    """Return what a stopped broker knows, and what a cluster takes over of it.

    Raises DirectoryLocked if the broker runs, StorageError if it has no metadata log or is of a cluster already.
    """
    DataDirectory.lock(data_dir, must_exist=True).close()
    path = data_dir / FILE_NAME
    try:
        state = read_state(path)
    except FileNotFoundError:
        raise StorageError(f"there is no {path}: give the first data directory of the broker") from None
    if state.cluster is None or state.marks is not None:
        raise StorageError(f"{path}: the broker is one of a cluster already, or was never started")
    return state, TakenOver(
        state.cluster.cluster_id,
        state.cluster.node_id,
        len(state.topics),
        sum(topic.partitions for topic in state.topics.values()),
        len(state.users),
        len(state.acls),
    )


async def take_over(etcd: Coordination, state: metadata_log.MetadataState, cluster_id: str) -> None:
    """Create the cluster of a broker that was alone. DuplicateResource, RequestTimedOut, StorageError."""
    assert state.cluster is not None
    view = View(etcd, Keys(cluster_id), state.cluster.node_id)
    async with view.followed():
        if view.items.get(view.keys.cluster) is not None:
            raise _exists(cluster_id)
        store = _OneBroker(etcd, view, state)
        for entry in _entries(state):
            await store.commit([entry])
    await create_cluster(etcd, cluster_id)


def _entries(state: metadata_log.MetadataState) -> Iterator[metadata_log.Entry]:
    yield from state.topics.values()
    yield metadata_log.ProducerIdsReserved(state.next_producer_id)
    if state.user_secret:
        yield metadata_log.UserSecretMade(state.user_secret)
    for user in state.users.values():
        yield metadata_log.UserAltered(*(getattr(user, name) for name in metadata_log.UserAltered.__struct_fields__))
    for rule in state.acls:
        yield metadata_log.AclsCreated([rule])
    for (user_name, client_id), limits in state.quotas.items():
        yield metadata_log.QuotaAltered(user_name, client_id, limits)


class _OneBroker(EtcdStore):
    """Topics that are created by this are those of the one broker that has their partitions."""

    def __init__(self, etcd: Coordination, view: View, known: metadata_log.ClusterState) -> None:
        super().__init__(etcd, view)
        self._known = known

    def _first_records(
        self, topic: metadata_log.TopicCreated, numbers: range, _chosen: Replicas
    ) -> dict[int, PartitionRecord]:
        node = self.view.node
        return {
            number: PartitionRecord(
                leader=node, leader_epoch=self._known.leader_epoch(topic, number), replicas=(node,), isr=(node,)
            )
            for number in numbers
        }
