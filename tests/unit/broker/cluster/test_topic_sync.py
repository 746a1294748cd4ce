"""Partitions that come to this broker and leave it."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from warmlog_broker.cluster.topic_sync import TopicSync


async def test_a_partition_stays_whose_replica_knows_already_that_it_is_back() -> None:
    left: list[list[int]] = []
    entry: Any = SimpleNamespace(topic_id=bytes(16), settings={}, partitions=1)

    async def leave(_: str, numbers: list[int]) -> None:
        left.append(numbers)

    topic = SimpleNamespace(topic_id=bytes(16), entry=entry, local={0: None}, count=1)
    topics = MagicMock(find=lambda _: topic, leave=leave)
    store: Any = SimpleNamespace(state=SimpleNamespace(topics={"t": entry}), here=lambda _: [])
    nothing: Any = None
    for is_member, expected in ((True, []), (False, [[0]])):
        sync = TopicSync(store, topics, nothing, nothing, MagicMock(return_value=is_member))
        await sync._bring("t")
        assert left == expected
