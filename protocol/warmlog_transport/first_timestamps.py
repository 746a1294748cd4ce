"""When the first record from an offset on was written: the age of what a reader has not read."""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Collection
from typing import NamedTuple

from warmlog_protocol.errors import WarmlogError
from warmlog_protocol.messages import FetchPartition, FetchRequest, FetchResponse
from warmlog_transport.cluster import Cluster

_FETCHES_IN_FLIGHT = 16
"""Each brings one whole batch, a MiB by default at most."""


class Unread(NamedTuple):
    """Offsets of one partition; `end` is exclusive."""

    topic: str
    partition: int
    first: int
    end: int

    @property
    def records(self) -> int:
        """How many offsets; records that compaction has removed count."""
        return max(self.end - self.first, 0)


async def ages_s(cluster: Cluster, ranges: Collection[Unread]) -> dict[Unread, float | None]:
    """Return how many seconds ago the first record of each range was written: 0 for an empty range, None if unknown."""
    permits = asyncio.Semaphore(_FETCHES_IN_FLIGHT)

    async def age_s(unread: Unread) -> float | None:
        if not unread.records:
            return 0.0
        async with permits:
            written_ms = await _first_timestamp_ms(cluster, *unread)
        return None if written_ms is None else max(time.time_ns() // 1_000_000 - written_ms, 0) / 1000

    distinct = list(dict.fromkeys(ranges))
    return dict(zip(distinct, await asyncio.gather(*map(age_s, distinct)), strict=True))


async def _first_timestamp_ms(cluster: Cluster, topic: str, partition: int, offset: int, end: int) -> int | None:
    """Return the time now if nothing but markers of transactions is left, or what compaction has removed."""
    from warmlog_protocol.batch import read_batch  # nothing else that Admin imports needs the codecs

    while offset < end:
        link = cluster.leader(topic, partition)
        if link is None:
            return None
        request = FetchRequest(0, 1, 1, [FetchPartition(topic, partition, offset, 1)], skips_gaps=True)
        try:
            response = await cluster.ask(request, link)
            assert isinstance(response.result, FetchResponse)
            (fetched,) = response.result.partitions
            next_offset = fetched.next_offset
            if fetched.size_bytes:
                batch = read_batch(response.payload)
                index = bisect_left(batch.offsets(), offset)
                if index < batch.record_count and not batch.header.is_control:
                    timestamp_ms = batch.timestamps_ms()[index]
                    return timestamp_ms if timestamp_ms >= 0 else None
                next_offset = batch.next_offset
        except WarmlogError:
            return None
        if next_offset <= offset:
            return None
        offset = next_offset
    return time.time_ns() // 1_000_000
