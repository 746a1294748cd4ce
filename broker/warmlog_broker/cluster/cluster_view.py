"""The `ClusterView` of a broker of a cluster."""

from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.cluster.view import View
from warmlog_broker.replica.cluster_view import NO_LEADER, BrokerAddress, Leadership
from warmlog_broker.replica.partition import Partition


class EtcdClusterView:
    """The cluster as clients see it: the brokers that are registered, and the records of partitions."""

    def __init__(self, view: View) -> None:
        self.cluster_id = view.keys.cluster_id
        self.node_id = view.node
        self._view = view

    @property
    def controller_id(self) -> int:
        """The first broker: any of them takes requests that change the cluster."""
        return min(self._view.brokers, default=self.node_id)

    def brokers(self, listener: str) -> list[BrokerAddress]:
        """As `ClusterView.brokers`: those that have a listener of this name."""
        return [
            BrokerAddress(node, *each.value.endpoints[listener])
            for node, each in sorted(self._view.brokers.items())
            if listener in each.value.endpoints
        ]

    def leadership(self, topic_id: bytes, number: int, _here: Partition | None) -> Leadership:
        """As `ClusterView.leadership`. A leader that is not registered leads no longer."""
        seen = self._view.records.get(PartitionKey(topic_id, number))
        if seen is None:
            return Leadership(NO_LEADER, -1, [], [])
        record = seen.record
        leader = record.leader if record.leader in self._view.brokers else NO_LEADER
        return Leadership(leader, record.leader_epoch, list(record.replicas), list(record.isr))
