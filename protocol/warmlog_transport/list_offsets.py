"""Offsets of many partitions by time, and how far a reader is behind: how many records, and since when."""

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
_MOST_PASSED = 500
"""Batches without a record to read, as of aborted transactions, that are passed over before the rest counts."""


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


class Behind(NamedTuple):
    """What is not read yet: the offsets from the first record that is left, and how long ago that was written.

    Markers of transactions and what compaction has removed are no records, but count if they come after the first one.
    `seconds` is 0 if nothing is left, and None if that time is not known.
    """

    records: int
    seconds: float | None
    first_ms: int | None = None
    """The timestamp of that record, if it is known."""


NOT_BEHIND = Behind(0, 0.0)


async def lags(
    cluster: Cluster, ranges: Collection[Unread], *, isolation: int = m.IsolationLevel.READ_COMMITTED
) -> dict[Unread, Behind]:
    """Return the lag of a reader that has all of these ranges to read; what cannot be looked up counts as records.

    A reader of committed data has no records of aborted transactions to read, but those of open ones.
    """
    permits = asyncio.Semaphore(_FETCHES_IN_FLIGHT)

    async def measure(unread: Unread) -> Behind:
        async with permits:
            return await _lag(cluster, unread, isolation)

    distinct = list(dict.fromkeys(ranges))
    return dict(zip(distinct, await asyncio.gather(*map(measure, distinct)), strict=True))


async def _lag(cluster: Cluster, unread: Unread, isolation: int) -> Behind:
    from warmlog_protocol.batch import read_batch  # nothing else that Admin imports needs the codecs

    topic, partition, offset, end = unread
    for _ in range(_MOST_PASSED):
        if offset >= end:
            return NOT_BEHIND
        unknown = Behind(end - offset, None)
        if cluster.leader(topic, partition) is None:
            return unknown
        epoch = cluster.leader_epoch(topic, partition)
        wanted = m.FetchPartition(topic, partition, offset, 1, current_leader_epoch=epoch)
        try:
            response = await cluster.ask_leader(
                m.FetchRequest(0, 1, 1, [wanted], isolation, skips_gaps=True), topic, partition
            )
            assert isinstance(response.result, m.FetchResponse)
            (fetched,) = response.result.partitions
            next_offset = fetched.next_offset
            if fetched.size_bytes:
                batch = read_batch(response.payload)
                offsets, next_offset = batch.offsets(), batch.next_offset
                index = bisect_left(offsets, offset)
                header, aborted = batch.header, fetched.aborted_transactions
                hidden_ids = {each.producer_id for each in aborted if each.first_offset <= header.base_offset}
                is_hidden = header.is_control or (header.is_transactional and header.producer_id in hidden_ids)
                if index < batch.record_count and not is_hidden:
                    timestamp_ms = batch.timestamps_ms()[index]
                    if timestamp_ms < 0:
                        return Behind(end - offsets[index], None)
                    age_ms = max(time.time_ns() // 1_000_000 - timestamp_ms, 0)
                    return Behind(end - offsets[index], age_ms / 1000, timestamp_ms)
        except WarmlogError:
            return unknown
        if next_offset > offset:
            offset = next_offset
        elif isolation == m.IsolationLevel.READ_COMMITTED and not fetched.error_code:
            isolation = m.IsolationLevel.READ_UNCOMMITTED  # an open transaction begins here
        else:
            return unknown
    return Behind(max(end - offset, 0), None)
