"""What happens in a group of the classic protocol: `event(rebalance, …, now_ms)` returns what the group is then.

==========  ===========================  ======================  ========================  ===========================
phase       a member joins               it syncs                it is gone                time is over
==========  ===========================  ======================  ========================  ===========================
EMPTY       → PREPARING, which lasts     UNKNOWN_MEMBER_ID       -                         -
            for `initial_delay_ms` then
PREPARING   it waits                     REBALANCE_IN_PROGRESS   the last one that was     who has not joined goes,
                                                                 waited for: → COMPLETING  → COMPLETING, or EMPTY
COMPLETING  the response again; with     it waits, until the     → PREPARING               who has not synced goes,
            other metadata → PREPARING   leader syncs: → STABLE                            → PREPARING
STABLE      the response again; leader,  its assignment          → PREPARING               the same
            other metadata → PREPARING
==========  ===========================  ======================  ========================  ===========================

A heartbeat in PREPARING is REBALANCE_IN_PROGRESS, and a sign of life like any other. A member whose connection ends
while it waits to join is gone. A static member that has not
joined stays, with its session, so that its next process finds its place; that takes it over at once, without a
rebalance if nothing about it has changed, and the id of the process before is fenced from then on.

`phases` has what a step does. If what it saves cannot be written, it does not happen.
"""

from typing import Any

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.coordinator.classic import messages as m
from warmlog_broker.coordinator.classic import phases
from warmlog_broker.coordinator.classic.phases import Step
from warmlog_broker.coordinator.classic.state import Member, Phase, Rebalance, common_protocols
from warmlog_protocol import errors

MAX_REBALANCE_TIMEOUT_MS = 60 * 60 * 1000
"""The longest that a rebalance waits for a member, whatever it asks for (some clients: weeks). The requests of other
members wait as long, also those of clients that are gone."""


# --- requests ---------------------------------------------------------------------------------------------------------


def join(
    before: Rebalance,
    request: m.JoinGroupRequest,
    waiter: Any,
    *,
    new_id: str,
    host: str = "",
    now_ms: int,
    config: BrokerConfig,
) -> Step:
    """Let a member join, or join again. `new_id` is for a member that has none yet.

    The request waits, or is answered: MEMBER_ID_REQUIRED. Raises INCONSISTENT_GROUP_PROTOCOL, INVALID_SESSION_TIMEOUT,
    GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
    """
    shortest_ms, longest_ms = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not shortest_ms <= request.session_timeout_ms <= longest_ms:
        raise errors.InvalidSessionTimeout(
            f"a session timeout of {request.session_timeout_ms} ms: expected {shortest_ms} to {longest_ms}"
        )
    old = _joining_member(before, request)
    _check_protocols(before, request, old)
    step = Step(before.copied(), now_ms)
    is_new = step.after.given_ids.pop(request.member_id, None) is None and old is None
    most = config.group_max_size
    if is_new and len(before.members) + len(before.given_ids) >= most:
        raise errors.GroupMaxSizeReached(f"group {request.group!r} has {most} members, as many as may be")
    if is_new and request.needs_member_id and not request.instance_id:
        step.after.given_ids[new_id] = now_ms + request.session_timeout_ms
        step.end(waiter, errors.MemberIdRequired(new_id))
        return step
    member = Member(
        request.member_id or new_id,
        request.instance_id,
        request.client_id,
        host,
        request.session_timeout_ms,
        min(max(request.rebalance_timeout_ms, 1), MAX_REBALANCE_TIMEOUT_MS),
        tuple(request.protocols),
        deadline_ms=now_ms + request.session_timeout_ms,
        joining=waiter,
    )
    if old is None:
        phases.join_first(step, member, request.protocol_type, config.group_initial_rebalance_delay_ms)
    elif old.member_id == member.member_id:
        phases.join_again(step, old, member)
    else:
        phases.take_place(step, old, member, may_skip=request.may_skip_assignment)
    return step


def sync(before: Rebalance, request: m.SyncGroupRequest, waiter: Any, *, now_ms: int) -> Step:
    """Give a member its assignment, or let it wait for the leader's assignments.

    Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL.
    """
    member = valid_member(before, request.group, request.member_id, request.generation, request.instance_id)
    for given, own in ((request.protocol_type, before.protocol_type), (request.protocol, before.protocol)):
        if given and given != own:
            raise errors.InconsistentGroupProtocol(f"group {request.group!r} has {own!r}, the member {given!r}")
    step = _heard(before, member, now_ms)
    member = step.after.members[member.member_id]
    if before.phase is Phase.STABLE:
        step.put(member, owes_sync=False)
        step.end(waiter, phases.synced(step.after, member))
        phases.watch_syncs(step)
    elif before.phase is Phase.COMPLETING:
        step.end(member.syncing, phases.in_rebalance(request.group))
        step.put(member, syncing=waiter, owes_sync=False)
        if before.leader == member.member_id:
            phases.assign(step, dict(request.assignments))
    else:
        step.end(waiter, phases.in_rebalance(request.group))
    return step


def heartbeat(before: Rebalance, request: m.HeartbeatRequest, waiter: Any, *, now_ms: int) -> Step:
    """Note that a member is alive. UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION."""
    member = valid_member(before, request.group, request.member_id, request.generation, request.instance_id)
    step = _heard(before, member, now_ms)
    step.end(waiter, phases.in_rebalance(request.group) if before.phase is Phase.PREPARING else m.HeartbeatResponse())
    step.is_quiet = True
    return step


def leave(before: Rebalance, request: m.LeaveGroupRequest, waiter: Any, *, now_ms: int) -> Step:
    """Remove members. Each has an error code of its own."""
    step = Step(before.copied(), now_ms)
    codes, gone = [], []
    for leaving in request.members:
        try:
            member = _leaving_member(step.after, request.group, leaving)
        except errors.ApiError as error:
            codes.append(int(error.code))
            continue
        codes.append(int(errors.ErrorCode.NONE))
        if member is not None:
            phases.remove(step, member, "it has left")
            gone.append(member)
    step.end(waiter, m.LeaveGroupResponse(codes))
    phases.look_again(step, "leave" if gone else "")
    return step


def expire(before: Rebalance, *, now_ms: int) -> Step:
    """Do what is due: sessions that end, ids that were never used, and waits that are over."""
    step = Step(before.copied(), now_ms)
    after = step.after
    after.given_ids = {member_id: due_ms for member_id, due_ms in after.given_ids.items() if due_ms > now_ms}
    silent = [each for each in before.members.values() if not each.is_waiting and each.deadline_ms <= now_ms]
    for member in silent:
        phases.remove(step, member, "its session has expired")
    reason = "session" if silent else ""
    if after.phase in (Phase.COMPLETING, Phase.STABLE) and after.due_ms <= now_ms:
        for member in [each for each in after.members.values() if each.owes_sync]:
            phases.remove(step, member, "it has not synced in time")
            reason = "sync"
    is_over = after.due_ms <= now_ms
    if after.settles_ms is not None and after.settles_ms <= now_ms:
        after.settles_ms, is_over = None, True
    if after.phase is Phase.PREPARING and is_over:
        phases.end_preparing(step)
    else:
        phases.look_again(step, reason)
    return step


def let_go(before: Rebalance, waiter: Any, *, now_ms: int) -> Step:
    """Wait no longer with a request whose connection has ended: nothing could tell its member the response.

    A member that was joining leaves, so that the others go on. A static one keeps its place for its session, as does a
    member that was to get its assignment: they may come back with their id.
    """
    step = Step(before.copied(), now_ms)
    for member in before.members.values():
        is_joining = member.joining is waiter
        if not is_joining and member.syncing is not waiter:
            continue
        joining, syncing = (None, member.syncing) if is_joining else (member.joining, None)
        step.put(member, joining=joining, syncing=syncing, deadline_ms=now_ms + member.session_timeout_ms)
        if is_joining and not member.instance_id:
            phases.remove(step, step.after.members[member.member_id], "its connection has ended while it was joining")
            phases.look_again(step, "disconnect")
        break
    return step


def give_grace(before: Rebalance, *, now_ms: int, grace_ms: int) -> Step:
    """Let nothing be due for a time: the broker stood still, and what members have sent is not read yet."""
    step = Step(before.copied(), now_ms)
    after, first_ms = step.after, now_ms + grace_ms
    for member in before.members.values():
        step.put(member, deadline_ms=max(member.deadline_ms, first_ms))
    after.given_ids = {member_id: max(due_ms, first_ms) for member_id, due_ms in before.given_ids.items()}
    after.due_ms = max(before.due_ms, first_ms)
    if before.settles_ms is not None:
        after.settles_ms = max(before.settles_ms, first_ms)
    return step


def valid_member(rebalance: Rebalance, group: str, member_id: str, generation: int, instance_id: str = "") -> Member:
    """Return the member. UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION."""
    member = _member(rebalance, group, member_id, instance_id)
    if generation != rebalance.generation:
        raise errors.IllegalGeneration(
            f"group {group!r} is in generation {rebalance.generation}, the request in {generation}: join again"
        )
    return member


def check_committer(rebalance: Rebalance, group: str, member_id: str, generation: int, instance_id: str) -> None:
    """Raise an error unless a member may commit. REBALANCE_IN_PROGRESS if it has no assignment of this generation.

    While members join again it may: it commits what it gives up.
    """
    member = valid_member(rebalance, group, member_id, generation, instance_id)
    if member.owes_sync or rebalance.saved is None or rebalance.saved.generation != generation:
        raise phases.in_rebalance(group)


def heard(before: Rebalance, member_id: str, *, now_ms: int) -> Rebalance:
    """Note that a member is alive, if it is one."""
    member = before.members.get(member_id)
    return before if member is None else _heard(before, member, now_ms).after


# --- joining ----------------------------------------------------------------------------------------------------------


def _joining_member(before: Rebalance, request: m.JoinGroupRequest) -> Member | None:
    """Return the member that joins again, or the one whose place is taken; None for a new one."""
    if request.member_id and request.member_id not in before.given_ids:
        return _member(before, request.group, request.member_id, request.instance_id)
    return before.holder(request.instance_id) if request.instance_id else None


def _check_protocols(before: Rebalance, request: m.JoinGroupRequest, old: Member | None) -> None:
    names = {name for name, _ in request.protocols}
    if not names or not request.protocol_type:
        raise errors.InconsistentGroupProtocol("a member must have a protocol type and at least one protocol")
    others = (member for member in before.members.values() if member is not old)
    other = next(others, None)
    if other is None:
        return
    if request.protocol_type != before.protocol_type:
        raise errors.InconsistentGroupProtocol(
            f"group {request.group!r} has members of type {before.protocol_type!r}, not {request.protocol_type!r}: "
            f"stop them first, or use another group"
        )
    if names >= {name for name, _ in other.protocols}:
        return  # what all know, that one knows
    common = common_protocols([other, *others])
    if not common & names:
        raise errors.InconsistentGroupProtocol(
            f"all members of group {request.group!r} know {', '.join(sorted(common))}, none of which is among "
            f"{', '.join(sorted(names))}"
        )


# --- members ----------------------------------------------------------------------------------------------------------


def _member(rebalance: Rebalance, group: str, member_id: str, instance_id: str) -> Member:
    """Return the member; FENCED_INSTANCE_ID if another one has its instance id, UNKNOWN_MEMBER_ID if there is none."""
    holder = rebalance.holder(instance_id) if instance_id else None
    if holder is not None and holder.member_id != member_id:
        raise phases.fenced(instance_id)
    member = rebalance.members.get(member_id)
    if member is None or member.instance_id != (instance_id or member.instance_id):
        raise errors.UnknownMemberId(
            f"group {group!r} has no member {member_id!r}: it has left, or its session is over"
        )
    return member


def _leaving_member(rebalance: Rebalance, group: str, leaving: m.LeavingMember) -> Member | None:
    """Return the member; None for an id that was given out, and is taken back."""
    if rebalance.given_ids.pop(leaving.member_id, None) is not None:
        return None
    holder = rebalance.holder(leaving.instance_id) if leaving.instance_id else None
    if holder is not None and not leaving.member_id:
        return holder
    return _member(rebalance, group, leaving.member_id, leaving.instance_id)


def _heard(before: Rebalance, member: Member, now_ms: int) -> Step:
    step = Step(before.copied(), now_ms)
    step.put(member, deadline_ms=now_ms + member.session_timeout_ms)
    return step
