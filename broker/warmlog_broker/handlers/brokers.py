"""What the other brokers of the cluster ask for. A client is refused, whatever rights it has."""

from typing import TYPE_CHECKING

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.transactions import commit_within
from warmlog_broker.network.request import RequestContext, Response
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ClusterAuthorizationFailed, InvalidRequest

if TYPE_CHECKING:
    from warmlog_broker.cluster.data_path.requests import ClusterRequests


def peer_hello(services: Services, context: RequestContext, request: m.PeerHelloRequest) -> m.PeerHelloResponse:
    return _cluster(services).identity.greet(context, request)


def replica_fetch(services: Services, context: RequestContext, request: m.ReplicaFetchRequest) -> Response:
    node = _broker(context)
    return _cluster(services).serving.fetch(node, context.connection, request)


def replica_flushed(services: Services, context: RequestContext, request: m.ReplicaFlushedRequest) -> None:
    node = _broker(context)
    _cluster(services).serving.flushed(node, request)


async def write_marker(services: Services, context: RequestContext, request: m.WriteMarkerRequest) -> Response:
    """Write the marker into a partition that this broker leads."""
    _check_order(services, context)
    return m.WriteMarkerResponse(await _cluster(services).markers.end(request))


async def enrol_partition(services: Services, context: RequestContext, request: m.EnrolPartitionRequest) -> Response:
    """Make a partition of another broker part of a transaction."""
    _broker(context)
    if (enrolling := services.coordinators.transactions.enrol_partition(request)) is not None:
        await enrolling
    return m.EnrolPartitionResponse()


async def add_pending_offsets(
    services: Services, context: RequestContext, request: m.AddPendingOffsetsRequest
) -> m.OffsetCommitResponse:
    """Keep offsets until a transaction ends. The other broker has seen that it is open."""
    _check_order(services, context)
    return await services.coordinators.groups.add_pending(request, lambda: None)


async def commit_offsets_elsewhere(
    services: Services, context: RequestContext, request: m.CommitOffsetsElsewhereRequest
) -> m.OffsetCommitResponse:
    """Commit offsets with a transaction of this broker. The other one has checked the rights of the principal."""
    _check_order(services, context)
    return await commit_within(services, request.commit, request.principal)


async def end_pending_offsets(
    services: Services, context: RequestContext, request: m.EndPendingOffsetsRequest
) -> m.EndPendingOffsetsResponse:
    """Commit or drop the offsets of a transaction."""
    _check_order(services, context)
    await services.coordinators.groups.end_pending(request)
    return m.EndPendingOffsetsResponse()


def _cluster(services: Services) -> "ClusterRequests":
    if services.between_brokers is None:
        raise InvalidRequest("this broker is a cluster alone: it has no cluster.etcd")
    return services.between_brokers


def _check_order(services: Services, context: RequestContext) -> None:
    """Refuse a client, and a broker's request that comes late."""
    _broker(context)
    _cluster(services).identity.check_order(context)


def _broker(context: RequestContext) -> int:
    """Return the id of the broker that sends a request; ClusterAuthorizationFailed for a client."""
    if context.life.broker is None:
        raise ClusterAuthorizationFailed("this is for the brokers of the cluster: PeerHello comes first")
    return context.life.broker
