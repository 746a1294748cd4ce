"""What coordinators and leaders do on other brokers: markers, enrolment, offsets that wait for a transaction.

Each is asked of this broker first. What it does not lead is asked of the leader that the view knows. A broker that does
not lead it either raises an error after which the caller tries again.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol, TypeVar
from zlib import crc32

from warmlog_broker.cluster.data_path.peers import Peers
from warmlog_broker.cluster.data_path.replicas import Replicas
from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.coordinator.framework.decision import PartitionId
from warmlog_broker.coordinator.transaction.decisions.state import Incarnation
from warmlog_broker.coordinator.transaction.ports import Markers, PendingOffsets
from warmlog_broker.topics.topics import Topics
from warmlog_protocol import messages as m
from warmlog_protocol.errors import (
    ApiError,
    CoordinatorNotAvailable,
    NotCoordinator,
    NotLeaderOrFollower,
    WarmlogError,
)

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

    async def end(
        self, partition: PartitionId, producer: Incarnation, *, commits: bool, keeps_epoch: bool, coordinator_epoch: int
    ) -> bool:
        try:
            return await self._local.end(
                partition, producer, commits=commits, keeps_epoch=keeps_epoch, coordinator_epoch=coordinator_epoch
            )
        except NotLeaderOrFollower:
            request = m.WriteMarkerRequest(
                partition.topic_id, partition.number, *producer, commits, keeps_epoch, coordinator_epoch
            )
        key = PartitionKey(partition.topic_id, partition.number)
        return (await self._others.ask_leader(key, request, m.WriteMarkerResponse)).is_open


class ClusterPendingOffsets:
    """As `PendingOffsets`."""

    def __init__(self, local: PendingOffsets, others: OtherBrokers) -> None:
        self._local = local
        self._others = others

    async def add_pending(
        self,
        request: m.OffsetCommitRequest,
        principal: str,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        check: Callable[[], None],
    ) -> m.OffsetCommitResponse:
        try:
            return await self._local.add_pending(request, principal, producer_id, epoch, coordinator_epoch, check)
        except NotCoordinator:
            check()
        remote = m.AddPendingOffsetsRequest(request, principal, producer_id, epoch, coordinator_epoch)
        return await self._others.ask_coordinator(GROUPS, request.group, remote, m.OffsetCommitResponse)

    async def end_pending(
        self, group: str, producer_id: int, epoch: int, *, commits: bool, keeps_epoch: bool, coordinator_epoch: int
    ) -> None:
        try:
            await self._local.end_pending(
                group,
                producer_id,
                epoch,
                commits=commits,
                keeps_epoch=keeps_epoch,
                coordinator_epoch=coordinator_epoch,
            )
            return
        except NotCoordinator:
            remote = m.EndPendingOffsetsRequest(group, producer_id, epoch, commits, keeps_epoch, coordinator_epoch)
        await self._others.ask_coordinator(GROUPS, group, remote, m.EndPendingOffsetsResponse)

    def pending(self) -> Iterator[tuple[str, int, int, int]]:
        """Of the groups of this broker alone."""
        return self._local.pending()


class Enrol(Protocol):
    """Makes a partition part of a transaction: see `TransactionCoordinator.enrol_partition`."""

    def __call__(
        self, transactional_id: str, producer: Incarnation, topic: str, partition: int, *, is_enrolled: bool
    ) -> Awaitable[None] | None: ...


class ClusterEnrolment:
    """Partitions of this broker become part of transactions that any broker coordinates."""

    def __init__(self, local: Enrol, others: OtherBrokers) -> None:
        self._local = local
        self._others = others

    def enrol(
        self, transactional_id: str, producer: Incarnation, topic: str, partition: int, *, is_enrolled: bool
    ) -> Awaitable[None] | None:
        """As `TransactionCoordinator.enrol_partition`."""
        try:
            return self._local(transactional_id, producer, topic, partition, is_enrolled=is_enrolled)
        except NotCoordinator:
            return self._enrol(m.EnrolPartitionRequest(transactional_id, *producer, topic, partition, is_enrolled))

    async def _enrol(self, request: m.EnrolPartitionRequest) -> None:
        name = request.transactional_id
        await self._others.ask_coordinator(TRANSACTIONS, name, request, m.EnrolPartitionResponse)
