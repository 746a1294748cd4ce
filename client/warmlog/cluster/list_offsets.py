"""ListOffsets for many partitions at once, each asked of its leader."""

from collections.abc import Mapping
from typing import NamedTuple

from warmlog.cluster.broker_link import BrokerLink
from warmlog.cluster.cluster import Cluster, about
from warmlog.cluster.leader_requests import TopicPartition, ask_leaders
from warmlog.errors import ApiError, error_from_code
from warmlog_protocol.messages import (
    CONSUMER_REPLICA_ID,
    LATEST_TIMESTAMP,
    IsolationLevel,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

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
    """For each partition its first record at or after a time in milliseconds (or at one of LATEST_TIMESTAMP …).

    Raises the error of the first partition that has one; retriable ones only after the request timeout.
    """
    found = await look_up(cluster, asked, isolation=isolation, replica_id=replica_id, waits_for_offline=True)
    return {place: located(at) for place, at in found.items()}


def located(at: OffsetAt | ApiError) -> OffsetAt:
    """The offset; raises what kept it from being looked up."""
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
    """As `list_offsets`, with the error of each partition that has one in place of its offset."""

    async def once(times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAt | ApiError]:
        async def ask(places: list[TopicPartition], link: BrokerLink) -> list[ListedOffset]:
            wanted = [ListOffsetsPartition(*place, times[place]) for place in places]
            request = ListOffsetsRequest(wanted, isolation, replica_id)
            return (await cluster.call(request, ListOffsetsResponse, link=link)).partitions

        answers = await ask_leaders(cluster, times, ask, waits_for_offline=waits_for_offline)
        return {place: _offset_or_error(place, answer) for place, answer in answers.items()}

    found = await once(asked)
    past_end = [place for place, at in found.items() if isinstance(at, OffsetAt) and at.offset < 0]
    return found | (await once(dict.fromkeys(past_end, LATEST_TIMESTAMP)) if past_end else {})


def _offset_or_error(place: TopicPartition, answer: ListedOffset | ApiError) -> OffsetAt | ApiError:
    if isinstance(answer, ApiError):
        return error_from_code(answer.code, about(*place, answer))
    return OffsetAt(answer.partition, answer.offset, answer.timestamp_ms, answer.leader_epoch)
