"""Where a consumer starts and ends: points as offsets of partitions, also where a group has committed nothing."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from warmlog.consumer.group.membership import Owned
from warmlog.consumer.partition_reader import Place
from warmlog.errors import ApiError
from warmlog.points import EARLIEST, Point, PointKind, Points, fit_points
from warmlog_protocol.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, NO_LEADER_EPOCH, FetchedOffset
from warmlog_transport.cluster import Cluster
from warmlog_transport.list_offsets import OffsetAt, list_offsets
from warmlog_transport.responses import Topic, TopicPartition

LOOK_UP_S = 5.0
"""How long a start waits for the ends of one topic, of which a partition may be offline."""
FROM_END = (PointKind.LATEST, PointKind.TAIL)
"""Starts that mean a later offset the later they are looked up."""
FIXED = (PointKind.EARLIEST, PointKind.OFFSET)
"""Starts that do not mean a later offset the later they are given; a time may be so long before now."""


async def look_up_points(
    cluster: Cluster, points: Mapping[TopicPartition, Point], isolation: int
) -> dict[TopicPartition, OffsetAt]:
    """Return the offset of each point. A time past the end is the end, a tail begins at the earliest offset at least.

    Time and leader epoch are -1 for offsets and tails.
    """
    asked = {partition: at for partition, point in points.items() if (at := _asked(point)) is not None}
    found = await list_offsets(cluster, asked, isolation=isolation) if asked else {}
    tails = [partition for partition, point in points.items() if point.kind is PointKind.TAIL]
    earliest = await list_offsets(cluster, dict.fromkeys(tails, EARLIEST_TIMESTAMP)) if tails else {}
    for partition, point in points.items():
        if point.kind is PointKind.OFFSET:
            found[partition] = _at(partition, point.number)
        elif point.kind is PointKind.TAIL:
            offset = max(found[partition].offset - point.number, earliest[partition].offset)
            found[partition] = _at(partition, offset)
    return found


def _asked(point: Point) -> int | None:
    """The timestamp in a ListOffsets request. None for an offset; a time before 1970 is the start of the log."""
    match point.kind:
        case PointKind.OFFSET:
            return None
        case PointKind.LATEST | PointKind.TAIL:
            return LATEST_TIMESTAMP
        case PointKind.TIME if point.number >= 0:
            return point.number
    return EARLIEST_TIMESTAMP


def _at(partition: TopicPartition, offset: int) -> OffsetAt:
    return OffsetAt(partition[1], offset, timestamp_ms=-1, leader_epoch=NO_LEADER_EPOCH)


class GroupStart:
    """The consumer's `start`. "latest" and tails mean what they meant when the consumer started."""

    def __init__(self, cluster: Cluster, start: Points, isolation: int) -> None:
        self._cluster = cluster
        self._start = start
        self._isolation = isolation
        self._ends: dict[Owned, Point] = {}
        """What such a start meant, of partitions that existed then."""

    def of(self, owned: Owned) -> Point:
        return self._start if isinstance(self._start, Point) else self._start.get(owned.tp, EARLIEST)

    async def look_up(self, names: Sequence[str], pattern: str) -> None:
        """Check that the start fits these topics, or those like `pattern`, and find what it means now."""
        if isinstance(self._start, Point) and self._start.kind not in FROM_END:
            return
        cluster = self._cluster
        fitting = await (cluster.topics_like(pattern, may_be_none=True) if pattern else cluster.topics(names))
        present = [(topic.name, each.partition) for topic in fitting for each in topic.partitions]
        fit_points(self._start, present, "start", left_out=EARLIEST)
        await asyncio.gather(*map(self._look_up_ends_of, fitting))

    async def _look_up_ends_of(self, topic: Topic) -> None:
        present = [Owned(topic.topic_id.bytes, topic.name, each.partition) for each in topic.partitions]
        points = {owned: at for owned in present if (at := self.of(owned)).kind in FROM_END}
        self._ends |= points
        with suppress(ApiError, TimeoutError):  # one is offline, or was deleted: looked up when they are assigned
            asked = {owned.tp: at for owned, at in points.items()}
            async with asyncio.timeout(LOOK_UP_S):
                found = await look_up_points(self._cluster, asked, self._isolation)
            self._ends |= {owned: Point(PointKind.OFFSET, found[owned.tp].offset) for owned in points}

    async def places(self, committed: Mapping[Owned, FetchedOffset]) -> dict[Owned, Place]:
        """Return where to begin: where something is committed, else at the start.

        What was added since the consumer started is read from its beginning.
        """
        fresh = {}
        for owned, at in committed.items():
            if at.offset < 0:
                point = self.of(owned)
                fresh[owned.tp] = self._ends.get(owned, EARLIEST) if point.kind in FROM_END else point
        starts = await look_up_points(self._cluster, fresh, self._isolation) if fresh else {}
        begins = {owned: at if at.offset >= 0 else starts[owned.tp] for owned, at in committed.items()}
        return {owned: (at.offset, at.leader_epoch) for owned, at in begins.items()}
