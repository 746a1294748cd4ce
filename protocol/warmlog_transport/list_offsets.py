"""ListOffsets for many partitions at once."""

from collections.abc import Mapping
from typing import NamedTuple

from warmlog_protocol.errors import ApiError, error_from_code
from warmlog_protocol.messages import (
    CONSUMER_REPLICA_ID,
    LATEST_TIMESTAMP,
    IsolationLevel,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from warmlog_transport.broker_link import BrokerLink
from warmlog_transport.cluster import Cluster, about
from warmlog_transport.leader_requests import ask_leaders
from warmlog_transport.responses import TopicPartition

__all__ = ["OffsetAt", "TopicPartition", "list_offsets", "located", "look_up"]


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
    """Return for each partition its first record at or after a time in milliseconds (or LATEST_TIMESTAMP etc.).

    Raises the error of the first partition that has one; retriable errors only after the request timeout.
    """
    found = await look_up(cluster, asked, isolation=isolation, replica_id=replica_id, waits_for_offline=True)
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
    isolation: int = IsolationLevel.READ_UNCOMMITTED,
    replica_id: int = CONSUMER_REPLICA_ID,
    waits_for_offline: bool = False,
) -> dict[TopicPartition, OffsetAt | ApiError]:
    """As `list_offsets`, but an error is in place of the partition's offset and not raised."""

    async def once(times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAt | ApiError]:
        async def ask(partitions: list[TopicPartition], link: BrokerLink) -> list[ListedOffset]:
            wanted = [ListOffsetsPartition(*tp, times[tp]) for tp in partitions]
            request = ListOffsetsRequest(wanted, isolation, replica_id)
            return (await cluster.call(request, ListOffsetsResponse, link=link)).partitions

        results = await ask_leaders(cluster, times, ask, waits_for_offline=waits_for_offline)
        return {tp: _offset_or_error(tp, result) for tp, result in results.items()}

    found = await once(asked)
    past_end = [tp for tp, at in found.items() if isinstance(at, OffsetAt) and at.offset < 0]
    return found | (await once(dict.fromkeys(past_end, LATEST_TIMESTAMP)) if past_end else {})


def _offset_or_error(tp: TopicPartition, result: ListedOffset | ApiError) -> OffsetAt | ApiError:
    if isinstance(result, ApiError):
        return error_from_code(result.code, about(*tp, result))
    return OffsetAt(result.partition, result.offset, result.timestamp_ms, result.leader_epoch)
