"""OffsetCommit, OffsetFetch and OffsetDelete: what groups have committed, of whatever kind their members are."""

from collections.abc import Callable, Sequence
from typing import Any

from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import Ready, RequestContext, Response, then
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, ErrorCode, TopicAuthorizationFailed, UnstableOffsetCommit
from warmlog_protocol.kafka.schema import API, NO_UUID

MANY_GROUPS_FROM = 8
"""OffsetFetch: from this version on it names several groups."""
IDS_FROM = 10
"""OffsetFetch: from this version on topics are named by their ids."""
GROUP_ERRORS_FROM = 2
"""OffsetFetch: from this version on the response has an error code of its own."""
EPOCHS_FROM = 9
"""OffsetCommit: from this version on it knows members with an epoch (KIP-848)."""
NOBODY = -1

_Committed = API["OffsetCommit"].response
_Fetched = API["OffsetFetch"].response
_Deleted = API["OffsetDelete"].response


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

    def back(committed: Any) -> Ready:
        codes = iter([each.error_code for each in committed.partitions])
        return _committed(request, lambda: commit_code(next(codes), request))

    return then(kafka.call(context, message), back)


def offset_commit_failed(request: Any, error: ApiError) -> Any:
    """Every partition has the error."""
    return _committed(request, lambda: commit_code(error.code, request))


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


def _committed(request: Any, code: Callable[[], int]) -> m.Message:
    response: m.Message = _Committed(
        topics=[
            _Committed.OffsetCommitResponseTopic(
                topic.name,
                topic.topic_id,
                [_Committed.OffsetCommitResponsePartition(part.partition_index, code()) for part in topic.partitions],
            )
            for topic in request.topics
        ]
    )
    return response


def commit_code(code: int, request: Any) -> int:
    """Return what Kafka says in this version: who is no member is UNKNOWN_MEMBER_ID if the group has some."""
    if code == ErrorCode.NON_EMPTY_GROUP:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.STALE_MEMBER_EPOCH):
        return ErrorCode.STALE_MEMBER_EPOCH if request.api_version >= EPOCHS_FROM else ErrorCode.ILLEGAL_GENERATION
    return code


async def offset_fetch(kafka: Kafka, context: RequestContext, request: Any) -> Any:
    """Return committed offsets: -1 for a partition, topic or group without any, which is no error."""
    if request.api_version >= MANY_GROUPS_FROM:
        groups = [await _of_group(kafka, context, request, group) for group in request.groups]
        return _Fetched(groups=groups)
    parts, error_code = await _offsets(kafka, context, request, request.group_id, request.topics, "", NOBODY)
    if error_code and request.api_version < GROUP_ERRORS_FROM:
        return _with_error(request, error_code)
    topics = [
        _Fetched.OffsetFetchResponseTopic(name, [_Fetched.OffsetFetchResponsePartition(*each) for each in found])
        for _, name, found in parts
    ]
    return _Fetched(topics=topics, error_code=error_code)


async def _of_group(kafka: Kafka, context: RequestContext, request: Any, group: Any) -> Any:
    parts, error_code = await _offsets(
        kafka, context, request, group.group_id, group.topics, group.member_id or "", group.member_epoch
    )
    topics = [
        _Fetched.OffsetFetchResponseTopics(
            name, topic_id, [_Fetched.OffsetFetchResponsePartitions(*each) for each in found]
        )
        for topic_id, name, found in parts
    ]
    return _Fetched.OffsetFetchResponseGroup(group.group_id, topics, error_code)


_Part = tuple[int, int, int, str | None, int]
"""Partition, offset, leader epoch, metadata and error code, as in both forms of the response."""
_Topic = tuple[bytes, str, list[_Part]]


async def _offsets(
    kafka: Kafka,
    context: RequestContext,
    request: Any,
    group: str,
    topics: Sequence[Any] | None,
    member_id: str,
    member_epoch: int,
) -> tuple[list[_Topic], int]:
    """Return the offsets of a group by topic, and the error code of all of it."""
    wanted = None if topics is None else [_wanted(kafka, request, topic) for topic in topics]
    known = None if wanted is None else [each for each, code in wanted if each.topic_id and not code]
    message = m.OffsetFetchRequest(group, known, member_id, member_epoch, needs_stable=request.require_stable)
    try:
        found = (await kafka.ask(context, message)).partitions
    except ApiError as error:
        if wanted is None or not isinstance(error, TopicAuthorizationFailed | UnstableOffsetCommit):
            return [], int(error.code)
        return [
            (each.topic_id, each.topic, [_nothing(number, code or error.code) for number in each.partitions])
            for each, code in wanted
        ], ErrorCode.NONE
    if wanted is None:
        by_topic: dict[tuple[bytes, str], list[_Part]] = {}
        for each in found:
            by_topic.setdefault((each.topic_id, each.topic), []).append(_part(each))
        return [(topic_id, name, parts) for (topic_id, name), parts in by_topic.items()], ErrorCode.NONE
    results = iter(found)
    return [
        (
            each.topic_id,
            each.topic,
            [
                _part(next(results)) if each.topic_id and not code else _nothing(number, code)
                for number in each.partitions
            ],
        )
        for each, code in wanted
    ], ErrorCode.NONE


def _wanted(kafka: Kafka, request: Any, topic: Any) -> tuple[m.TopicPartitions, int]:
    """Return the topic with its id, which is empty if there is no such topic, and an error code."""
    numbers = topic.partition_indexes
    if request.api_version >= IDS_FROM:
        name = kafka.topic_name(topic.topic_id)
        code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.NONE
        return m.TopicPartitions(topic.topic_id, name or "", numbers), code
    found = kafka.services.topics.find(topic.name)
    return m.TopicPartitions(b"" if found is None else found.topic_id, topic.name, numbers), ErrorCode.NONE


def _part(each: m.FetchedOffset) -> _Part:
    return each.partition, each.offset, each.leader_epoch, each.metadata, ErrorCode.NONE


def _nothing(number: int, code: int) -> _Part:
    return number, m.NO_COMMITTED_OFFSET, m.NO_LEADER_EPOCH, "", code


def offset_fetch_failed(request: Any, error: ApiError) -> Any:
    """Every group has the error; in the first versions, every partition."""
    if request.api_version < GROUP_ERRORS_FROM:
        return _with_error(request, error.code)
    groups = [_Fetched.OffsetFetchResponseGroup(each.group_id, [], error.code) for each in request.groups]
    return _Fetched(error_code=error.code, groups=groups)


def _with_error(request: Any, code: int) -> Any:
    return _Fetched(
        topics=[
            _Fetched.OffsetFetchResponseTopic(
                topic.name,
                [_Fetched.OffsetFetchResponsePartition(*_nothing(number, code)) for number in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def offset_delete(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Remove committed offsets."""
    wanted = [
        m.TopicPartitions(b"", topic.name, [part.partition_index for part in topic.partitions])
        for topic in request.topics
    ]

    def back(deleted: Any) -> Ready:
        codes = iter([each.error_code for each in deleted.partitions])
        topics = [
            _Deleted.OffsetDeleteResponseTopic(
                topic.name,
                [
                    _Deleted.OffsetDeleteResponsePartition(part.partition_index, next(codes))
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return _Deleted(topics=topics)

    return then(kafka.call(context, m.DeleteOffsetsRequest(request.group_id, wanted)), back)
