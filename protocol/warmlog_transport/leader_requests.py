"""Requests about partitions: each is sent to the partition's leader, and again while there is none."""

from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from warmlog_protocol.errors import ApiError, StorageError, UnknownTopicOrPartition, error_from_code
from warmlog_protocol.messages import PartitionResult
from warmlog_transport.cluster import Cluster
from warmlog_transport.connection import BrokerLink
from warmlog_transport.errors import BrokerUnavailable
from warmlog_transport.responses import TopicPartition
from warmlog_transport.retries import Retries

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

    `ask` sends one request about partitions of one leader and returns the results. Retriable errors and lost
    connections are retried, at the leaders known by then, until the request timeout; an offline partition only with
    `waits_for_offline`, as it mostly takes an operator to repair it. Raises BrokerUnavailable if a broker still does
    not respond.
    """
    retries = Retries(cluster.options, cluster.options.request_timeout_ms / 1000)
    found: dict[TopicPartition, Result | ApiError] = {}
    missing = list(partitions)
    is_retry = False
    while True:
        lost: BrokerUnavailable | None = None
        for link, theirs in await _by_leader(cluster, missing, found, is_retry=is_retry):
            try:
                results = await ask(theirs, link)
            except BrokerUnavailable as error:
                lost = error
                continue
            except ApiError as error:
                if not error.retriable:
                    raise
                found.update(dict.fromkeys(theirs, error))
                continue
            for result in results:
                refused = error_from_code(result.error_code, result.error_message) if result.error_code else None
                found[result.topic, result.partition] = refused or result
        missing = [tp for tp in missing if tp not in found or _may_pass(cluster, tp, found[tp], waits_for_offline)]
        if not missing or not await retries.pause():
            break
        is_retry = True
    if lost is not None:
        raise lost
    return {tp: found[tp] for tp in partitions}


async def _by_leader(
    cluster: Cluster,
    partitions: list[TopicPartition],
    found: dict[TopicPartition, Result | ApiError],
    *,
    is_retry: bool,
) -> list[tuple[BrokerLink, list[TopicPartition]]]:
    """Return the partitions of each leader, in lists for one request each. The error of others is in `found`.

    A retry requests fresh metadata.
    """
    unknown = {topic for topic, partition in partitions if is_retry or cluster.leader(topic, partition) is None}
    if unknown:
        await cluster.learn(unknown)
    by_leader: dict[BrokerLink, list[TopicPartition]] = {}
    for topic, partition in partitions:
        error = cluster.topic_error(topic)
        link = cluster.leader(topic, partition) or next(iter(cluster.replicas(topic, partition)), None)
        if error is None and link is not None:
            found.pop((topic, partition), None)
            by_leader.setdefault(link, []).append((topic, partition))
        else:
            found[topic, partition] = error or cluster.no_leader(topic, partition)
    return [
        (link, theirs[first : first + PARTITIONS_A_REQUEST])
        for link, theirs in by_leader.items()
        for first in range(0, len(theirs), PARTITIONS_A_REQUEST)
    ]


def _may_pass(
    cluster: Cluster, tp: TopicPartition, result: PartitionResult | ApiError, waits_for_offline: bool
) -> bool:
    """Whether to retry. The reason is logged once."""
    if not isinstance(result, ApiError):
        cluster.worked(*tp)
        return False
    if not result.retriable or isinstance(result, UnknownTopicOrPartition):
        return False
    # The metadata say so; a storage error alone does not: the partition may be moving, or the disk full.
    is_offline = cluster.leader(*tp) is None and isinstance(cluster.no_leader(*tp), StorageError)
    if is_offline and not waits_for_offline:
        return False
    cluster.failed(*tp, result)
    return True
