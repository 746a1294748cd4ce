"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders: what operators want of replicas.

The orders are those of `warmlog cluster reassign` and `elect`. A broker that is alone has nothing to move or to elect.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import failed_partition, handle_all
from warmlog_broker.network.request import RequestContext, Response
from warmlog_broker.replica.cluster_view import NO_LEADER
from warmlog_broker.topics.topics import check_replicas
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ElectionNotNeeded, ErrorCode, NoReassignmentInProgress

if TYPE_CHECKING:
    from warmlog_broker.cluster.records import PartitionKey

LONGEST_WAIT_S = 30.0
"""A connection waits so long for an election."""


async def alter_partition_reassignments(
    services: Services, _context: RequestContext, request: m.AlterPartitionReassignmentsRequest
) -> Response:
    cluster = services.between_brokers

    async def alter(wanted: m.ReplicasToAlter) -> m.PartitionResult:
        topic = services.topics.get(wanted.topic)
        topic.check_number(wanted.partition)
        if cluster is not None:
            await cluster.reassign(topic.topic_id, wanted, keeps_count=request.keeps_count)
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
    if (cluster := services.between_brokers) is None:
        return m.ListPartitionReassignmentsResponse(found)
    for key, seen in cluster.view.records.items():
        topic, record = services.topics.find_by_id(key.topic_id), seen.record
        if topic is not None and (target := cluster.target(key)) is not None:
            adding = [node for node in target if node not in record.replicas or node in record.adding]
            removing = [node for node in record.replicas if node not in target]
            found.append(m.Reassignment(topic.name, key.number, [*target, *removing], adding, removing))
    if request.partitions is not None:
        wanted = {(each.topic, each.partition) for each in request.partitions}
        found = [each for each in found if (each.topic, each.partition) in wanted]
    return m.ListPartitionReassignmentsResponse(found)


async def elect_leaders(services: Services, _context: RequestContext, request: m.ElectLeadersRequest) -> Response:
    cluster = services.between_brokers
    wanted: dict[m.InspectedPartition, PartitionKey] = {}

    async def elect(each: m.InspectedPartition) -> m.PartitionResult:
        topic = services.topics.get(each.topic)
        topic.check_number(each.partition)
        if cluster is None:
            raise ElectionNotNeeded("there is one broker: it leads the partition while its disk works")
        wanted[each] = await cluster.elect(topic.topic_id, each.partition, is_unclean=request.is_unclean)
        return m.PartitionResult(each.topic, each.partition, ErrorCode.NONE, "")

    asked = request.partitions
    if asked is None:
        asked = list(_without_their_leader(services, is_unclean=request.is_unclean))
    results = await handle_all(services, asked, elect, failed_partition(m.PartitionResult))
    if cluster is not None:
        await cluster.carried_out(wanted.values(), min(request.timeout_ms / 1000, LONGEST_WAIT_S))
        text = "the election is wanted, and not done yet: it goes on, so look again"
        for index, each in enumerate(asked):
            if each in wanted and wanted[each] in cluster.view.orders:
                results[index] = m.PartitionResult(each.topic, each.partition, ErrorCode.REQUEST_TIMED_OUT, text)
    return m.ElectLeadersResponse(results)


def _without_their_leader(services: Services, *, is_unclean: bool) -> Iterator[m.InspectedPartition]:
    """Yield the partitions that have no leader; all that their first replica does not lead, unless it `is_unclean`."""
    for topic in services.topics:
        for number in range(topic.count):
            leader, _, replicas, _ = services.cluster.leadership(topic.topic_id, number, topic.local.get(number))
            if leader == NO_LEADER if is_unclean else [leader] != replicas[:1]:
                yield m.InspectedPartition(topic.name, number)
