"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders: what operators want of replicas.

The orders are those of `warmlog cluster reassign` and `elect`. A broker that is alone has nothing to move or to elect.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import failed_partition, handle_all
from warmlog_broker.network.request import RequestContext, Response
from warmlog_broker.replica.cluster_view import NO_LEADER
from warmlog_broker.topics.topics import check_replicas
from warmlog_protocol import messages as m
from warmlog_protocol.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    ErrorCode,
    NoReassignmentInProgress,
    PreferredLeaderNotAvailable,
    RequestTimedOut,
)

if TYPE_CHECKING:
    from warmlog_broker.cluster.data_path.requests import Election

LONGEST_WAIT_S = 10.0
"""A request waits so long, or half of its timeout, as clients take that for the time until the response."""


def _end_s(services: Services, timeout_ms: int) -> float:
    """Return when a request waits no more, in seconds of the loop."""
    return services.loop.time() + min(timeout_ms / 2000, LONGEST_WAIT_S)


@asynccontextmanager
async def _until(services: Services, ends_at_s: float) -> AsyncIterator[None]:
    """RequestTimedOut if it is too late to begin the block, or if that does not end in time."""
    if services.loop.time() >= ends_at_s:
        raise RequestTimedOut("this was not begun, as the items before took too long: try again")
    try:
        async with asyncio.timeout_at(ends_at_s):
            yield
    except TimeoutError:
        raise RequestTimedOut("whether this was changed is not known, as etcd does not say in time") from None


async def alter_partition_reassignments(
    services: Services, _context: RequestContext, request: m.AlterPartitionReassignmentsRequest
) -> Response:
    """Order that partitions are moved, or that a move is taken back. After a timeout no more items are tried."""
    others, ends_at_s = services.between_brokers, _end_s(services, request.timeout_ms)

    async def alter(wanted: m.ReplicasToAlter) -> m.PartitionResult:
        topic = services.topics.get(wanted.topic)
        topic.check_number(wanted.partition)
        if others is not None:
            async with _until(services, ends_at_s):
                await others.reassign(topic.topic_id, wanted, keeps_count=request.keeps_count)
        elif wanted.replicas is None:
            raise NoReassignmentInProgress("there is one broker: nothing is moved")
        else:
            check_replicas([wanted.replicas], 1, [services.cluster.node_id])
        return m.PartitionResult(wanted.topic, wanted.partition, ErrorCode.NONE, "")

    failed = failed_partition(m.PartitionResult)
    return m.AlterPartitionReassignmentsResponse(await handle_all(services, request.partitions, alter, failed))


def list_partition_reassignments(
    services: Services, _context: RequestContext, request: m.ListPartitionReassignmentsRequest
) -> Response:
    """Tell also of what is ordered, and not begun by the leader."""
    found: list[m.Reassignment] = []
    if (others := services.between_brokers) is None:
        return m.ListPartitionReassignmentsResponse(found)
    for key, seen in others.view.records.items():
        topic, record = services.topics.find_by_id(key.topic_id), seen.record
        if topic is not None and (target := others.target(key)) is not None:
            adding = [node for node in target if node not in record.replicas or node in record.adding]
            removing = [node for node in record.replicas if node not in target]
            found.append(m.Reassignment(topic.name, key.number, [*target, *removing], adding, removing))
    if request.partitions is not None:
        wanted = {(each.topic, each.partition) for each in request.partitions}
        found = [each for each in found if (each.topic, each.partition) in wanted]
    return m.ListPartitionReassignmentsResponse(found)


async def elect_leaders(services: Services, _context: RequestContext, request: m.ElectLeadersRequest) -> Response:
    """Order elections, and wait until they are done. Those that are not in time are withdrawn."""
    others, ends_at_s = services.between_brokers, _end_s(services, request.timeout_ms)
    wanted: dict[m.InspectedPartition, Election] = {}

    async def elect(each: m.InspectedPartition) -> m.PartitionResult:
        topic = services.topics.get(each.topic)
        topic.check_number(each.partition)
        if others is None:
            here = topic.local.get(each.partition)
            if services.cluster.leadership(topic.topic_id, each.partition, here).leader_id != NO_LEADER:
                raise ElectionNotNeeded("there is one broker, and it leads the partition")
            error = EligibleLeadersNotAvailable if request.is_unclean else PreferredLeaderNotAvailable
            raise error("there is one broker, and its disk has failed")
        async with _until(services, ends_at_s):
            wanted[each] = await others.elect(topic.topic_id, each.partition, is_unclean=request.is_unclean)
        return m.PartitionResult(each.topic, each.partition, ErrorCode.NONE, "")

    asked = request.partitions
    if asked is None:
        asked = list(_without_their_leader(services, is_unclean=request.is_unclean))
    results = await handle_all(services, asked, elect, failed_partition(m.PartitionResult))
    if others is not None:
        late = await others.not_done(list(wanted.values()), ends_at_s)
        text = "the election was not done in time, and is taken back: try again"
        for index, each in enumerate(asked):
            if wanted.get(each) in late:
                results[index] = m.PartitionResult(each.topic, each.partition, ErrorCode.REQUEST_TIMED_OUT, text)
    return m.ElectLeadersResponse(results)


def _without_their_leader(services: Services, *, is_unclean: bool) -> Iterator[m.InspectedPartition]:
    """Yield the partitions that have no leader; all that their first replica does not lead, unless it `is_unclean`."""
    for topic in services.topics:
        for number in range(topic.count):
            leader, _, replicas, _ = services.cluster.leadership(topic.topic_id, number, topic.local.get(number))
            if leader == NO_LEADER if is_unclean else [leader] != replicas[:1]:
                yield m.InspectedPartition(topic.name, number)
