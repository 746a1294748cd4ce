"""What clients read from responses: errors of parts, topics, addresses, settings of topics."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar
from uuid import UUID

from warmlog_protocol.errors import ApiError, ErrorCode, NonEmptyGroup, UnknownTopicOrPartition, error_from_code
from warmlog_protocol.messages import DescribeConfigsResponse, GroupMember, PartitionMetadata, TopicMetadata

TopicPartition = tuple[str, int]


class HasError(Protocol):
    """A part of a response that may be an error."""

    @property
    def error_code(self) -> int: ...
    @property
    def error_message(self) -> str: ...


Part = TypeVar("Part", bound=HasError)

DEFAULT_MAX_MESSAGE_BYTES = 1024 * 1024
DEFAULT_SEGMENT_BYTES = 1024 * 1024 * 1024
"""Assumed for a topic whose `max.message.bytes` the broker does not return."""
_MOST_NAMED = 5
"""Of the members in an error: enough to find the deployment that they belong to."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as of the last metadata; its partitions in ascending order."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionMetadata, ...]

    @classmethod
    def of(cls, metadata: TopicMetadata) -> "Topic":
        return cls(metadata.name, UUID(bytes=metadata.topic_id), tuple(metadata.partitions))

    def not_before(self, known: "Topic | None") -> "Topic":
        """Return the topic with the leaders of later epochs that are `known`: the broker that was asked is late."""
        if known is None or known.topic_id != self.topic_id:
            return self
        kept = [
            before if 0 <= now.leader_epoch < before.leader_epoch else now
            for now, before in zip(self.partitions, known.partitions, strict=False)
        ]
        return replace(self, partitions=(*kept, *self.partitions[len(kept) :]))


def checked(part: Part) -> Part:
    """Return `part`, or raise its error."""
    if part.error_code:
        raise error_from_code(part.error_code, part.error_message)
    return part


def occupied(group: str, members: Sequence[GroupMember]) -> NonEmptyGroup:
    """Return the error for a change of a group that these members are in."""
    named = [f"{each.instance_id or each.member_id} ({each.client_id} at {each.host})" for each in members]
    more = [f"and {len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
    count = "1 member" if len(named) == 1 else f"{len(named)} members"
    return NonEmptyGroup(
        f"group {group!r} has {count}: {', '.join(named[:_MOST_NAMED] + more)}; stop them first: only they may commit "
        "while there are any"
    )


def partition_range(count: int) -> str:
    """Return a topic's partitions in words: "partition 0", "partitions 0 to 3"."""
    return "partition 0" if count == 1 else f"partitions 0 to {count - 1}"


def unknown_topic(name: str) -> UnknownTopicOrPartition:
    """The error of a topic that does not exist, with what to do."""
    return UnknownTopicOrPartition(
        f"topic {name!r} does not exist; `warmlog topic list` shows those that there are, `warmlog topic create` or "
        "Admin.create_topic creates one"
    )


def topic_error(topic: TopicMetadata) -> ApiError | None:
    """Why the response has no metadata of this topic, if so."""
    if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return unknown_topic(topic.name)
    text = topic.error_message or f"topic {topic.name!r}: no metadata"
    return error_from_code(topic.error_code, text) if topic.error_code else None


def max_message_bytes(configs: DescribeConfigsResponse) -> int:
    """The maximum size of a batch of the topic that was described."""
    return int(_settings(configs).get("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES))


def segment_bytes(configs: DescribeConfigsResponse) -> int:
    """The size of a segment of the topic that was described, which no batch may exceed."""
    return int(_settings(configs).get("segment.bytes", DEFAULT_SEGMENT_BYTES))


def max_age_ms(configs: DescribeConfigsResponse) -> int | None:
    """The age from which the broker deletes records of the topic that was described by their own timestamps.

    None if it deletes none by age, or dates them itself.
    """
    settings = _settings(configs)
    deletes = "delete" in settings.get("cleanup.policy", "").split(",")
    if not deletes or settings.get("message.timestamp.type") != "CreateTime":
        return None
    retention_ms = int(settings.get("retention.ms", -1))
    return retention_ms if retention_ms >= 0 else None


def _settings(configs: DescribeConfigsResponse) -> dict[str, str]:
    return {entry.name: entry.value for resource in configs.resources for entry in resource.entries}
