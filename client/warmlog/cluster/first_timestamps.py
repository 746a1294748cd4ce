"""When the first record from an offset on was written: the age of what a reader has not read."""

import asyncio
from bisect import bisect_left
from collections.abc import Collection
from typing import NamedTuple

from warmlog.cluster.cluster import Cluster
from warmlog.errors import WarmlogError
from warmlog_protocol.messages import FetchPartition, FetchRequest, FetchResponse

_FETCHES_IN_FLIGHT = 16
"""Each brings one whole batch, a MiB by default at most."""


class Unread(NamedTuple):
    """Offsets of one partition; `end` is exclusive."""

    topic: str
    partition: int
    first: int
    end: int


async def first_timestamps_ms(cluster: Cluster, ranges: Collection[Unread]) -> dict[Unread, int | None]:
    """Return the timestamp of the first record in each range; None if there is none, or it is not known."""
    permits = asyncio.Semaphore(_FETCHES_IN_FLIGHT)

    async def look(unread: Unread) -> int | None:
        async with permits:
            return await _first_timestamp_ms(cluster, *unread)

    distinct = list(dict.fromkeys(ranges))
    return dict(zip(distinct, await asyncio.gather(*map(look, distinct)), strict=True))


async def _first_timestamp_ms(cluster: Cluster, topic: str, partition: int, offset: int, end: int) -> int | None:
    from warmlog_protocol.batch import read_batch  # nothing else that Admin imports needs the codecs

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
        except WarmlogError:
            return None
        if batch.header.next_offset <= offset:
            return None
        offset = batch.header.next_offset
    return None
