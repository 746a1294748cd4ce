"""Requests about partitions, each asked of its leader, and asked again while there is none."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol, TypeVar

from warmlog.cluster.broker_link import BrokerLink
from warmlog.cluster.cluster import Cluster
from warmlog.errors import ApiError, StorageError, UnknownTopicOrPartition, error_from_code

TopicPartition = tuple[str, int]


class PartitionResult(Protocol):
    """What a response says of one partition."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def error_code(self) -> int: ...
    @property
    def error_message(self) -> str: ...


Result = TypeVar("Result", bound=PartitionResult)


async def ask_leaders(
    cluster: Cluster,
    places: Collection[TopicPartition],
    ask: Callable[[list[TopicPartition], BrokerLink], Awaitable[list[Result]]],
    *,
    waits_for_offline: bool = False,
) -> dict[TopicPartition, Result | ApiError]:
    """For each of `places`, in their order, its result or why there is none. To ask twice must do no harm.

    `ask` sends one leader's partitions there and returns the results. Errors that may pass are asked about again until
    the request timeout; that a partition is offline only with `waits_for_offline`, as that mostly takes somebody to
    mend it. BrokerUnavailable when no broker answers.
    """
    deadline = asyncio.get_running_loop().time() + cluster.options.request_timeout_ms / 1000
    found: dict[TopicPartition, Result | ApiError] = {}
    missing = list(places)
    while missing:
        found.update(await _ask_once(cluster, missing, ask))
        missing = [place for place in missing if _may_pass(cluster, place, found[place], waits_for_offline)]
        if not missing or asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(cluster.options.retry_backoff_ms / 1000)
        await cluster.topics(sorted({topic for topic, _ in missing}))
    return {place: found[place] for place in places}


def _may_pass(
    cluster: Cluster, place: TopicPartition, result: PartitionResult | ApiError, waits_for_offline: bool
) -> bool:
    """Whether to ask again; whoever has to wait for that is told why, once."""
    if not isinstance(result, ApiError):
        cluster.worked(*place)
        return False
    if not result.retriable or isinstance(result, UnknownTopicOrPartition):
        return False
    if not waits_for_offline and _is_offline(cluster, place):
        return False
    cluster.failed(*place, result)
    return True


def _is_offline(cluster: Cluster, place: TopicPartition) -> bool:
    """Whether the metadata say so. An error of its disk alone does not: it may just be moving, or full."""
    return cluster.leader(*place) is None and isinstance(cluster.no_leader(*place), StorageError)


async def _ask_once(
    cluster: Cluster,
    places: list[TopicPartition],
    ask: Callable[[list[TopicPartition], BrokerLink], Awaitable[list[Result]]],
) -> dict[TopicPartition, Result | ApiError]:
    found: dict[TopicPartition, Result | ApiError] = {}
    by_leader: dict[BrokerLink, list[TopicPartition]] = {}
    refreshed: set[str] = set()
    for topic, partition in places:
        try:
            count = len((await cluster.topic(topic)).partitions)
            if 0 <= partition < count and cluster.leader(topic, partition) is None and topic not in refreshed:
                refreshed.add(topic)
                await cluster.topics([topic])  # it may have one by now
        except UnknownTopicOrPartition as error:
            found[topic, partition] = error
            continue
        link = cluster.leader(topic, partition) or cluster.replica(topic, partition)
        if not 0 <= partition < count:
            reason = f"topic {topic!r} has partitions 0 to {count - 1}, not {partition}"
            found[topic, partition] = UnknownTopicOrPartition(reason)
        elif link is None:
            found[topic, partition] = cluster.no_leader(topic, partition)
        else:
            by_leader.setdefault(link, []).append((topic, partition))
    for link, theirs in by_leader.items():
        for result in await ask(theirs, link):
            place = (result.topic, result.partition)
            found[place] = error_from_code(result.error_code, result.error_message) if result.error_code else result
    return found
