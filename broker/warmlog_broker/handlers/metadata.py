"""Handshake: the versions of the broker and its APIs. Metadata: brokers, topics, and the leaders of partitions.

FindCoordinator: the leader of the partition in which a coordinator keeps its state.
"""

import logging
from collections.abc import Mapping

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import failed_name, handle_all
from warmlog_broker.network.request import RequestContext, Response
from warmlog_broker.replica.cluster_view import NO_LEADER, BrokerAddress, ClusterView
from warmlog_broker.runtime.version import broker_version
from warmlog_broker.topics.topics import Topic
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, CoordinatorNotAvailable, ErrorCode, InvalidRequest

NO_TOPIC_ID = bytes(16)
_SHOWN_CHARACTERS = 100

_log = logging.getLogger(__name__)


def handshake(services: Services, context: RequestContext, request: m.HandshakeRequest) -> m.HandshakeResponse:
    if context.authentication is not None:
        context.authentication.greeted()
    version = request.client_version[:_SHOWN_CHARACTERS]
    _log.debug("connection with %s: client %r %r", context.peer, context.client_id, version)
    return m.HandshakeResponse(
        broker_version=broker_version(),
        cluster_id=services.cluster.cluster_id,
        node_id=services.cluster.node_id,
        max_frame_bytes=services.config.socket_request_max_bytes,
        apis=[m.ApiVersions(api.key, api.min_version, api.max_version) for api in m.APIS.values()],
        mechanisms=[] if context.authentication is None else context.authentication.mechanisms,
    )


async def metadata(services: Services, context: RequestContext, request: m.MetadataRequest) -> m.MetadataResponse:
    """Describe the named topics, each once, or all. One that does not exist has an error code and no partitions."""
    cluster = services.cluster

    async def describe(name: str) -> m.TopicMetadata:
        return _describe(services.topics.get(name), cluster)

    if request.topics is None:
        listed = (topic for topic in services.topics if request.include_internal or not topic.is_internal)
        topics = [_describe(topic, cluster) for topic in listed]
    else:
        topics = await handle_all(services, dict.fromkeys(request.topics), describe, not_described)
    brokers = [m.BrokerMetadata(*broker) for broker in cluster.brokers(context.listener)]
    return m.MetadataResponse(
        cluster_id=cluster.cluster_id,
        controller_id=brokers[0].node_id,
        brokers=brokers,
        topics=topics,
    )


async def find_coordinator(services: Services, context: RequestContext, request: m.FindCoordinatorRequest) -> Response:
    """Return the coordinators of groups or transactional ids. A broker that is alone has them all."""
    try:
        kind = m.CoordinatorKind(request.kind)
    except ValueError:
        raise InvalidRequest(f"a key of kind {request.kind}: expected 0 (group) or 1 (transactional id)") from None
    view = services.cluster
    brokers = {each.node_id: each for each in view.brokers(context.listener)}
    is_alone = services.between_brokers is None

    async def find(key: str) -> m.FoundCoordinator:
        found = brokers[view.node_id] if is_alone else await _coordinator(services, brokers, kind, key)
        return m.FoundCoordinator(ErrorCode.NONE, "", key, *found[:3])

    found = await handle_all(services, request.keys, find, failed_name(m.FoundCoordinator))
    return m.FindCoordinatorResponse(found, is_alone)


async def _coordinator(
    services: Services, brokers: Mapping[int, BrokerAddress], kind: m.CoordinatorKind, key: str
) -> BrokerAddress:
    coordinators = services.coordinators
    is_group = kind is m.CoordinatorKind.GROUP
    topic, number = await (coordinators.groups if is_group else coordinators.transactions).shards.place_of(key)
    leader_id = services.cluster.leadership(topic.topic_id, number, topic.local.get(number)).leader_id
    if leader_id not in brokers:
        raise CoordinatorNotAvailable(f"{topic.name}-{number}, which has {key!r}, has no leader now")
    return brokers[leader_id]


def not_described(name: str, error: ApiError) -> m.TopicMetadata:
    return m.TopicMetadata(error.code, name, NO_TOPIC_ID, [], str(error))


def _describe(topic: Topic, cluster: ClusterView) -> m.TopicMetadata:
    partitions = [_describe_partition(topic, number, cluster) for number in range(topic.count)]
    return m.TopicMetadata(ErrorCode.NONE, topic.name, topic.topic_id, partitions)


def _describe_partition(topic: Topic, number: int, cluster: ClusterView) -> m.PartitionMetadata:
    leadership = cluster.leadership(topic.topic_id, number, topic.local.get(number))
    error_code = ErrorCode.NONE
    if leadership.leader_id == NO_LEADER:
        others = leadership.in_sync_replicas
        error_code = ErrorCode.LEADER_NOT_AVAILABLE if others else ErrorCode.KAFKA_STORAGE_ERROR
    return m.PartitionMetadata(error_code, number, *leadership)
