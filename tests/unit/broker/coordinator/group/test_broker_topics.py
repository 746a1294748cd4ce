"""What groups know of topics in a cluster: the end of a log is asked of its leader alone."""

from pathlib import Path

from unit.broker.topics.test_topics import Room
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.coordinator.framework.decision import PartitionId
from warmlog_broker.coordinator.group.coordinator import BrokerTopics
from warmlog_broker.metadata.metadata_log import TopicCreated
from warmlog_broker.security.authorizer import Authorizer


async def test_a_follower_does_not_say_where_a_log_ends(tmp_path: Path) -> None:
    """Its log may lag: a commit of what a reader has read at the leader would be refused as out of range."""
    room = Room(tmp_path / "data")
    entry = TopicCreated("t", bytes([7]) * 16, 1, {})
    await room.cluster.commit([entry])
    await room.topics.assigned(entry, [0])
    topics = BrokerTopics(room.topics, Authorizer(room.cluster, BrokerConfig()))
    here, elsewhere = (PartitionId(topic_id, 0) for topic_id in (entry.topic_id, bytes(16)))
    assert topics.log_end(here) == 0
    assert topics.log_end(elsewhere) is None
    partition = room.topics.partition("t", 0)
    partition.become_follower(1, lambda: 0)
    assert topics.log_end(here) is None
    partition.become_leader(2)
    assert topics.log_end(here) == 0
    await room.close()
