"""Where a consumer starts, seeks to and ends: names, offsets and times become an offset for each partition."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from warmlog.cluster.cluster import Cluster
from warmlog.cluster.list_offsets import TopicPartition, list_offsets
from warmlog.times import asked_timestamp

Point = str | int | datetime
"""An offset, "earliest", "latest", or the first record at or after a time (UTC when it has no zone)."""
Points = Point | Mapping[TopicPartition, int]
"""The same for all partitions, or an offset for each."""


async def resolve(
    cluster: Cluster, points: Points, partitions: Iterable[TopicPartition], isolation: int
) -> dict[TopicPartition, int]:
    """The offset of each partition; those that a mapping does not name are left out. A time past the end is the end."""
    places = list(partitions)
    if isinstance(points, Mapping):
        return {place: _offset(points[place]) for place in places if place in points}
    if isinstance(points, int):
        return dict.fromkeys(places, _offset(points))
    if not isinstance(points, (str, datetime)) or points == "max_timestamp":
        raise ValueError(f'{points!r}: "earliest", "latest", an offset or a datetime expected')
    asked = dict.fromkeys(places, asked_timestamp(points))
    found = await list_offsets(cluster, asked, isolation=isolation)
    return {place: at.offset for place, at in found.items()}


def _offset(offset: int) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise ValueError(f"{offset!r} is no offset: a number from 0 on expected")
    return offset
