"""OffsetCommit, OffsetFetch and OffsetDelete: what groups have committed, of whatever kind their members are."""

from collections.abc import Iterator
from itertools import repeat
from typing import Any

from warmlog_broker.kafka.responses import Result, answered
from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import RequestContext, Response
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, ErrorCode, TopicAuthorizationFailed
from warmlog_protocol.kafka.schema import API, NO_UUID

MANY_GROUPS_FROM = 8
"""OffsetFetch: from this version on it names several groups."""
IDS_FROM = 10
"""OffsetFetch: from this version on topics are named by their ids."""
GROUP_ERRORS_FROM = 4
"""OffsetFetch: from this version on an error of the group is told once. Before, each partition has it: aiokafka 0.14
(version 3) does not read that of the response, and would begin as a group without offsets does."""
NOBODY = -1

_Group = API["OffsetFetch"].request.OffsetFetchRequestGroup
_Fetched = API["OffsetFetch"].response
_Part = _Fetched.OffsetFetchResponsePartitions


def offset_commit(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Commit offsets. As in Kafka, one may be after the log end, and without an epoch the member's id means nothing.

    librdkafka gives itself an id before it joins, and so commits with one also if it never does.
    """
    is_member = request.generation_id_or_member_epoch >= 0
    message = m.OffsetCommitRequest(
        request.group_id,
        offsets_in(request),
        request.member_id if is_member else "",
        request.generation_id_or_member_epoch if is_member else NOBODY,
        request.group_instance_id or "",
        takes_any_offset=True,
    )
    return kafka.pass_on(context, "OffsetCommit", request, message)


def offsets_in(request: Any) -> list[m.OffsetCommitPartition]:
    """Return the offsets of an OffsetCommit, or of a TxnOffsetCommit, whose topics have no ids."""
    return [
        m.OffsetCommitPartition(
            b"" if topic_id == NO_UUID else topic_id,
            topic.name,
            part.partition_index,
            part.committed_offset,
            part.committed_leader_epoch,
            part.committed_metadata or "",
        )
        for topic in request.topics
        for topic_id in (getattr(topic, "topic_id", NO_UUID),)
        for part in topic.partitions
    ]


async def offset_fetch(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Return committed offsets: -1 for a partition, topic or group without any, which is no error."""
    if request.api_version >= MANY_GROUPS_FROM:
        return _Fetched(groups=[await _of_group(kafka, context, request, group) for group in request.groups])
    group = await _of_group(kafka, context, request, _Group(request.group_id, topics=request.topics))
    if group.error_code and request.api_version < GROUP_ERRORS_FROM:
        return answered("OffsetFetch", request, repeat(Result(group.error_code)), error_code=group.error_code)
    return _Fetched(topics=group.topics, error_code=group.error_code)


async def _of_group(kafka: Kafka, context: RequestContext, request: Any, group: Any) -> Any:
    """Return the offsets of a group. Its topics and partitions have the same fields in all versions."""
    wanted = None if group.topics is None else [_wanted(kafka, request, topic) for topic in group.topics]
    known = None if wanted is None else [each for each, code in wanted if each.topic_id and not code]
    member = group.member_id or "", group.member_epoch
    message = m.OffsetFetchRequest(group.group_id, known, *member, request.require_stable, tells_unstable=True)
    refusal = ErrorCode.NONE
    found: Iterator[m.FetchedOffset] = iter(())
    try:
        found = iter((await kafka.ask(context, message)).partitions)
    except ApiError as error:
        if wanted is None or not isinstance(error, TopicAuthorizationFailed):
            return _Fetched.OffsetFetchResponseGroup(group.group_id, error_code=error.code)
        refusal = error.code
    topics: dict[tuple[str, bytes], list[Any]] = {}
    for topic, code in wanted or ():
        is_told = topic.topic_id and not code and not refusal
        topics.setdefault((topic.topic, topic.topic_id), []).extend(
            _part(next(found)) if is_told else _Part(number, m.NO_COMMITTED_OFFSET, error_code=code or refusal)
            for number in topic.partitions
        )
    for each in found:  # all of the group, if it names no topics
        topics.setdefault((each.topic, each.topic_id), []).append(_part(each))
    listed = [_Fetched.OffsetFetchResponseTopics(*topic, parts) for topic, parts in topics.items()]
    return _Fetched.OffsetFetchResponseGroup(group.group_id, listed)


def _wanted(kafka: Kafka, request: Any, topic: Any) -> tuple[m.TopicPartitions, int]:
    """Return the topic with its id, which is empty if there is no such topic, and an error code."""
    numbers = topic.partition_indexes
    if request.api_version >= IDS_FROM:
        name = kafka.topic_name(topic.topic_id)
        code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.NONE
        return m.TopicPartitions(topic.topic_id, name or "", numbers), code
    found = kafka.services.topics.find(topic.name)
    return m.TopicPartitions(b"" if found is None else found.topic_id, topic.name, numbers), ErrorCode.NONE


def _part(each: m.FetchedOffset) -> Any:
    return _Part(each.partition, each.offset, each.leader_epoch, each.metadata, each.error_code)


def offset_delete(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Remove committed offsets."""
    wanted = [
        m.TopicPartitions(b"", topic.name, [part.partition_index for part in topic.partitions])
        for topic in request.topics
    ]
    return kafka.pass_on(context, "OffsetDelete", request, m.DeleteOffsetsRequest(request.group_id, wanted))
