"""CreateTopics, DeleteTopics and CreatePartitions."""

from collections import Counter
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

_Created = API["CreateTopics"].response
_ToDelete = API["DeleteTopics"].request.DeleteTopicState
_Deleted = API["DeleteTopics"].response


async def create_topics(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Create each topic."""
    times = Counter(topic.name for topic in request.topics)
    topics = {topic.name: topic for topic in request.topics}

    def wanted(topic: Any) -> m.NewTopic:
        if times[topic.name] > 1:
            raise InvalidRequest(f"topic {topic.name!r} is in the request more than once")
        replicas = {each.partition_index: each.broker_ids for each in topic.assignments}
        numbers = range(len(topic.assignments))
        if sorted(replicas) != list(numbers):
            raise InvalidReplicaAssignment("assignments of partitions that are not numbered from 0 on, each once")
        configs = {each.name: each.value for each in topic.configs if each.value is not None}
        own = without_foreign(context, f"topic {topic.name!r}", configs)
        chosen = [replicas[number] for number in numbers]
        return m.NewTopic(topic.name, topic.num_partitions, topic.replication_factor, own, chosen)

    def message(new: list[m.NewTopic]) -> m.Message:
        return m.CreateTopicsRequest(new, request.validate_only)

    created = await kafka.ask_for_each(context, topics.values(), wanted, message)
    done = [name for name, each in zip(topics, created, strict=True) if not each.error_code]
    has_details = request.api_version >= DETAILS_FROM and not request.validate_only
    details = await topic_entries(kafka, context, done) if has_details else {}
    return _Created(topics=[_result(name, each, details.get(name)) for name, each in zip(topics, created, strict=True)])


def _result(name: str, created: Any, configs: list[Any] | ApiError | None) -> Any:
    if created.error_code != ErrorCode.NONE:
        return _Created.CreatableTopicResult(name, NO_UUID, created.error_code, created.error_message, configs=None)
    hidden = configs.code if isinstance(configs, ApiError) else ErrorCode.NONE
    shown = configs if isinstance(configs, list) else None
    return _Created.CreatableTopicResult(
        name, created.topic_id, 0, None, hidden, created.partitions, created.replication_factor, configs=shown
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
        return m.NewPartitions(topic.name, topic.count, [each.broker_ids for each in topic.assignments or ()])

    def message(new: list[m.NewPartitions]) -> m.Message:
        return m.CreatePartitionsRequest(new, request.validate_only)

    return answered("CreatePartitions", request, await kafka.ask_for_each(context, request.topics, wanted, message))
