"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: members of the classic protocol."""

from typing import Any

from warmlog_broker.coordinator.classic import messages as c
from warmlog_broker.coordinator.group.classic_groups import ClassicGroups
from warmlog_broker.gate.asker import Asker
from warmlog_broker.kafka.responses import Result, answered
from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import Ready, RequestContext, Response, then
from warmlog_protocol.errors import ApiError, MemberIdRequired
from warmlog_protocol.kafka.schema import API
from warmlog_protocol.messages import Operation, ResourceType

_Joined = API["JoinGroup"].response
_Synced = API["SyncGroup"].response
_Alive = API["Heartbeat"].response
ASKS_FOR_ID_FROM = 4
"""JoinGroup: from this version on a new member is told its id first (KIP-394)."""
SKIPS_FROM = 9
"""JoinGroup: from this version on a static leader that comes back knows that it is not to assign (KIP-814)."""
NULLABLE_FROM = 7
"""JoinGroup: from this version on there may be no protocol."""
MANY_LEAVE_FROM = 3
"""LeaveGroup: from this version on it names several members."""


def join_group(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Join a group. In version 0 a rebalance may last for the session timeout."""
    message = c.JoinGroupRequest(
        request.group_id,
        request.member_id,
        request.protocol_type,
        [(each.name, each.metadata) for each in request.protocols],
        request.session_timeout_ms,
        request.rebalance_timeout_ms if request.api_version else request.session_timeout_ms,
        request.group_instance_id or "",
        context.client_id,
        needs_member_id=request.api_version >= ASKS_FOR_ID_FROM,
        may_skip_assignment=request.api_version >= SKIPS_FROM,
    )

    def back(joined: Any) -> Ready:
        members = [
            _Joined.JoinGroupResponseMember(each.member_id, each.instance_id or None, each.metadata)
            for each in joined.members
        ]
        return _Joined(
            generation_id=joined.generation,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol,
            leader=joined.leader,
            skip_assignment=joined.skip_assignment,
            member_id=joined.member_id,
            members=members,
        )

    groups = _classic(kafka, context, "JoinGroup", request.group_id)
    return then(groups.join(message, host=context.host, principal=context.principal), back)


def join_group_failed(request: Any, error: ApiError) -> Any:
    """The member id is the one to join again with, if that is the error."""
    member_id = str(error) if isinstance(error, MemberIdRequired) else request.member_id
    protocol = None if request.api_version >= NULLABLE_FROM else ""
    return _Joined(error_code=error.code, protocol_name=protocol, member_id=member_id)


def sync_group(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Get the own assignment; the leader brings all of them."""
    message = c.SyncGroupRequest(
        request.group_id,
        request.member_id,
        request.generation_id,
        request.group_instance_id or "",
        [(each.member_id, each.assignment) for each in request.assignments],
        request.protocol_type or "",
        request.protocol_name or "",
    )

    def back(synced: Any) -> Ready:
        return _Synced(protocol_type=synced.protocol_type, protocol_name=synced.protocol, assignment=synced.assignment)

    return then(_classic(kafka, context, "SyncGroup", request.group_id).sync(message), back)


def heartbeat(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Say that a member is alive."""
    message = c.HeartbeatRequest(
        request.group_id, request.member_id, request.generation_id, request.group_instance_id or ""
    )
    return then(_classic(kafka, context, "Heartbeat", request.group_id).heartbeat(message), lambda _: _Alive())


def leave_group(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Remove members."""
    leaving = [c.LeavingMember(each.member_id, each.group_instance_id or "") for each in request.members]
    if request.api_version < MANY_LEAVE_FROM:
        leaving = [c.LeavingMember(request.member_id)]

    def back(left: Any) -> Ready:
        return answered("LeaveGroup", request, map(Result, left.error_codes))

    groups = _classic(kafka, context, "LeaveGroup", request.group_id)
    return then(groups.leave(c.LeaveGroupRequest(request.group_id, leaving)), back)


def _classic(kafka: Kafka, context: RequestContext, api: str, group: str) -> ClassicGroups:
    """Return the classic members of groups, if the principal may be one: as for GroupHeartbeat."""
    Asker(kafka.services, context, api).require(Operation.READ, ResourceType.GROUP, group)
    return kafka.services.coordinators.groups.classic
