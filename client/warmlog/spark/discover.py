"""What the broker has of the topics that a load() names: asked once, when Spark plans it."""

import difflib
from collections.abc import Sequence

from warmlog.blocking import BlockingCluster
from warmlog.errors import BrokerUnavailable, UnknownTopicOrPartition
from warmlog.options import ConnectionOptions
from warmlog.spark.plan import PartitionState
from warmlog_protocol.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP


def discover_partitions(bootstrap: Sequence[str], topics: Sequence[str]) -> list[PartitionState]:
    """Every partition of `topics`, by topic as given and then by number.

    Raises UnknownTopicOrPartition with the nearest name of a topic, BrokerUnavailable when no broker answers.
    """
    try:
        with BlockingCluster(bootstrap, ConnectionOptions(client_name="warmlog-spark")) as cluster:
            return _states(cluster, topics)
    except BrokerUnavailable as error:
        raise BrokerUnavailable(f"{error}; is the broker running at {', '.join(bootstrap)}?") from error


def _states(cluster: BlockingCluster, topics: Sequence[str]) -> list[PartitionState]:
    try:
        found = cluster.topics(topics)
    except UnknownTopicOrPartition:
        raise _unknown_topic(topics, sorted(cluster.topics())) from None
    places = [(topic, each.partition) for topic in topics for each in found[topic].partitions]
    earliest = cluster.list_offsets(dict.fromkeys(places, EARLIEST_TIMESTAMP))
    latest = cluster.list_offsets(dict.fromkeys(places, LATEST_TIMESTAMP))
    return [
        PartitionState(
            topic=topic,
            partition=partition,
            topic_id=found[topic].topic_id,
            leader=str(cluster.leader_address(topic, partition)),
            earliest=earliest[topic, partition].offset,
            latest=latest[topic, partition].offset,
        )
        for topic, partition in places
    ]


def _unknown_topic(topics: Sequence[str], existing: Sequence[str]) -> UnknownTopicOrPartition:
    missing = [topic for topic in topics if topic not in existing]
    nearest = difflib.get_close_matches(missing[0], existing, n=1) if missing else []
    hint = f"did you mean {nearest[0]}?" if nearest else "create it, or name another in the option subscribe"
    return UnknownTopicOrPartition(f"topic {', '.join(missing)} does not exist; {hint}")
