"""CreateTopics, DeleteTopics and CreatePartitions."""

from collections.abc import Iterable
from typing import Any

from warmlog_broker.kafka.admin.configs import topic_entries, without_foreign
from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import RequestContext
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, ErrorCode
from warmlog_protocol.kafka.schema import API, NO_UUID

DETAILS_FROM = 5
"""The first version of CreateTopics whose response has the partitions and settings."""
IDS_FROM = 6
REPLICAS = 1

_Created = API["CreateTopics"].response
_Deleted = API["DeleteTopics"].response
_Partitions = API["CreatePartitions"].response


async def create_topics(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Create each topic. Assignments may only say what is the case with one broker."""
    refused: dict[str, tuple[int, str]] = {}
    wanted: dict[str, m.NewTopic] = {}
    for topic in request.topics:
        if topic.name in wanted or topic.name in refused:
            wanted.pop(topic.name, None)
            refused[topic.name] = ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is in the request more than once"
        elif refusal := _refused_assignment(kafka, topic):
            refused[topic.name] = refusal
        else:
            configs = {each.name: each.value for each in topic.configs if each.value is not None}
            partitions = len(topic.assignments) or topic.num_partitions
            own = without_foreign(context, f"topic {topic.name!r}", configs)
            wanted[topic.name] = m.NewTopic(topic.name, partitions, topic.replication_factor, own)
    message = m.CreateTopicsRequest(list(wanted.values()), request.validate_only)
    created = (await kafka.ask(context, message)).topics if wanted else []
    results = {each.name: (each.error_code, each.error_message) for each in created} | refused
    done = [each for each in created if each.error_code == ErrorCode.NONE and not request.validate_only]
    details = {}
    if request.api_version >= DETAILS_FROM:
        details = await topic_entries(kafka, context, [each.name for each in done])
    by_name = {each.name: each for each in created}
    return _Created(topics=[_result(name, *results[name], by_name.get(name), details.get(name)) for name in results])


def _refused_assignment(kafka: Kafka, topic: Any) -> tuple[int, str] | None:
    if not topic.assignments:
        return None
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        return ErrorCode.INVALID_REQUEST, "assignments and also a number of partitions or replicas: give one of them"
    if sorted(each.partition_index for each in topic.assignments) != list(range(len(topic.assignments))):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, "assignments of partitions that are not numbered from 0 on"
    return _refused_brokers(kafka, (each.broker_ids for each in topic.assignments))


def _refused_brokers(kafka: Kafka, assignments: Iterable[list[int]]) -> tuple[int, str] | None:
    node_id = kafka.services.cluster.node_id
    if all(broker_ids == [node_id] for broker_ids in assignments):
        return None
    return ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"an assignment to other brokers than the only one, {node_id}"


def _result(
    name: str, code: int, text: str, created: m.CreatedTopic | None, configs: list[Any] | ApiError | None
) -> Any:
    if created is None or code != ErrorCode.NONE:
        return _Created.CreatableTopicResult(name, NO_UUID, code, text, configs=None)
    entries = None
    if isinstance(configs, list):
        entries = [
            _Created.CreatableTopicConfigs(each.name, each.value, each.read_only, each.config_source, False)
            for each in configs
        ]
    hidden = configs.code if isinstance(configs, ApiError) else ErrorCode.NONE
    return _Created.CreatableTopicResult(
        name, created.topic_id, 0, None, hidden, created.partitions, REPLICAS, configs=entries
    )


def create_topics_failed(request: Any, error: ApiError) -> m.Message:
    """Every topic has the error."""
    return _Created(topics=[_result(topic.name, error.code, str(error), None, None) for topic in request.topics])


async def delete_topics(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Delete topics by name or id."""
    result = _Deleted.DeletableTopicResult
    named: dict[str, bytes] = {}
    unknown = []
    by_id = set()
    if request.api_version < IDS_FROM:
        named = dict.fromkeys(request.topic_names, NO_UUID)
    for topic in request.topics:
        name = topic.name if topic.topic_id == NO_UUID else kafka.topic_name(topic.topic_id)
        if name is None:
            text = "there is no topic with this id"
            unknown.append(result(None, topic.topic_id, ErrorCode.UNKNOWN_TOPIC_ID, text))
        else:
            found = kafka.services.topics.find(name)
            named[name] = NO_UUID if found is None else found.topic_id
            if topic.topic_id != NO_UUID:
                by_id.add(name)
    deleted = (await kafka.ask(context, m.DeleteTopicsRequest(list(named)))).topics if named else []
    responses = []
    for each in deleted:
        if each.name in by_id and each.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            responses.append(result(None, named[each.name], each.error_code))  # the message has the name too
        else:
            responses.append(result(each.name, named[each.name], each.error_code, each.error_message or None))
    return _Deleted(responses=responses + unknown)


def delete_topics_failed(request: Any, error: ApiError) -> m.Message:
    """Every topic has the error."""
    result = _Deleted.DeletableTopicResult
    by_name = [result(name, NO_UUID, error.code, str(error)) for name in request.topic_names]
    return _Deleted(
        responses=by_name + [result(each.name, each.topic_id, error.code, str(error)) for each in request.topics]
    )


async def create_partitions(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Add partitions to topics."""
    refused: dict[str, tuple[int, str]] = {}
    wanted = []
    for topic in request.topics:
        refusal = _refused_brokers(kafka, (each.broker_ids for each in topic.assignments or ()))
        if refusal:
            refused[topic.name] = refusal
        else:
            wanted.append(m.NewPartitions(topic.name, topic.count))
    message = m.CreatePartitionsRequest(wanted, request.validate_only)
    added = (await kafka.ask(context, message)).topics if wanted else []
    results = refused | {each.name: (each.error_code, each.error_message) for each in added}
    return _Partitions(
        results=[_Partitions.CreatePartitionsTopicResult(topic.name, *results[topic.name]) for topic in request.topics]
    )


def create_partitions_failed(request: Any, error: ApiError) -> m.Message:
    """Every topic has the error."""
    result = _Partitions.CreatePartitionsTopicResult
    return _Partitions(results=[result(topic.name, error.code, str(error)) for topic in request.topics])
