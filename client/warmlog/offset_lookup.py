"""ListOffsets for many partitions at once, each asked of its leader."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from warmlog.broker_link import BrokerLink
from warmlog.cluster import Cluster
from warmlog.errors import ErrorCode, UnknownTopicOrPartition, error_from_code
from warmlog_protocol.messages import (
    CONSUMER_REPLICA_ID,
    LATEST_TIMESTAMP,
    IsolationLevel,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

TopicPartition = tuple[str, int]

_NO_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


class OffsetAt(NamedTuple):
    """The first record at or after a time. Past the end of the log: its end, with `timestamp_ms` -1."""

    partition: int
    offset: int
    timestamp_ms: int
    leader_epoch: int


async def list_offsets(
    cluster: Cluster,
    asked: Mapping[TopicPartition, int],
    *,
    isolation: int = IsolationLevel.READ_UNCOMMITTED,
    replica_id: int = CONSUMER_REPLICA_ID,
) -> dict[TopicPartition, OffsetAt]:
    """For each partition its first record at or after a time in milliseconds (or at one of LATEST_TIMESTAMP …).

    Raises the error of the first partition that has one; retriable ones only after the request timeout.
    """
    deadline = asyncio.get_running_loop().time() + cluster.options.request_timeout_ms / 1000
    found: dict[TopicPartition, OffsetAt] = {}
    missing = dict(asked)
    while missing:
        refused = await _ask_leaders(cluster, missing, found, isolation, replica_id)
        past_end = {place: LATEST_TIMESTAMP for place in missing if place in found and found[place].offset < 0}
        missing = {place: missing[place] for place in refused} | past_end
        for listed in refused.values():
            error = error_from_code(listed.error_code, f"{listed.topic}-{listed.partition}: {listed.error_message}")
            if not error.retriable or asyncio.get_running_loop().time() >= deadline:
                raise error
        if refused:
            await asyncio.sleep(cluster.options.retry_backoff_ms / 1000)
            await cluster.topics(sorted({topic for topic, _ in refused}))
    return found


async def _ask_leaders(
    cluster: Cluster,
    asked: Mapping[TopicPartition, int],
    found: dict[TopicPartition, OffsetAt],
    isolation: int,
    replica_id: int,
) -> dict[TopicPartition, ListedOffset]:
    """Ask once, and add what comes to `found`; the partitions that were refused."""
    refused: dict[TopicPartition, ListedOffset] = {}
    by_leader: dict[BrokerLink, list[ListOffsetsPartition]] = {}
    for (topic, partition), timestamp_ms in asked.items():
        count = len((await cluster.topic(topic)).partitions)
        if not 0 <= partition < count:
            raise UnknownTopicOrPartition(f"topic {topic!r} has partitions 0 to {count - 1}, not {partition}")
        link = cluster.leader(topic, partition)
        if link is None:
            refused[topic, partition] = ListedOffset(topic, partition, _NO_LEADER, "it has no leader now", -1, -1, -1)
        else:
            by_leader.setdefault(link, []).append(ListOffsetsPartition(topic, partition, timestamp_ms))
    for link, partitions in by_leader.items():
        request = ListOffsetsRequest(partitions, isolation, replica_id)
        response = await cluster.call(request, ListOffsetsResponse, link=link)
        for listed in response.partitions:
            place = (listed.topic, listed.partition)
            if listed.error_code:
                refused[place] = listed
            else:
                found[place] = OffsetAt(listed.partition, listed.offset, listed.timestamp_ms, listed.leader_epoch)
    return refused
