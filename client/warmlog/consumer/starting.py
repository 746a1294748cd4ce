"""Where a consumer starts and ends: topics by pattern, and points as offsets of partitions."""

import re
from collections.abc import Mapping

from warmlog.errors import UnknownTopicOrPartition
from warmlog.points import Point, PointKind
from warmlog_protocol.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, NO_LEADER_EPOCH
from warmlog_transport.cluster import Cluster
from warmlog_transport.list_offsets import OffsetAt, list_offsets
from warmlog_transport.responses import TopicPartition


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


async def topics_like(cluster: Cluster, pattern: str) -> list[str]:
    """Return the topics, without internal ones, whose whole name matches. UnknownTopicOrPartition if there is none."""
    names = sorted(topic.name for topic in await cluster.topics(None))
    fitting = [name for name in names if re.fullmatch(pattern, name)]
    if not fitting:
        raise UnknownTopicOrPartition(
            f"no topic matches the pattern {pattern!r}; there are {', '.join(names) or 'none'}"
        )
    return fitting
