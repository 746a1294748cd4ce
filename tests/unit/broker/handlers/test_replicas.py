"""Requests of operators about replicas, while etcd does not answer."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from unit.broker.handlers.conftest import TOPIC_ID, MakeServices
from warmlog_broker.handlers.replicas import alter_partition_reassignments, elect_leaders
from warmlog_broker.network.request import RequestContext
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode


class SilentCluster:
    """Nothing that it is asked for ends."""

    asked = 0

    async def reassign(self, *_: object, **__: object) -> None:
        self.asked += 1
        await asyncio.Event().wait()

    elect = reassign

    async def not_done(self, elections: list[Any], _ends_at_s: float) -> list[Any]:
        return elections


@pytest.mark.parametrize("kind", ["reassign", "elect"])
async def test_after_the_first_item_that_is_not_done_in_time_no_other_is_tried(
    make_services: MakeServices, context: RequestContext, kind: str
) -> None:
    services, cluster = cast("Any", make_services()), SilentCluster()
    services.between_brokers = cluster
    services.topics = SimpleNamespace(
        get=lambda _: SimpleNamespace(topic_id=TOPIC_ID, check_number=lambda _: None),
    )
    numbers = range(100)
    response: Any
    if kind == "reassign":
        moved = [m.ReplicasToAlter("t", number, [1]) for number in numbers]
        request = m.AlterPartitionReassignmentsRequest(moved, timeout_ms=100)
        response = await cast("Any", alter_partition_reassignments(services, context, request))
    else:
        elected = [m.InspectedPartition("t", number) for number in numbers]
        response = await cast("Any", elect_leaders(services, context, m.ElectLeadersRequest(elected, timeout_ms=100)))
    assert [each.partition for each in response.partitions] == list(numbers)
    assert {each.error_code for each in response.partitions} == {ErrorCode.REQUEST_TIMED_OUT}
    assert cluster.asked == 1
