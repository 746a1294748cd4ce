"""How far a group is behind: records that it has not read, and the age of the first of them."""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from warmlog.admin.group_descriptions import CommittedOffset
from warmlog.cluster.cluster import Cluster
from warmlog.cluster.list_offsets import OffsetAt, located, look_up
from warmlog.errors import ApiError
from warmlog_protocol.batch import read_batch
from warmlog_protocol.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)

_FETCHES_IN_FLIGHT = 16
"""Each brings one whole batch, a MiB by default at most."""


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


async def measure_lags(cluster: Cluster, offsets: Sequence[CommittedOffset], now_ms: int) -> list[GroupLag]:
    """Return the lag of each of `offsets`, of any groups, in their order. Asks about a partition once."""
    partitions = dict.fromkeys((each.topic, each.partition) for each in offsets)
    earliest = await look_up(cluster, dict.fromkeys(partitions, EARLIEST_TIMESTAMP))
    latest = await look_up(cluster, dict.fromkeys(partitions, LATEST_TIMESTAMP))
    known = [
        _without_age(each, earliest[each.topic, each.partition], latest[each.topic, each.partition]) for each in offsets
    ]
    permits = asyncio.Semaphore(_FETCHES_IN_FLIGHT)

    async def look(topic: str, partition: int, first: int, end: int) -> int | None:
        async with permits:
            return await _first_timestamp_ms(cluster, topic, partition, first, end)

    places = [_unread(each) for each in known]
    unread = list(dict.fromkeys(place for place in places if place is not None))
    times_ms = dict(zip(unread, await asyncio.gather(*(look(*place) for place in unread)), strict=True))
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


def _unread(lag: GroupLag) -> tuple[str, int, int, int] | None:
    """Return partition, first offset and end of what is left to read, if there is anything."""
    if not lag.records or lag.high_watermark is None:
        return None
    return lag.topic, lag.partition, lag.high_watermark - lag.records, lag.high_watermark


def _with_age(lag: GroupLag, first_ms: int, now_ms: int) -> GroupLag:
    return replace(lag, seconds=max(now_ms - first_ms, 0) / 1000)


async def _first_timestamp_ms(cluster: Cluster, topic: str, partition: int, offset: int, end: int) -> int | None:
    """Return the timestamp of the first record from `offset` on; None without one before `end`, or if it is unknown."""
    while offset < end and (link := cluster.leader(topic, partition)) is not None:
        request = FetchRequest(0, 1, 1, [FetchPartition(topic, partition, offset, 1)], skips_gaps=True)
        try:
            response = await cluster.ask(request, link)
            assert isinstance(response.result, FetchResponse)
            (fetched,) = response.result.partitions
            if not fetched.size_bytes:
                if fetched.next_offset <= offset:
                    return None
                offset = fetched.next_offset
                continue
            batch = read_batch(response.payload)
            index = bisect_left(batch.offsets(), offset)
            if index < batch.record_count:
                timestamp_ms = batch.timestamps_ms()[index]
                return timestamp_ms if timestamp_ms >= 0 else None
        except ApiError:
            return None
        if batch.header.next_offset <= offset:
            return None
        offset = batch.header.next_offset
    return None
