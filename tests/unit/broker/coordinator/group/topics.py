"""Topics for the tests of groups: a TopicsView that the test changes, and what follows it as the service does."""

from collections.abc import Generator, Iterable
from typing import TypeVar

from warmlog_broker.coordinator.framework.decision import PartitionId
from warmlog_broker.coordinator.group.decisions.records import KnownTopic
from warmlog_broker.coordinator.group.decisions.state import Pattern
from warmlog_broker.coordinator.group.decisions.subscriptions import Subscriptions
from warmlog_broker.coordinator.group.patterns import matching

R = TypeVar("R")

LOG_END = 1 << 40


class Topics:
    """Topics with new ids each time; every partition has the log end offset LOG_END."""

    def __init__(self, **partitions: int) -> None:
        self._created = 0
        self.hidden: set[tuple[str, str]] = set()
        """Principals and topics that they may not describe."""
        self._by_name: dict[str, KnownTopic] = {}
        self._by_id: dict[bytes, KnownTopic] = {}
        self.seen: set[str] = set()
        """The names of all topics that there ever were."""
        for name, count in partitions.items():
            self.create(name, count)

    def create(self, name: str, partitions: int) -> KnownTopic:
        """Create a topic, instead of the one of this name if there is one."""
        self.delete(name)
        self._created += 1
        return self._put(KnownTopic(self._created.to_bytes(16, "big"), name, partitions))

    def grow(self, name: str, partitions: int) -> KnownTopic:
        """Let a topic have this many partitions."""
        return self._put(self._by_name[name]._replace(partitions=partitions))

    def delete(self, name: str) -> None:
        """Delete a topic if there is one of this name."""
        topic = self._by_name.pop(name, None)
        if topic is not None:
            del self._by_id[topic.topic_id]

    def _put(self, topic: KnownTopic) -> KnownTopic:
        self.seen.add(topic.name)
        self._by_name[topic.name] = self._by_id[topic.topic_id] = topic
        return topic

    def partitions(self, name: str) -> list[PartitionId]:
        """Return all partitions of a topic."""
        topic = self._by_name[name]
        return [PartitionId(topic.topic_id, number) for number in range(topic.partitions)]

    def names(self) -> Iterable[str]:
        return list(self._by_name)

    def may_describe(self, principal: str, name: str) -> bool:
        return (principal, name) not in self.hidden

    def by_name(self, name: str) -> KnownTopic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> KnownTopic | None:
        return self._by_id.get(topic_id)

    def log_end(self, partition: PartitionId) -> int | None:
        topic = self._by_id.get(partition.topic_id)
        return LOG_END if topic and partition.number < topic.partitions else None


def run_steps(steps: Generator[None, None, R]) -> R:
    """Return what a computation returns, without any pause."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: R = end.value
        return result


def follow_topics(subscriptions: Subscriptions, topics: Topics) -> None:
    """Take in all changes of topics, and compare patterns with new ones."""
    subscriptions.changed([*topics.seen])
    subscriptions.rights_changed()
    for pattern in subscriptions.patterns():
        match(subscriptions, pattern)


def match(subscriptions: Subscriptions, pattern: Pattern) -> None:
    """Compare a pattern with the topics that it was not compared with."""
    topics = [topic for _, topic in subscriptions.topics(pattern.unmatched)]
    subscriptions.compared(pattern, topics, run_steps(matching(pattern.text, [topic.name for topic in topics])))


def know_pattern(subscriptions: Subscriptions, text: str | None) -> Pattern | None:
    """Return the pattern of a request, after it was compared with all topics."""
    if not text:
        return None
    pattern = subscriptions.pattern(text)
    if not pattern.is_known:
        match(subscriptions, pattern)
    return pattern
