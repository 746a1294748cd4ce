"""What coordinators and leaders do on other brokers: markers, enrolment, offsets that wait for a transaction.

Each is asked of this broker first. What it does not lead is asked of the leader that the view knows. A broker that does
not lead it either raises an error after which the caller tries again.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar
from zlib import crc32

from warmlog_broker.cluster.data_path.peers import Peers
from warmlog_broker.cluster.data_path.replicas import Replicas
from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.coordinator.transaction.ports import Markers, PendingOffsets
from warmlog_broker.topics.topics import Topics
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, CoordinatorNotAvailable, NotCoordinator, NotLeaderOrFollower, WarmlogError

R = TypeVar("R", bound=m.Message)

GROUPS, TRANSACTIONS = "__groups", "__transactions"


class OtherBrokers:
    """Calls to the leaders of partitions on other brokers. As `Elsewhere` for coordinators."""

    def __init__(self, replicas: Replicas, peers: Peers, topics: Topics) -> None:
        self._replicas = replicas
        self._peers = peers
        self._topics = topics

    def markers(self, local: Markers) -> "ClusterMarkers":
        return ClusterMarkers(local, self)

    def pending_offsets(self, local: PendingOffsets) -> "ClusterPendingOffsets":
        return ClusterPendingOffsets(local, self)

    async def ask_leader(self, key: PartitionKey, request: m.Message, expected: type[R]) -> R:
        """Return the response of the broker that leads a partition. NotLeaderOrFollower if none can be asked."""
        leader = self._replicas.leader_of(key)
        if leader is None or leader == self._replicas.node.node:
            raise NotLeaderOrFollower(f"partition {key.number} of topic {key.topic_id.hex()} has no leader now")
        connection = await self._peers.connected(leader)
        if connection is None:
            raise NotLeaderOrFollower(f"broker {leader}, which leads the partition, cannot be reached")
        try:
            return await connection.call(request, expected)
        except ApiError:
            raise
        except WarmlogError as error:
            raise NotLeaderOrFollower(f"broker {leader} did not answer: {error}") from error

    async def ask_coordinator(self, topic: str, name: str, request: m.Message, expected: type[R]) -> R:
        """Return the response of the broker that coordinates `name`, by the internal topic that has its state."""
        found = self._topics.find(topic)
        if found is None:
            raise CoordinatorNotAvailable(f"{topic} is not known here yet")
        key = PartitionKey(found.topic_id, crc32(name.encode()) % found.count)
        try:
            return await self.ask_leader(key, request, expected)
        except NotLeaderOrFollower as error:
            raise CoordinatorNotAvailable(str(error)) from error


class ClusterMarkers:
    """As `Markers`."""

    def __init__(self, local: Markers, others: OtherBrokers) -> None:
        self._local = local
        self._others = others

    async def end(self, request: m.WriteMarkerRequest) -> bool:
        try:
            return await self._local.end(request)
        except NotLeaderOrFollower:
            key = PartitionKey(request.topic_id, request.partition)
        return (await self._others.ask_leader(key, request, m.WriteMarkerResponse)).is_open


class ClusterPendingOffsets:
    """As `PendingOffsets`."""

    def __init__(self, local: PendingOffsets, others: OtherBrokers) -> None:
        self._local = local
        self._others = others

    async def add_pending(
        self, request: m.AddPendingOffsetsRequest, check: Callable[[], None]
    ) -> m.OffsetCommitResponse:
        try:
            return await self._local.add_pending(request, check)
        except NotCoordinator:
            check()
        return await self._others.ask_coordinator(GROUPS, request.commit.group, request, m.OffsetCommitResponse)

    async def end_pending(self, request: m.EndPendingOffsetsRequest) -> None:
        try:
            await self._local.end_pending(request)
        except NotCoordinator:
            await self._others.ask_coordinator(GROUPS, request.group, request, m.EndPendingOffsetsResponse)

    def pending(self) -> Iterator[tuple[str, int, int, int]]:
        """Of the groups of this broker alone."""
        return self._local.pending()
