"""Ends of transactions in partitions that are here, elsewhere, not known yet, or deleted."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from unit.broker.topics.test_topics import Room
from warmlog_broker.coordinator.framework.decision import PartitionId
from warmlog_broker.coordinator.transaction import markers
from warmlog_broker.coordinator.transaction.decisions.state import Incarnation, Outcome
from warmlog_broker.coordinator.transaction.markers import LocalMarkers, write_ends
from warmlog_broker.coordinator.transaction.ports import PendingOffsets
from warmlog_broker.metadata.metadata_log import TopicCreated
from warmlog_protocol.errors import NotLeaderOrFollower
from warmlog_protocol.messages import WriteMarkerRequest

ENTRY = TopicCreated("t", bytes([7]) * 16, 2, {})
PRODUCER = Incarnation(4, 1)


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    made = Room(tmp_path / "data")
    yield made
    await made.close()


async def end(room: Room, partition: int) -> bool:
    local = LocalMarkers(room.topics, room.cluster)
    return await local.end(WriteMarkerRequest(ENTRY.topic_id, partition, *PRODUCER, True, False, 0))


async def test_a_topic_that_is_not_known_here_yet_is_no_deleted_one(room: Room) -> None:
    assert not await end(room, 0), "no topic has ever had this id"
    await room.cluster.commit([ENTRY])
    with pytest.raises(NotLeaderOrFollower, match="not known here yet"):
        await end(room, 0)
    await room.topics.assigned(ENTRY, [0])
    with pytest.raises(NotLeaderOrFollower, match="t-1 is not on this broker"):
        await end(room, 1)
    assert not await end(room, 0)
    assert room.topics.partition("t", 0).log.log_end_offset == 1
    await room.topics.delete("t")
    assert not await end(room, 0)


async def test_a_marker_is_tried_again_until_the_view_of_this_broker_has_the_topic(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers, "RETRY_S", 0.001)
    await room.cluster.commit([ENTRY])
    groups: PendingOffsets = None  # type: ignore[assignment]  # the transaction has no offsets
    local = LocalMarkers(room.topics, room.cluster)
    outcome = Outcome(PRODUCER, True, (PartitionId(ENTRY.topic_id, 0),), ())
    writing = asyncio.create_task(write_ends([outcome], local, groups, coordinator_epoch=0))
    await asyncio.sleep(0.02)
    assert not writing.done(), "the marker is lost: readers of committed data wait for ever"
    await room.topics.assigned(ENTRY, [0, 1])
    assert await writing == set()
    assert room.topics.partition("t", 0).log.log_end_offset == 1
