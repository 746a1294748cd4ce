"""Requests about partitions: each is sent to the partition's leader, and again while there is none."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol, TypeVar

from warmlog_protocol.errors import ApiError, StorageError, UnknownTopicOrPartition, error_from_code
from warmlog_transport.broker_link import BrokerLink
from warmlog_transport.cluster import Cluster
from warmlog_transport.responses import HasError, TopicPartition


class PartitionResult(HasError, Protocol):
    """A partition's part of a response."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...


Result = TypeVar("Result", bound=PartitionResult)

PARTITIONS_A_REQUEST = 2000
"""With the longest names they take half of a broker's `request.header.max.bytes`; `request.max.items` allows more."""


async def ask_leaders(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    ask: Callable[[list[TopicPartition], BrokerLink], Awaitable[list[Result]]],
    *,
    waits_for_offline: bool = False,
) -> dict[TopicPartition, Result | ApiError]:
    """Return for each of `partitions`, in their order, its result or why there is none. Requests must be repeatable.

    `ask` sends a request about some of one leader's partitions and returns the results. Retriable errors are retried until the
    request timeout; an offline partition only with `waits_for_offline`, as it mostly takes an operator to repair it.
    Raises BrokerUnavailable if no broker responds.
    """
    deadline = asyncio.get_running_loop().time() + cluster.options.request_timeout_ms / 1000
    found: dict[TopicPartition, Result | ApiError] = {}
    missing = list(partitions)
    while missing:
        found.update(await _ask_once(cluster, missing, ask))
        missing = [tp for tp in missing if _may_pass(cluster, tp, found[tp], waits_for_offline)]
        if not missing or asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(cluster.options.retry_backoff_ms / 1000)
        await cluster.topics(sorted({topic for topic, _ in missing}))
    return {tp: found[tp] for tp in partitions}


def _may_pass(
    cluster: Cluster, tp: TopicPartition, result: PartitionResult | ApiError, waits_for_offline: bool
) -> bool:
    """Whether to retry. The reason is logged once."""
    if not isinstance(result, ApiError):
        cluster.worked(*tp)
        return False
    if not result.retriable or isinstance(result, UnknownTopicOrPartition):
        return False
    if not waits_for_offline and _is_offline(cluster, tp):
        return False
    cluster.failed(*tp, result)
    return True


def _is_offline(cluster: Cluster, tp: TopicPartition) -> bool:
    """Whether the metadata say so. A storage error alone does not: the partition may be moving, or the disk full."""
    return cluster.leader(*tp) is None and isinstance(cluster.no_leader(*tp), StorageError)


async def _ask_once(
    cluster: Cluster,
    partitions: list[TopicPartition],
    ask: Callable[[list[TopicPartition], BrokerLink], Awaitable[list[Result]]],
) -> dict[TopicPartition, Result | ApiError]:
    found: dict[TopicPartition, Result | ApiError] = {}
    by_leader: dict[BrokerLink, list[TopicPartition]] = {}
    refreshed: set[str] = set()
    for topic, partition in partitions:
        try:
            await cluster.topic(topic)
            if cluster.leader(topic, partition) is None and topic not in refreshed:
                refreshed.add(topic)
                await cluster.topics([topic])  # it may have one by now
        except UnknownTopicOrPartition as error:
            found[topic, partition] = error
            continue
        link = cluster.leader(topic, partition) or cluster.replica(topic, partition)
        if link is None:
            found[topic, partition] = cluster.no_leader(topic, partition)
        else:
            by_leader.setdefault(link, []).append((topic, partition))
    for link, theirs in by_leader.items():
        for first in range(0, len(theirs), PARTITIONS_A_REQUEST):
            for result in await ask(theirs[first : first + PARTITIONS_A_REQUEST], link):
                tp = (result.topic, result.partition)
                found[tp] = error_from_code(result.error_code, result.error_message) if result.error_code else result
    return found
