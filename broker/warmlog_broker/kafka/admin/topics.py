"""CreateTopics, DeleteTopics and CreatePartitions."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from warmlog_broker.kafka.admin.configs import topic_entries, without_foreign
from warmlog_broker.kafka.responses import answered
from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import RequestContext
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, ErrorCode, InvalidReplicaAssignment, InvalidRequest, UnknownTopicId
from warmlog_protocol.kafka.schema import API, NO_UUID

DETAILS_FROM = 5
"""The first version of CreateTopics whose response has the partitions and settings."""
REPLICAS = 1

_Created = API["CreateTopics"].response
_ToDelete = API["DeleteTopics"].request.DeleteTopicState
_Deleted = API["DeleteTopics"].response


async def create_topics(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Create each topic. Assignments may only say what is the case with one broker."""
    times = Counter(topic.name for topic in request.topics)
    topics = {topic.name: topic for topic in request.topics}

    def wanted(topic: Any) -> m.NewTopic:
        if times[topic.name] > 1:
            raise InvalidRequest(f"topic {topic.name!r} is in the request more than once")
        _check_assignments(kafka, topic)
        configs = {each.name: each.value for each in topic.configs if each.value is not None}
        partitions = len(topic.assignments) or topic.num_partitions
        own = without_foreign(context, f"topic {topic.name!r}", configs)
        return m.NewTopic(topic.name, partitions, topic.replication_factor, own)

    def message(new: list[m.NewTopic]) -> m.Message:
        return m.CreateTopicsRequest(new, request.validate_only)

    created = await kafka.ask_for_each(context, topics.values(), wanted, message)
    done = [name for name, each in zip(topics, created, strict=True) if not each.error_code]
    has_details = request.api_version >= DETAILS_FROM and not request.validate_only
    details = await topic_entries(kafka, context, done) if has_details else {}
    return _Created(topics=[_result(name, each, details.get(name)) for name, each in zip(topics, created, strict=True)])


def _check_assignments(kafka: Kafka, topic: Any) -> None:
    if not topic.assignments:
        return
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise InvalidRequest("assignments and also a number of partitions or replicas: give one of them")
    if sorted(each.partition_index for each in topic.assignments) != list(range(len(topic.assignments))):
        raise InvalidReplicaAssignment("assignments of partitions that are not numbered from 0 on")
    _check_brokers(kafka, topic.assignments)


def _check_brokers(kafka: Kafka, assignments: Iterable[Any]) -> None:
    node_id = kafka.services.cluster.node_id
    if any(each.broker_ids != [node_id] for each in assignments):
        raise InvalidReplicaAssignment(f"an assignment to other brokers than the only one, {node_id}")


def _result(name: str, created: Any, configs: list[Any] | ApiError | None) -> Any:
    if created.error_code != ErrorCode.NONE:
        return _Created.CreatableTopicResult(name, NO_UUID, created.error_code, created.error_message, configs=None)
    hidden = configs.code if isinstance(configs, ApiError) else ErrorCode.NONE
    shown = configs if isinstance(configs, list) else None
    return _Created.CreatableTopicResult(
        name, created.topic_id, 0, None, hidden, created.partitions, REPLICAS, configs=shown
    )


async def delete_topics(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Delete topics by name or id."""
    find, find_by_id = kafka.services.topics.find, kafka.services.topics.find_by_id
    asked = request.topics or [_ToDelete(name) for name in request.topic_names]
    topics = [(each, find(each.name) if each.topic_id == NO_UUID else find_by_id(each.topic_id)) for each in asked]

    def name_of(wanted: tuple[Any, Any]) -> str:
        topic, found = wanted
        if found is None and (topic.topic_id != NO_UUID or topic.name is None):
            raise UnknownTopicId("there is no topic with this id")
        name: str = topic.name if found is None else found.name
        return name

    results = await kafka.ask_for_each(context, topics, name_of, m.DeleteTopicsRequest)
    responses = []
    for (topic, found), result in zip(topics, results, strict=True):
        code, text, name = result.error_code, result.error_message or None, topic.name
        if found is not None and topic.topic_id != NO_UUID:
            is_hidden = code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            name, text = (None, None) if is_hidden else (found.name, text)  # the text has the name, too
        topic_id = topic.topic_id if found is None else found.topic_id
        responses.append(_Deleted.DeletableTopicResult(name, topic_id, code, text))
    return _Deleted(responses=responses)


async def create_partitions(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Add partitions to topics."""

    def wanted(topic: Any) -> m.NewPartitions:
        _check_brokers(kafka, topic.assignments or ())
        return m.NewPartitions(topic.name, topic.count)

    def message(new: list[m.NewPartitions]) -> m.Message:
        return m.CreatePartitionsRequest(new, request.validate_only)

    return answered("CreatePartitions", request, await kafka.ask_for_each(context, request.topics, wanted, message))
