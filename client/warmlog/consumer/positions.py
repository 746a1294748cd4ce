"""Where a consumer starts, seeks to and ends: names, offsets and times become an offset for each partition."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from warmlog.cluster.cluster import Cluster
from warmlog.cluster.list_offsets import OffsetAt, TopicPartition, list_offsets
from warmlog.times import asked_timestamp
from warmlog_protocol.messages import NO_LEADER_EPOCH

Point = str | int | datetime
"""An offset, "earliest", "latest", or the first record at or after a time (UTC when it has no zone)."""
Points = Point | Mapping[TopicPartition, int]
"""The same for all partitions, or an offset for each."""


async def resolve(
    cluster: Cluster, points: Points, partitions: Iterable[TopicPartition], isolation: int
) -> dict[TopicPartition, OffsetAt]:
    """The offset of each partition; those that a mapping does not name are left out. A time past the end is the end.

    Without time and leader epoch, -1, if `points` gave the offset.
    """
    places = list(partitions)
    if isinstance(points, Mapping):
        return {place: _given(place, points[place]) for place in places if place in points}
    if isinstance(points, int):
        return {place: _given(place, points) for place in places}
    if not isinstance(points, (str, datetime)) or points == "max_timestamp":
        raise ValueError(f'{points!r}: "earliest", "latest", an offset or a datetime expected')
    asked = dict.fromkeys(places, asked_timestamp(points))
    return await list_offsets(cluster, asked, isolation=isolation)


def _given(place: TopicPartition, offset: int) -> OffsetAt:
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise ValueError(f"{offset!r} is no offset: a number from 0 on expected")
    return OffsetAt(place[1], offset, timestamp_ms=-1, leader_epoch=NO_LEADER_EPOCH)
