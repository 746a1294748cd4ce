"""What the requests of other brokers are answered by, and what handlers ask of other brokers."""

import asyncio
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from typing import NamedTuple

from warmlog_broker.cluster.data_path.peers import Identity
from warmlog_broker.cluster.data_path.ports import TRANSACTIONS, OtherBrokers
from warmlog_broker.cluster.data_path.serving import Serving
from warmlog_broker.cluster.operating import election, order, reassignment, target
from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.cluster.view import View
from warmlog_broker.coordinator.on_demand import Coordinators
from warmlog_broker.coordinator.transaction.ports import Markers
from warmlog_broker.etcd.coordination import Coordination, CoordinationError
from warmlog_broker.replication.record import Nodes
from warmlog_protocol import messages as m
from warmlog_protocol.errors import NotCoordinator, NotLeaderOrFollower


class ClusterRequests(NamedTuple):
    """The parts of a cluster's broker that handlers call."""

    identity: Identity
    serving: Serving
    markers: Markers
    """Of partitions that this broker leads."""
    others: OtherBrokers
    coordinators: Coordinators
    etcd: Coordination
    view: View

    async def learn_producer_ids(self) -> None:
        """Return once this broker knows of all producer ids that were assigned before. NotLeaderOrFollower."""
        try:
            listing = await self.etcd.range(self.view.keys.producer_ids)
        except CoordinationError as error:
            raise NotLeaderOrFollower(f"whether a producer id was assigned cannot be known now: {error}") from error
        await self.view.reached(max((item.changed for item in listing.items), default=0))

    async def reassign(self, topic_id: bytes, wanted: m.ReplicasToAlter, *, keeps_count: bool) -> None:
        """Begin to move a partition. Raises as `reassignment` and `order`."""
        key = PartitionKey(topic_id, wanted.partition)
        changed = reassignment(self.view, key, wanted.replicas, keeps_count=keeps_count)
        await order(self.etcd, self.view, key, changed)

    def target(self, key: PartitionKey) -> Nodes | None:
        """Return the replicas that a partition is about to have; None if it is not moved to other brokers."""
        return target(self.view, key)

    async def elect(self, topic_id: bytes, number: int, *, is_unclean: bool) -> PartitionKey:
        """Want another leader of a partition. Raises as `election` and `order`."""
        key = PartitionKey(topic_id, number)
        await order(self.etcd, self.view, key, election(self.view, key, is_unclean=is_unclean))
        return key

    async def carried_out(self, keys: Iterable[PartitionKey], timeout_s: float) -> None:
        """Return once nothing more is wanted of these partitions, or after the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self.view.orders.keys().isdisjoint(keys):
                    await self.view.moved()

    async def commit_elsewhere(self, request: m.TxnOffsetCommitRequest, principal: str) -> m.OffsetCommitResponse:
        """Have the coordinator of the transactional id, on another broker, commit offsets for `principal`."""
        passed_on = m.CommitOffsetsElsewhereRequest(request, principal)
        return await self.others.ask_coordinator(
            TRANSACTIONS, request.transactional_id, passed_on, m.OffsetCommitResponse
        )

    def enrol(self, request: m.EnrolPartitionRequest) -> Awaitable[object] | None:
        """As `TransactionCoordinator.enrol_partition`; any broker may coordinate the transaction."""
        try:
            return self.coordinators.transactions.enrol_partition(request)
        except NotCoordinator:
            name = request.transactional_id
            return self.others.ask_coordinator(TRANSACTIONS, name, request, m.EnrolPartitionResponse)
