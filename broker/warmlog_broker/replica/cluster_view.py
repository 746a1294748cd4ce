"""The cluster as clients see it: its brokers, and the leader and replicas of each partition."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from warmlog_broker.config.listeners import Listener
from warmlog_broker.replica.partition import Partition

DIALLED_HOST = ""
"""Instead of a broker's host: the address that the client connected to."""
NO_LEADER = -1


class BrokerAddress(NamedTuple):
    """The address at which clients reach a broker."""

    node_id: int
    host: str
    port: int
    rack: str = ""


class Leadership(NamedTuple):
    """The leader and the replicas of a partition, by node ids."""

    leader_id: int
    """NO_LEADER while the partition is offline."""
    leader_epoch: int
    replicas: list[int]
    in_sync_replicas: list[int]


class ClusterView(Protocol):
    """What one broker knows of the cluster."""

    cluster_id: str
    node_id: int
    """Of this broker."""

    def brokers(self, listener: str) -> list[BrokerAddress]:
        """Return the brokers for a client that came by this listener, by node id; this one is always among them.

        Any takes requests that change the cluster.
        """
        ...

    def leadership(self, topic_id: bytes, number: int, here: Partition | None) -> Leadership:
        """Return the leader and the replicas of a partition now; `here` is this broker's replica, if it has one."""
        ...


class LoneClusterView:
    """A cluster of this broker alone, which leads every partition that it can read."""

    def __init__(self, cluster_id: str, node_id: int, listeners: Iterable[Listener] = ()) -> None:
        self.cluster_id = cluster_id
        self.node_id = node_id
        self._advertised = {each.name: each.advertised for each in listeners if each.advertised is not None}

    def brokers(self, listener: str) -> list[BrokerAddress]:
        """As `ClusterView.brokers`."""
        return [BrokerAddress(self.node_id, *self._advertised.get(listener, (DIALLED_HOST, 0)))]

    def leadership(self, _topic_id: bytes, _number: int, here: Partition | None) -> Leadership:
        """As `ClusterView.leadership`: every partition is here."""
        assert here is not None
        if not here.allows.read:
            return Leadership(NO_LEADER, here.leader_epoch, [self.node_id], [])
        return Leadership(self.node_id, here.leader_epoch, [self.node_id], [self.node_id])
