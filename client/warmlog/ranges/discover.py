"""What the broker has of the topics that are to be read: asked once, when a plan is made."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from warmlog.blocking import BlockingCluster
from warmlog.errors import BrokerUnavailable, UnknownTopicOrPartition
from warmlog.options import ConnectionOptions
from warmlog.ranges.offset_range import PartitionState, TopicPartition
from warmlog_protocol.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicMetadata

T = TypeVar("T")


class Discovery:
    """Questions to a cluster over connections that it shares; a context manager. Nothing is asked before the first.

    Raises UnknownTopicOrPartition with the nearest name of a topic, BrokerUnavailable when no broker answers.
    """

    def __init__(self, bootstrap: Sequence[str], options: ConnectionOptions | None = None) -> None:
        self._bootstrap = bootstrap
        self._cluster = BlockingCluster(bootstrap, options or ConnectionOptions(client_name="warmlog-spark"))

    def __enter__(self) -> "Discovery":
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def topics(self, names: Sequence[str]) -> dict[str, TopicMetadata]:
        """Metadata of the topics with these names, in their order."""
        try:
            found = self._ask(lambda: self._cluster.topics(names))
        except UnknownTopicOrPartition:
            raise _unknown_topic(names, sorted(self._ask(self._cluster.topics))) from None
        return {name: found[name] for name in names}

    def topics_like(self, pattern: str) -> dict[str, TopicMetadata]:
        """Metadata of the topics whose whole name fits the regular expression, by name."""
        found = self._ask(self._cluster.topics)
        fitting = {name: found[name] for name in sorted(found) if re.fullmatch(pattern, name)}
        if not fitting:
            raise UnknownTopicOrPartition(f"no topic fits the pattern {pattern!r}; there are {_listed(sorted(found))}")
        return fitting

    def states(
        self, topics: Mapping[str, TopicMetadata], includes: Callable[[TopicPartition], bool] = lambda _: True
    ) -> list[PartitionState]:
        """Every partition of `topics` that `includes` says yes to, by topic as given and then by number."""
        places = [
            (name, each.partition)
            for name, topic in topics.items()
            for each in topic.partitions
            if includes((name, each.partition))
        ]
        earliest = self.offsets(dict.fromkeys(places, EARLIEST_TIMESTAMP))
        latest = self.offsets(dict.fromkeys(places, LATEST_TIMESTAMP))
        return [
            PartitionState(
                topic=topic,
                partition=partition,
                topic_id=topics[topic].topic_id,
                leader=str(self._cluster.leader_address(topic, partition)),
                earliest=earliest[topic, partition],
                latest=latest[topic, partition],
            )
            for topic, partition in places
        ]

    def offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The first offset at or after a time in milliseconds, for each partition; -1 where no record is so young."""
        if not times:
            return {}
        found = self._ask(lambda: self._cluster.list_offsets(dict(times)))
        return {place: listed.offset for place, listed in found.items()}

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except BrokerUnavailable as error:
            raise BrokerUnavailable(f"{error}; is the broker running at {', '.join(self._bootstrap)}?") from error


def _unknown_topic(topics: Sequence[str], existing: Sequence[str]) -> UnknownTopicOrPartition:
    missing = [topic for topic in topics if topic not in existing]
    nearest = difflib.get_close_matches(missing[0], existing, n=1) if missing else []
    hint = f"did you mean {nearest[0]}?" if nearest else "create it, or name another in the option subscribe"
    return UnknownTopicOrPartition(f"topic {', '.join(missing)} does not exist; {hint}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
