"""Where a consumer of a group begins in partitions of which the group has committed nothing."""

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from warmlog.consumer.group.membership import Owned
from warmlog.consumer.partition_reader import Place
from warmlog.consumer.starting import look_up_points
from warmlog.errors import ApiError
from warmlog.points import EARLIEST, Point, PointKind, Points, fit_points
from warmlog_protocol.messages import FetchedOffset
from warmlog_transport.cluster import Cluster, Topic

LOOK_UP_S = 5.0
"""How long a start waits for the ends of one topic, of which a partition may be offline."""
FROM_END = (PointKind.LATEST, PointKind.TAIL)
"""Starts that mean a later offset the later they are looked up."""
FIXED = (PointKind.EARLIEST, PointKind.OFFSET)
"""Starts that do not mean a later offset the later they are given; a time may be so long before now."""


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
        topics = await self._cluster.topics(None if pattern else names)
        fitting = [topic for topic in topics if not pattern or re.fullmatch(pattern, topic.name)]
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
        fresh = {owned.tp: self._meant(owned) for owned, at in committed.items() if at.offset < 0}
        starts = await look_up_points(self._cluster, fresh, self._isolation) if fresh else {}
        begins = {owned: at if at.offset >= 0 else starts[owned.tp] for owned, at in committed.items()}
        return {owned: (at.offset, at.leader_epoch) for owned, at in begins.items()}

    def _meant(self, owned: Owned) -> Point:
        point = self.of(owned)
        return self._ends.get(owned, EARLIEST) if point.kind in FROM_END else point

    def is_later_if_given_later(self, partitions: Collection[Owned]) -> list[Owned]:
        """Return those of these whose start may mean a later offset to the next process."""
        return [owned for owned in partitions if self.of(owned).kind not in FIXED]
