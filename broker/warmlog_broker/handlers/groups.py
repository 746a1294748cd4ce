"""Consumer groups: heartbeats, committed offsets, and what tools ask and change. See `coordinator/groups`."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from msgspec.structs import replace

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import ITEMS_A_TURN, Items
from warmlog_broker.network.request_context import RequestContext
from warmlog_broker.network.response import Response
from warmlog_protocol.errors import ApiError, ErrorCode
from warmlog_protocol.messages import (
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteOffsetsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupHeartbeatRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    Message,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

M = TypeVar("M", bound=Message)


def group_heartbeat(services: Services, context: RequestContext, request: GroupHeartbeatRequest) -> Response:
    """Join a group, keep a membership alive, confirm what is owned, or leave."""
    if not request.client_id and context.client_id:
        request = replace(request, client_id=context.client_id)
    return _response(services.groups.heartbeat(request, host=context.peer.rpartition(":")[0]))


def offset_commit(services: Services, _context: RequestContext, request: OffsetCommitRequest) -> Response:
    """Commit offsets; the response is sent once they are durable."""
    return _response(services.groups.commit(request))


def offset_fetch(services: Services, _context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Return committed offsets."""
    return services.groups.fetch_offsets(request)


def delete_offsets(services: Services, _context: RequestContext, request: DeleteOffsetsRequest) -> Response:
    """Remove committed offsets; the response is sent once that is durable."""
    return _response(services.groups.delete_offsets(request))


async def list_groups(services: Services, _context: RequestContext, _request: ListGroupsRequest) -> ListGroupsResponse:
    """Return all groups."""
    return ListGroupsResponse(await services.groups.list_groups())


async def describe_groups(
    services: Services, context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """One result for each group, in the order of the request."""

    async def describe(name: str) -> DescribedGroup:
        return services.groups.describe(name)

    def failed(name: str, error: ApiError) -> DescribedGroup:
        return DescribedGroup(error.code, str(error), name)

    return DescribeGroupsResponse(
        await Items(services, context, "DescribeGroups").handle_all(request.groups, describe, failed)
    )


async def delete_groups(
    services: Services, context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    """One result for each group, in the order of the request. Up to ITEMS_A_TURN deletions share a flush."""
    items = Items(services, context, "DeleteGroups")

    async def delete(name: str) -> DeletedGroup:
        outcome = services.groups.delete_group(name)
        if outcome is not None:
            await outcome
        return DeletedGroup(ErrorCode.NONE, "", name)

    def failed(name: str, error: ApiError) -> DeletedGroup:
        return DeletedGroup(error.code, str(error), name)

    results: list[DeletedGroup] = []
    for first in range(0, len(request.groups), ITEMS_A_TURN):
        names = request.groups[first : first + ITEMS_A_TURN]
        done = await asyncio.gather(*(items.handle_all([name], delete, failed) for name in names))
        results += [result for (result,) in done]
    return DeleteGroupsResponse(results)


def _response(outcome: M | Awaitable[M]) -> Response:
    return outcome if isinstance(outcome, Message) else _awaited(outcome)


async def _awaited(outcome: Awaitable[M]) -> M:
    return await outcome
