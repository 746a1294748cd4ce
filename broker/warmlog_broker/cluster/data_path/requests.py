"""What the requests of other brokers are answered by, and what handlers ask of other brokers."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import NamedTuple

from warmlog_broker.cluster.data_path.peers import Identity
from warmlog_broker.cluster.data_path.ports import TRANSACTIONS, OtherBrokers
from warmlog_broker.cluster.data_path.serving import Serving
from warmlog_broker.cluster.keys import OrderValue
from warmlog_broker.cluster.operating import election, is_wanted, order, reassignment, target, withdraw
from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.cluster.view import View
from warmlog_broker.coordinator.on_demand import Coordinators
from warmlog_broker.coordinator.transaction.ports import Markers
from warmlog_broker.etcd.coordination import Coordination, CoordinationError
from warmlog_broker.replication.record import Nodes
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, NotCoordinator, NotLeaderOrFollower

WITHDRAWAL_S = 1.0
"""A response waits so much longer for etcd to forget elections that were not done in time."""

Election = tuple[PartitionKey, OrderValue]
"""One that was ordered."""


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

    async def elect(self, topic_id: bytes, number: int, *, is_unclean: bool) -> Election:
        """Want another leader of a partition. Raises as `election` and `order`."""
        key = PartitionKey(topic_id, number)
        return key, await order(self.etcd, self.view, key, election(self.view, key, is_unclean=is_unclean))

    async def not_done(self, elections: Sequence[Election], ends_at_s: float) -> list[Election]:
        """Return those that are not done at `ends_at_s`, and withdrawn then; none as soon as all are done."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(ends_at_s):
                while any(is_wanted(self.view, *each) for each in elections):
                    await self.view.moved()
        late = [each for each in elections if is_wanted(self.view, *each)]
        with suppress(TimeoutError):
            async with asyncio.timeout(WITHDRAWAL_S):
                for key, _ in late:
                    with suppress(ApiError):
                        await withdraw(self.etcd, self.view, key)
        return late

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
