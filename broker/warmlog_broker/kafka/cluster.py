"""ApiVersions and Metadata: what the broker speaks, and who leads which partition."""

import logging
from typing import Any

from warmlog_broker.kafka.translators import TRANSLATORS, Kafka
from warmlog_broker.network.request import RequestContext, Response
from warmlog_broker.replica.cluster_view import NO_LEADER
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.kafka.schema import API, NO_UUID

OLDEST_PRODUCE = 0
"""Of Produce more is offered than served: librdkafka takes a broker without version 0 for one that knows no codec."""
FEATURES = {"transaction.version": 2, "group.version": 1}
"""What the broker has, in which version. Their versions begin with 1: older clients refuse a 0."""
FEATURES_EPOCH = 1
MOST_GREETINGS = 4
"""Before the authentication: clients ask again in an older version, and some for each of their parts."""
OPERATIONS = {
    m.ResourceType.TOPIC: "READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
    m.ResourceType.GROUP: "READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
    m.ResourceType.CLUSTER: "CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE",
}
"""Those of Kafka's that a resource of each type has."""
NOT_ASKED_FOR = -(2**31)
NULLABLE_FROM = 12
"""Metadata: from this version on a topic that is named by its id may have no name."""

_Versions = API["ApiVersions"].response
_Metadata = API["Metadata"].response
_log = logging.getLogger(__name__)


def api_versions(_kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Say what is served. The response to a version that is not known says so, and has the same list."""
    if context.authentication is not None:
        context.authentication.greeted(MOST_GREETINGS)
    name, version = request.client_software_name[:100], request.client_software_version[:100]
    _log.debug("connection with %s: client %r %r", context.peer, name, version)
    is_known = request.api_version in API["ApiVersions"].versions
    served = sorted((API[name] for name in TRANSLATORS), key=lambda api: api.key)
    return _Versions(
        ErrorCode.NONE if is_known else ErrorCode.UNSUPPORTED_VERSION,
        [
            _Versions.ApiVersion(
                api.key, OLDEST_PRODUCE if api.name == "Produce" else api.versions.first, api.versions.last
            )
            for api in served
        ],
        supported_features=[_Versions.SupportedFeatureKey(name, 1, level) for name, level in FEATURES.items()],
        finalized_features_epoch=FEATURES_EPOCH,
        finalized_features=[_Versions.FinalizedFeatureKey(name, level, level) for name, level in FEATURES.items()],
    )


async def metadata(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Describe topics, by name or id, and the brokers."""
    names: list[str] = []
    by_id: dict[str, bytes] = {}
    unknown: list[Any] = []
    for topic in request.topics or ():
        name = topic.name if topic.topic_id == NO_UUID else kafka.topic_name(topic.topic_id)
        if name is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if topic.topic_id != NO_UUID else ErrorCode.INVALID_TOPIC_EXCEPTION
            unknown.append(_Metadata.MetadataResponseTopic(code, _no_name(request), topic.topic_id))
        else:
            names.append(name)
            if topic.topic_id != NO_UUID:
                by_id[name] = topic.topic_id
    failed = await _create_missing(kafka, context, request, names)
    means_all = request.topics is None or (not request.topics and request.api_version == 0)
    message = m.MetadataRequest(None, include_internal=True) if means_all else m.MetadataRequest(names)
    described = await kafka.ask(context, message)
    alive = {each.node_id for each in described.brokers}
    topics = [
        _Metadata.MetadataResponseTopic(topic.error_code, _no_name(request), by_id[topic.name])
        if topic.name in by_id and topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        else _topic(kafka, context, request, topic, failed.get(topic.name), alive)
        for topic in described.topics
    ]
    return _Metadata(
        brokers=[
            _Metadata.MetadataResponseBroker(each.node_id, *address_of(context, each), each.rack or None)
            for each in described.brokers
        ],
        cluster_id=described.cluster_id,
        controller_id=described.controller_id,
        topics=topics + unknown,
    )


async def _create_missing(kafka: Kafka, context: RequestContext, request: Any, names: list[str]) -> dict[str, int]:
    """Create topics, if clients may do so by asking for them; return error codes by topic."""
    if not (request.allow_auto_topic_creation and kafka.services.config.auto_create_topics_enable):
        return {}
    missing = [m.NewTopic(name) for name in dict.fromkeys(names) if kafka.services.topics.find(name) is None]
    created = (await kafka.ask(context, m.CreateTopicsRequest(missing))).topics if missing else []
    return {each.name: each.error_code for each in created if each.error_code != ErrorCode.TOPIC_ALREADY_EXISTS}


def _no_name(request: Any) -> str | None:
    """Return what stands for the name of a topic that has none, or that the principal must not learn."""
    return None if request.api_version >= NULLABLE_FROM else ""


def _topic(
    kafka: Kafka, context: RequestContext, request: Any, topic: m.TopicMetadata, failed: int | None, alive: set[int]
) -> Any:
    served = kafka.services.topics.find(topic.name)
    shows_rights = request.include_topic_authorized_operations and topic.error_code == ErrorCode.NONE
    return _Metadata.MetadataResponseTopic(
        failed or topic.error_code,
        topic.name,
        topic.topic_id,
        served is not None and served.is_internal,
        [_partition(each, alive) for each in topic.partitions],
        authorized_operations(kafka, context, m.ResourceType.TOPIC, topic.name, is_asked_for=shows_rights),
    )


def authorized_operations(
    kafka: Kafka, context: RequestContext, resource_type: m.ResourceType, name: str, *, is_asked_for: bool
) -> int:
    """Return what the principal may do with a resource: a bit for each operation."""
    if not is_asked_for:
        return NOT_ASKED_FOR
    may = kafka.services.authorizer.may
    operations = [m.Operation[each] for each in OPERATIONS[resource_type].split()]
    return sum(1 << each for each in operations if may(context.principal, each, resource_type, name))


def address_of(context: RequestContext, broker: m.BrokerMetadata | m.FoundCoordinator) -> tuple[str, int]:
    """Return where the client reaches a broker: without a setting the one that it has come to."""
    return (broker.host, broker.port) if broker.host else context.reached


def _partition(partition: m.PartitionMetadata, alive: set[int]) -> Any:
    has_leader = partition.leader_id != NO_LEADER
    return _Metadata.MetadataResponsePartition(
        ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition.partition,
        partition.leader_id,
        partition.leader_epoch,
        partition.replicas,
        partition.in_sync_replicas,
        offline_replicas(partition, alive),
    )


def offline_replicas(partition: m.PartitionMetadata, alive: set[int]) -> list[int]:
    """Return the replicas whose broker is away; the only one also if it is not in sync, as its disk has failed."""
    has_failed = len(partition.replicas) == 1 and not partition.in_sync_replicas
    return [each for each in partition.replicas if each not in alive or has_failed]
