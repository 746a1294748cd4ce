"""How far a group is behind: records that it has not read, and the age of the first of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from warmlog.admin.group_descriptions import CommittedOffset
from warmlog.cluster.cluster import Cluster
from warmlog.cluster.first_timestamps import Unread, first_timestamps_ms
from warmlog.cluster.list_offsets import OffsetAt, located, look_up
from warmlog.errors import ApiError
from warmlog_protocol.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind in one partition. None stands for what is not known."""

    topic: str
    partition: int
    committed: int
    """The offset of the next record to read."""
    log_start_offset: int | None
    high_watermark: int | None
    """The end of what may be read, exclusive."""
    records: int | None
    """How many offsets are left to read: those that compaction removed count, those below the log start do not."""
    seconds: float | None
    """The age of the first record that is left to read; 0 if there is none."""
    error: ApiError | None = None
    """Why the offsets are not known."""


async def measure_lags(
    cluster: Cluster, offsets: Sequence[CommittedOffset], now_ms: int, *, with_age: bool
) -> list[GroupLag]:
    """Return the lag of each of `offsets`, of any groups, in their order. Asks about a partition once.

    Without `with_age` the seconds of what is not read are None.
    """
    partitions = dict.fromkeys((each.topic, each.partition) for each in offsets)
    earliest = await look_up(cluster, dict.fromkeys(partitions, EARLIEST_TIMESTAMP))
    latest = await look_up(cluster, dict.fromkeys(partitions, LATEST_TIMESTAMP))
    known = [
        _without_age(each, earliest[each.topic, each.partition], latest[each.topic, each.partition]) for each in offsets
    ]
    if not with_age:
        return known
    places = [_unread(each) for each in known]
    times_ms = await first_timestamps_ms(cluster, [place for place in places if place is not None])
    return [
        lag if place is None or (first_ms := times_ms[place]) is None else _with_age(lag, first_ms, now_ms)
        for lag, place in zip(known, places, strict=True)
    ]


def _without_age(committed: CommittedOffset, earliest: OffsetAt | ApiError, latest: OffsetAt | ApiError) -> GroupLag:
    place = (committed.topic, committed.partition, committed.offset)
    for found in (earliest, latest):
        if isinstance(found, ApiError):
            return GroupLag(*place, None, None, None, None, found)
    start, end = located(earliest).offset, located(latest).offset
    records = max(end - max(committed.offset, start), 0)
    return GroupLag(*place, start, end, records, None if records else 0.0)


def _unread(lag: GroupLag) -> Unread | None:
    """Return what is left to read, if there is anything."""
    if not lag.records or lag.high_watermark is None:
        return None
    return Unread(lag.topic, lag.partition, lag.high_watermark - lag.records, lag.high_watermark)


def _with_age(lag: GroupLag, first_ms: int, now_ms: int) -> GroupLag:
    return replace(lag, seconds=max(now_ms - first_ms, 0) / 1000)
