"""The topics of the broker as consumer groups see them: by name and by id, without internal ones."""

from collections.abc import Iterable

from warmlog_broker.coordinator.group.decisions.state import KnownTopic, Partition
from warmlog_broker.security.authorizer import Authorizer
from warmlog_broker.topics.topics import Topic, Topics
from warmlog_protocol.errors import ApiError
from warmlog_protocol.messages import Operation, ResourceType


class BrokerTopics:
    """A `TopicsView` of `Topics`."""

    def __init__(self, topics: Topics, authorizer: Authorizer) -> None:
        self._topics = topics
        self._authorizer = authorizer

    def names(self) -> Iterable[str]:
        return [topic.name for topic in self._topics if not topic.is_internal]

    def may_describe(self, principal: str, name: str) -> bool:
        authorizer = self._authorizer
        return not authorizer.is_on or authorizer.may(principal, Operation.DESCRIBE, ResourceType.TOPIC, name)

    def by_name(self, name: str) -> KnownTopic | None:
        return _known(self._topics.find(name))

    def by_id(self, topic_id: bytes) -> KnownTopic | None:
        return _known(self._topics.find_by_id(topic_id))

    def log_end(self, partition: Partition) -> int | None:
        """Return the log end offset; None if the partition is unknown or offline."""
        topic = self._topics.find_by_id(partition.topic_id)
        if topic is None or not 0 <= partition.number < len(topic.partitions):
            return None
        try:
            return topic.partitions[partition.number].log.log_end_offset
        except ApiError:
            return None


def _known(topic: Topic | None) -> KnownTopic | None:
    if topic is None or topic.is_internal:
        return None
    return KnownTopic(topic.topic_id, topic.name, len(topic.partitions))
