"""Consumer groups: heartbeats, committed offsets, and what tools ask and change. See `coordinator/group`."""

import asyncio
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from warmlog_broker.coordinator.classic.consumer_protocol import CONSUMER, partitions_of, topics_of
from warmlog_broker.coordinator.classic.state import Member as ClassicMember
from warmlog_broker.coordinator.classic.state import Rebalance
from warmlog_broker.coordinator.group.coordinator import GroupCoordinator, has_news
from warmlog_broker.coordinator.group.decisions.state import Group, Member
from warmlog_broker.coordinator.group.decisions.target import chosen_assignor
from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import ITEMS_A_TURN, failed_name, handle_all
from warmlog_broker.network.request import Deferred, RequestContext, Response, then
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, ErrorCode


class PendingHeartbeat(Deferred):
    """A heartbeat that waits for something to tell. Each time that its group has changed, it is decided again."""

    __slots__ = ("_began_s", "_context", "_groups", "_request", "_response")

    def __init__(
        self,
        groups: GroupCoordinator,
        request: m.GroupHeartbeatRequest,
        context: RequestContext,
        began_s: float,
        response: m.GroupHeartbeatResponse,
    ) -> None:
        """`response` is sent if the wait that began at `began_s` ends without anything to tell.

        Of the request only what is small is kept: the group remembers what the member owns and subscribes to.
        """
        super().__init__(began_s + min(request.max_wait_ms, response.session_timeout_ms // 3) / 1000)
        self._groups = groups
        self._request = replace(request, topics=None, pattern=None, assignor=None, owned=None)
        self._context = context
        self._began_s = began_s
        self._response = response

    def wake(self) -> None:
        try:
            outcome = self._groups.heartbeat(
                self._request, host=self._context.host, principal=self._context.principal, is_waiting=True
            )
        except ApiError as error:
            self._forget()
            self.fail(error)
            return
        if not isinstance(outcome, m.GroupHeartbeatResponse):
            told = partial(_told_or_waiting, self._groups, self._request, self._context, self._began_s)
            self._end(lambda: then(outcome, told))
        elif has_news(self._request, outcome) or (outcome.is_settled and not self._response.is_settled):
            self._end(lambda: outcome)

    def expire(self) -> None:
        self._end(lambda: self._groups.with_progress(self._request, self._response))

    def drop(self) -> bool:
        self._forget()
        self._groups.went_away(self._request.group, self._request.member_id)
        return True

    def _end(self, work: Callable[[], Response]) -> None:
        self._forget()
        self.run(work)

    def _forget(self) -> None:
        self._groups.waits.remove(self._request.group, self._request.member_id, self)


def group_heartbeat(services: Services, context: RequestContext, request: m.GroupHeartbeatRequest) -> Response:
    """Join a group, keep a membership alive, confirm what is owned, or leave.

    The response waits for `max_wait_ms` if there is nothing to tell, at most a third of the session timeout.
    """
    if not request.client_id and context.client_id:
        request = replace(request, client_id=context.client_id)
    groups, now_s = services.coordinators.groups, services.loop.time()
    groups.waits.end_of(request.group, request.member_id)
    outcome = groups.heartbeat(request, host=context.host, principal=context.principal)
    return then(outcome, partial(_told_or_waiting, groups, request, context, now_s))


def _told_or_waiting(
    groups: GroupCoordinator,
    request: m.GroupHeartbeatRequest,
    context: RequestContext,
    began_s: float,
    response: m.GroupHeartbeatResponse,
) -> Response:
    """Let a heartbeat without news wait. Its decision may have waited already, for other changes of the group."""
    if request.max_wait_ms <= 0 or request.member_epoch <= 0 or has_news(request, response):
        return response
    waiting = PendingHeartbeat(groups, request, context, began_s, response)
    groups.waits.add(request.group, request.member_id, waiting)
    return waiting


def offset_commit(services: Services, context: RequestContext, request: m.OffsetCommitRequest) -> Response:
    """Commit offsets; the response is sent once they are durable."""
    return services.coordinators.groups.commit(request, context.principal, context.life)


def offset_fetch(services: Services, context: RequestContext, request: m.OffsetFetchRequest) -> Response:
    """Return committed offsets: in a cluster once it is sure that no other broker has later ones."""
    groups = services.coordinators.groups
    if services.between_brokers is None:
        return groups.fetch_offsets(request, context.life)

    async def confirmed() -> m.OffsetFetchResponse:
        await groups.shards.confirm(request.group)
        return groups.fetch_offsets(request, context.life)

    return confirmed()


def delete_offsets(services: Services, _context: RequestContext, request: m.DeleteOffsetsRequest) -> Response:
    """Remove committed offsets; the response is sent once that is durable."""
    return services.coordinators.groups.delete_offsets(request)


async def list_groups(services: Services, _context: RequestContext, _request: m.ListGroupsRequest) -> Response:
    found = [
        m.GroupListing(group.name, group.state, group.member_count, group.protocol_type, group.is_classic)
        async for group in services.coordinators.groups.groups()
    ]
    return m.ListGroupsResponse(sorted(found, key=lambda group: group.name))


async def describe_groups(services: Services, _context: RequestContext, request: m.DescribeGroupsRequest) -> Response:
    """One result for each group, in the order of the request."""

    async def describe(name: str) -> m.DescribedGroup:
        return described(services.coordinators.groups.group(name))

    return m.DescribeGroupsResponse(await handle_all(services, request.groups, describe, failed_name(m.DescribedGroup)))


def described(group: Group) -> m.DescribedGroup:
    """Return a group with its members, by member id."""
    if group.rebalance is not None and group.is_classic:
        return _described_classic(group.name, group.rebalance)
    return m.DescribedGroup(
        int(ErrorCode.NONE),
        "",
        group.name,
        group.state,
        group.epoch,
        group.target_epoch,
        group.assignor or chosen_assignor(group),
        [_described_member(group, member) for _, member in sorted(group.members.items())],
        group.protocol_type,
    )


def _described_classic(name: str, group: Rebalance) -> m.DescribedGroup:
    members = [_described_classic_member(group, member) for _, member in sorted(group.members.items())]
    generation, state = group.generation, group.phase.value
    return m.DescribedGroup(
        int(ErrorCode.NONE),
        "",
        name,
        state,
        generation,
        generation,
        group.protocol,
        members,
        group.protocol_type,
        is_classic=True,
    )


def _described_classic_member(group: Rebalance, member: ClassicMember) -> m.GroupMember:
    is_consumer = group.protocol_type == CONSUMER
    subscription = member.metadata(group.protocol)
    partitions = [
        m.TopicPartitions(b"", topic, numbers)
        for topic, numbers in (partitions_of(member.assignment) if is_consumer else ())
    ]
    return m.GroupMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.host,
        group.generation,
        topics_of(subscription) if is_consumer else [],
        "",
        partitions,
        [],
        partitions,
        member.rebalance_timeout_ms,
        member.session_timeout_ms,
        member.deadline_ms - member.session_timeout_ms,
        subscription,
        member.assignment,
    )


def _described_member(group: Group, member: Member) -> m.GroupMember:
    settings = member.settings
    return m.GroupMember(
        member.member_id,
        settings.instance_id,
        settings.client_id,
        settings.host,
        member.epoch,
        list(settings.topics),
        settings.pattern,
        group.topic_partitions(member.assigned),
        group.topic_partitions(member.revoking),
        group.topic_partitions(member.target),
        settings.rebalance_timeout_ms,
        settings.session_timeout_ms,
        member.heard_ms,
    )


async def delete_groups(services: Services, _context: RequestContext, request: m.DeleteGroupsRequest) -> Response:
    """One result for each group, in the order of the request. Up to ITEMS_A_TURN deletions share a flush."""

    async def delete(name: str) -> m.NamedResult:
        await services.coordinators.groups.delete_group(name)
        return m.NamedResult(ErrorCode.NONE, "", name)

    failed = failed_name(m.NamedResult)
    results: list[m.NamedResult] = []
    for first in range(0, len(request.groups), ITEMS_A_TURN):
        names = request.groups[first : first + ITEMS_A_TURN]
        done = await asyncio.gather(*(handle_all(services, [name], delete, failed) for name in names))
        results += [result for (result,) in done]
    return m.DeleteGroupsResponse(results)
