"""ListGroups, DescribeGroups, ConsumerGroupDescribe and DeleteGroups: groups as Kafka's tools see them."""

from typing import Any

from warmlog_broker.coordinator.classic.consumer_protocol import assignment, subscription
from warmlog_broker.kafka.cluster import authorized_operations
from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import Ready, RequestContext, Response, then
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.kafka.schema import API

STATES = {
    "empty": "Empty",
    "assigning": "Assigning",
    "reconciling": "Reconciling",
    "stable": "Stable",
    "preparing": "PreparingRebalance",
    "completing": "CompletingRebalance",
}
OLD_STATES = STATES | {"assigning": "PreparingRebalance", "reconciling": "CompletingRebalance"}
"""For tools that know the classic protocol only."""
DEAD = "Dead"
CLASSIC, CONSUMER = "Classic", "Consumer"
"""Kinds of groups; one without members is of neither, and is said to be classic."""
SAYS_NOT_FOUND_FROM = 6
"""DescribeGroups: before this version a group that does not exist is dead, and no error."""
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1

_Listed = API["ListGroups"].response
_Described = API["DescribeGroups"].response
_Consumers = API["ConsumerGroupDescribe"].response


def list_groups(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """List groups of all kinds, or of some states and kinds."""
    states = {each.lower() for each in request.states_filter}
    kinds = {each.lower() for each in request.types_filter}

    def back(listed: Any) -> Ready:
        found = []
        for group in listed.groups:
            state = STATES[group.state]
            kind = CONSUMER if group.member_count and not group.is_classic else CLASSIC
            if (not states or state.lower() in states) and (not kinds or kind.lower() in kinds):
                found.append(_Listed.ListedGroup(group.name, group.protocol_type, state, kind))
        return _Listed(groups=found)

    return then(kafka.call(context, m.ListGroupsRequest()), back)


def describe_groups(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Describe groups of every kind, in the words of the classic protocol."""

    def back(described: Any) -> Ready:
        groups = [_described(kafka, context, request, group) for group in described.groups]
        return _Described(groups=groups)

    return then(kafka.call(context, m.DescribeGroupsRequest(request.groups)), back)


def _described(kafka: Kafka, context: RequestContext, request: Any, group: m.DescribedGroup) -> Any:
    if group.error_code:
        is_silent = group.error_code == ErrorCode.GROUP_ID_NOT_FOUND and request.api_version < SAYS_NOT_FOUND_FROM
        code, text = (ErrorCode.NONE, None) if is_silent else (group.error_code, group.error_message)
        return _Described.DescribedGroup(code, text, group.group, DEAD)
    return _Described.DescribedGroup(
        ErrorCode.NONE,
        None,
        group.group,
        OLD_STATES[group.state],
        group.protocol_type,
        group.assignor if group.members else "",
        [_member(group, member) for member in group.members],
        _rights(kafka, context, request, group),
    )


def _member(group: m.DescribedGroup, member: m.GroupMember) -> Any:
    metadata, assigned = member.subscription, member.assignment
    if not group.is_classic:
        metadata = subscription(member.topics)
        assigned = assignment((each.topic, each.partitions) for each in member.assigned)
    return _Described.DescribedGroupMember(
        member.member_id, member.instance_id or None, member.client_id, f"/{member.host}", metadata, assigned
    )


def _rights(kafka: Kafka, context: RequestContext, request: Any, group: m.DescribedGroup) -> int:
    is_asked_for = request.include_authorized_operations
    return authorized_operations(kafka, context, m.ResourceType.GROUP, group.group, is_asked_for=is_asked_for)


def consumer_group_describe(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Describe groups with members of KIP-848; of others tools ask by DescribeGroups then."""

    def back(described: Any) -> Ready:
        groups = [_described_consumers(kafka, context, request, group) for group in described.groups]
        return _Consumers(groups=groups)

    return then(kafka.call(context, m.DescribeGroupsRequest(request.group_ids)), back)


def _described_consumers(kafka: Kafka, context: RequestContext, request: Any, group: m.DescribedGroup) -> Any:
    if group.error_code:
        return _Consumers.DescribedGroup(group.error_code, group.error_message, group.group)
    if group.is_classic or not group.members:
        text = f"group {group.group!r} has no members of the consumer protocol"
        return _Consumers.DescribedGroup(ErrorCode.GROUP_ID_NOT_FOUND, text, group.group)
    return _Consumers.DescribedGroup(
        ErrorCode.NONE,
        None,
        group.group,
        STATES[group.state],
        group.group_epoch,
        group.target_epoch,
        group.assignor,
        [_consumer(member) for member in group.members],
        _rights(kafka, context, request, group),
    )


def _consumer(member: m.GroupMember) -> Any:
    return _Consumers.Member(
        member.member_id,
        member.instance_id or None,
        None,
        member.member_epoch,
        member.client_id,
        f"/{member.host}",
        member.topics,
        member.pattern or None,
        _assignment(member.assigned),
        _assignment(member.target),
        CONSUMER_MEMBER,
    )


def _assignment(topics: list[m.TopicPartitions]) -> Any:
    return _Consumers.Assignment(
        [_Consumers.TopicPartitions(each.topic_id, each.topic, each.partitions) for each in topics]
    )


def delete_groups(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Delete groups without members, with their offsets."""
    return kafka.pass_on(context, "DeleteGroups", request, m.DeleteGroupsRequest(request.groups_names))
