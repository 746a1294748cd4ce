"""Several brokers in memory with a common view, for tests of the client: a test moves leaders and coordinators.

They share the logs, as if each record was replicated at once. Each broker has the view of the cluster, unless a test
gives it one of its own: then it is late.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Self

import warmlog
from fake_broker import FakeBroker, FakePartition, topic_id
from warmlog_protocol import messages as m
from warmlog_transport.cluster import coordinator_key

Leader = tuple[int, int]
"""A node id, -1 for none, and the leader epoch."""


@dataclass(frozen=True)
class View:
    """What a broker knows."""

    leaders: dict[tuple[str, int], Leader] = field(default_factory=dict)
    """Without an entry the first broker leads, in epoch 0."""
    coordinators: dict[str, int] = field(default_factory=dict)
    """By group or transactional id. Without an entry it is the first broker."""

    def leader(self, topic: str, partition: int) -> Leader:
        return self.leaders.get((topic, partition), (0, 0))


class ClusterBroker(FakeBroker):
    """One of them. It refuses requests as a broker does that does not lead, or in another epoch."""

    def __init__(self, node_id: int, cluster: "FakeCluster") -> None:
        super().__init__()
        self.node_id = node_id
        self.topics = cluster.topics
        self.own_view: View | None = None
        """What it knows while it is late."""
        self.asked: list[m.Message] = []
        """Every request but those for records."""
        self.fetches: list[m.FetchPartition] = []
        self._cluster = cluster
        self.fetch_error = self._why_not_read
        self.refusal = self._why_not
        self.further_handlers = {m.FindCoordinatorRequest: self._find_coordinator}

    @property
    def view(self) -> View:
        return self.own_view or self._cluster.view

    def _why_not_read(self, asked: m.FetchPartition) -> warmlog.ApiError | None:
        self.fetches.append(asked)
        leader, epoch = self.view.leader(asked.topic, asked.partition)
        if leader != self.node_id:
            return warmlog.NotLeaderOrFollower(f"broker {leader} leads")
        if asked.current_leader_epoch < epoch:
            return warmlog.FencedLeaderEpoch(f"epoch {asked.current_leader_epoch}, it is {epoch}")
        if asked.current_leader_epoch > epoch:
            return warmlog.UnknownLeaderEpoch(f"epoch {asked.current_leader_epoch}, known is {epoch}")
        return None

    def _why_not(self, message: m.Message) -> warmlog.ApiError | None:
        self.asked.append(message)
        coordinated = coordinator_key(message)
        if coordinated is not None and self.view.coordinators.get(coordinated[1], 0) != self.node_id:
            return warmlog.NotCoordinator("ask again")
        return None

    def _partition(self, topic: str, partition: int) -> FakePartition:
        leader, _ = self.view.leader(topic, partition)
        if leader != self.node_id:
            raise warmlog.NotLeaderOrFollower(f"broker {leader} leads")
        return super()._partition(topic, partition)

    def _metadata(self, request: m.MetadataRequest) -> m.MetadataResponse:
        brokers = [m.BrokerMetadata(each.node_id, "127.0.0.1", each.port) for each in self._cluster.brokers]
        return m.MetadataResponse("cluster", 0, brokers, super()._metadata(request).topics)

    def _topic_metadata(self, name: str) -> m.TopicMetadata:
        if name not in self.topics:
            return super()._topic_metadata(name)
        nodes = [broker.node_id for broker in self._cluster.brokers]
        partitions = []
        for number in range(len(self.topics[name])):
            leader, epoch = self.view.leader(name, number)
            code = warmlog.ErrorCode.LEADER_NOT_AVAILABLE if leader < 0 else 0
            partitions.append(m.PartitionMetadata(code, number, leader, epoch, nodes, nodes))
        return m.TopicMetadata(0, name, topic_id(name), partitions)

    def _find_coordinator(self, request: m.FindCoordinatorRequest) -> m.FindCoordinatorResponse:
        found = []
        for key in request.keys:
            node_id = self.view.coordinators.get(key, 0)
            code = warmlog.ErrorCode.COORDINATOR_NOT_AVAILABLE if node_id < 0 else 0
            port = 0 if code else self._cluster.brokers[node_id].port
            found.append(m.FoundCoordinator(code, "", key, node_id, "127.0.0.1", port))
        return m.FindCoordinatorResponse(found)


class FakeCluster:
    """An async context manager: `count` brokers with the node ids 0, 1, …"""

    def __init__(self, count: int = 3, **topics: int) -> None:
        self.topics = {name: [FakePartition() for _ in range(number)] for name, number in topics.items()}
        self.view = View()
        self.brokers = [ClusterBroker(node_id, self) for node_id in range(count)]
        self._stack = AsyncExitStack()

    @property
    def addresses(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def lead(self, node_id: int, epoch: int, topic: str = "t", partition: int = 0) -> None:
        """Have a broker lead a partition; -1 for none."""
        self.view = replace(self.view, leaders={**self.view.leaders, (topic, partition): (node_id, epoch)})

    def coordinate(self, node_id: int, key: str) -> None:
        """Have a broker coordinate a group or transactional id; -1 for none."""
        self.view = replace(self.view, coordinators={**self.view.coordinators, key: node_id})

    def answer(self, kind: type[m.Message], handler: Callable[..., m.Message]) -> None:
        """Have each broker answer requests of this kind so."""
        for broker in self.brokers:
            broker.further_handlers[kind] = handler

    async def __aenter__(self) -> Self:
        for broker in self.brokers:
            await self._stack.enter_async_context(broker)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
