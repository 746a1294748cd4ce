"""The topics of the broker as consumer groups see them: by name and by id, without internal ones."""

from collections.abc import Callable, Iterable

from warmlog_broker.coordinator.group.state import KnownTopic, Partition
from warmlog_broker.topics.topics import Topics
from warmlog_protocol.errors import ApiError


class BrokerTopics:
    """A `TopicsView` that follows `Topics`: it is told of each topic that changes."""

    def __init__(self, topics: Topics, on_changed: Callable[[], None]) -> None:
        """`on_changed` is called after a topic was added or deleted, or got more partitions."""
        self._topics = topics
        self._on_changed = on_changed
        self._by_name: dict[str, KnownTopic] = {}
        self._by_id: dict[bytes, KnownTopic] = {}
        for topic in topics:
            self._update(topic.name)
        topics.on_changed.append(self._changed)

    def names(self) -> Iterable[str]:
        return self._by_name.keys()

    def by_name(self, name: str) -> KnownTopic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> KnownTopic | None:
        return self._by_id.get(topic_id)

    def log_end(self, partition: Partition) -> int | None:
        """Return the log end offset; None if the partition is unknown or offline."""
        known = self._by_id.get(partition.topic_id)
        if known is None or not 0 <= partition.number < known.partitions:
            return None
        try:
            return self._topics.partition(known.name, partition.number).log.log_end_offset
        except ApiError:
            return None

    def _changed(self, name: str) -> None:
        self._update(name)
        self._on_changed()

    def _update(self, name: str) -> None:
        old = self._by_name.pop(name, None)
        if old is not None:
            del self._by_id[old.topic_id]
        topic = self._topics.find(name)
        if topic is not None and not topic.is_internal:
            known = KnownTopic(topic.topic_id, name, len(topic.partitions))
            self._by_name[name] = self._by_id[topic.topic_id] = known
