"""Offsets of many partitions by time, and the times of records by offset: the age of what a reader has not read."""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Collection, Mapping
from typing import NamedTuple

from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, WarmlogError, error_from_code
from warmlog_transport.cluster import Cluster, about
from warmlog_transport.connection import BrokerLink
from warmlog_transport.leader_requests import ask_leaders
from warmlog_transport.responses import TopicPartition

_FETCHES_IN_FLIGHT = 16
"""Each brings one whole batch, a MiB by default at most."""


class OffsetAt(NamedTuple):
    """The first record at or after a time. Past the end of the log: its end, with `timestamp_ms` -1."""

    partition: int
    offset: int
    timestamp_ms: int
    leader_epoch: int


async def list_offsets(
    cluster: Cluster, asked: Mapping[TopicPartition, int], *, isolation: int = m.IsolationLevel.READ_UNCOMMITTED
) -> dict[TopicPartition, OffsetAt]:
    """Return for each partition its first record at or after a time in milliseconds (or LATEST_TIMESTAMP etc.).

    Raises the error of the first partition that has one; retriable errors only after the request timeout.
    """
    found = await look_up(cluster, asked, isolation=isolation, waits_for_offline=True)
    return {tp: located(at) for tp, at in found.items()}


def located(at: OffsetAt | ApiError) -> OffsetAt:
    """Return the offset, or raise the error in its place."""
    if isinstance(at, ApiError):
        raise at
    return at


async def look_up(
    cluster: Cluster,
    asked: Mapping[TopicPartition, int],
    *,
    isolation: int = m.IsolationLevel.READ_UNCOMMITTED,
    replica_id: int = m.CONSUMER_REPLICA_ID,
    waits_for_offline: bool = False,
) -> dict[TopicPartition, OffsetAt | ApiError]:
    """As `list_offsets`, but an error is in place of the partition's offset and not raised."""

    async def once(times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAt | ApiError]:
        async def ask(partitions: list[TopicPartition], link: BrokerLink) -> list[m.ListedOffset]:
            wanted = [m.ListOffsetsPartition(*tp, times[tp]) for tp in partitions]
            request = m.ListOffsetsRequest(wanted, isolation, replica_id)
            return (await link.call(request, m.ListOffsetsResponse)).partitions

        results = await ask_leaders(cluster, times, ask, waits_for_offline=waits_for_offline)
        return {
            tp: error_from_code(result.code, about(*tp, result))
            if isinstance(result, ApiError)
            else OffsetAt(result.partition, result.offset, result.timestamp_ms, result.leader_epoch)
            for tp, result in results.items()
        }

    found = await once(asked)
    past_end = [tp for tp, at in found.items() if isinstance(at, OffsetAt) and at.offset < 0]
    return found | (await once(dict.fromkeys(past_end, m.LATEST_TIMESTAMP)) if past_end else {})


async def epoch_ends(
    cluster: Cluster, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, m.EpochEndOffset | ApiError]:
    """Return where a leader epoch of each partition, or the newest known one below it, ends; or the error."""

    async def ask(partitions: list[TopicPartition], link: BrokerLink) -> list[m.EpochEndOffset]:
        request = m.OffsetForLeaderEpochRequest([m.OffsetForLeaderEpochPartition(*tp, epochs[tp]) for tp in partitions])
        return (await link.call(request, m.OffsetForLeaderEpochResponse)).partitions

    return await ask_leaders(cluster, epochs, ask)


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
            return await _first_age_s(cluster, *unread)

    distinct = list(dict.fromkeys(ranges))
    return dict(zip(distinct, await asyncio.gather(*map(age_s, distinct)), strict=True))


async def _first_age_s(cluster: Cluster, topic: str, partition: int, offset: int, end: int) -> float | None:
    """Return 0 if nothing but markers of transactions is left, or what compaction has removed."""
    from warmlog_protocol.batch import read_batch  # nothing else that Admin imports needs the codecs

    while offset < end:
        if cluster.leader(topic, partition) is None:
            return None
        request = m.FetchRequest(0, 1, 1, [m.FetchPartition(topic, partition, offset, 1)], skips_gaps=True)
        try:
            response = await cluster.ask_leader(request, topic, partition)
            assert isinstance(response.result, m.FetchResponse)
            (fetched,) = response.result.partitions
            next_offset = fetched.next_offset
            if fetched.size_bytes:
                batch = read_batch(response.payload)
                index = bisect_left(batch.offsets(), offset)
                if index < batch.record_count and not batch.header.is_control:
                    timestamp_ms = batch.timestamps_ms()[index]
                    return max(time.time_ns() // 1_000_000 - timestamp_ms, 0) / 1000 if timestamp_ms >= 0 else None
                next_offset = batch.next_offset
        except WarmlogError:
            return None
        if next_offset <= offset:
            return None
        offset = next_offset
    return 0.0
