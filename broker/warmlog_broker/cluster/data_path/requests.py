"""What the requests of other brokers are answered by, and what handlers ask of other brokers."""

from typing import NamedTuple

from warmlog_broker.cluster.data_path.peers import Identity
from warmlog_broker.cluster.data_path.ports import TRANSACTIONS, ClusterEnrolment, OtherBrokers
from warmlog_broker.cluster.data_path.serving import Serving
from warmlog_broker.cluster.view import View
from warmlog_broker.coordinator.framework.decision import PartitionId
from warmlog_broker.coordinator.transaction.decisions.state import Incarnation
from warmlog_broker.coordinator.transaction.ports import Markers
from warmlog_broker.etcd.coordination import Coordination, CoordinationError
from warmlog_protocol.errors import NotLeaderOrFollower
from warmlog_protocol.messages import (
    CommitOffsetsElsewhereRequest,
    OffsetCommitResponse,
    TxnOffsetCommitRequest,
    WriteMarkerRequest,
)


class ClusterRequests(NamedTuple):
    """The parts of a cluster's broker that handlers call."""

    identity: Identity
    serving: Serving
    markers: Markers
    """Of partitions that this broker leads."""
    enrolment: ClusterEnrolment
    others: OtherBrokers
    etcd: Coordination
    view: View

    async def learn_producer_ids(self) -> None:
        """Return once this broker knows of all producer ids that were assigned before. NotLeaderOrFollower."""
        try:
            listing = await self.etcd.range(self.view.keys.producer_ids)
        except CoordinationError as error:
            raise NotLeaderOrFollower(f"whether a producer id was assigned cannot be known now: {error}") from error
        await self.view.reached(max((item.changed for item in listing.items), default=0))

    async def commit_elsewhere(self, request: TxnOffsetCommitRequest, principal: str) -> OffsetCommitResponse:
        """Have the coordinator of the transactional id, on another broker, commit offsets for `principal`."""
        passed_on = CommitOffsetsElsewhereRequest(request, principal)
        return await self.others.ask_coordinator(
            TRANSACTIONS, request.transactional_id, passed_on, OffsetCommitResponse
        )

    async def write_marker(self, request: WriteMarkerRequest) -> bool:
        """Write a marker for the coordinator of another broker; return as `Markers.end`."""
        return await self.markers.end(
            PartitionId(request.topic_id, request.partition),
            Incarnation(request.producer_id, request.producer_epoch),
            commits=request.commits,
            keeps_epoch=request.keeps_epoch,
            coordinator_epoch=request.coordinator_epoch,
        )
