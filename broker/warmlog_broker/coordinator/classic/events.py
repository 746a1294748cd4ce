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

A heartbeat in PREPARING is REBALANCE_IN_PROGRESS, and a sign of life like any other. A static member that has not
joined stays, with its session, so that its next process finds its place; that takes it over at once, without a
rebalance if nothing about it has changed, and the id of the process before is fenced from then on.

A step is all or nothing: if what it saves cannot be written, the caller forgets it, and the requests that it would have
ended go on waiting.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from warmlog_broker.coordinator.classic import messages as m
from warmlog_broker.coordinator.classic.state import (
    NEVER_MS,
    Member,
    Phase,
    Rebalance,
    chosen_protocol,
    common_protocols,
)
from warmlog_protocol import errors
from warmlog_protocol.messages import Message


class Bounds(NamedTuple):
    """What members may ask for, and how many there may be."""

    min_session_timeout_ms: int
    max_session_timeout_ms: int
    max_members: int
    initial_delay_ms: int


class Answer(NamedTuple):
    """The response to a request, which may have waited."""

    waiter: Any
    response: Message | errors.ApiError


class Step(Struct):
    """What an event results in."""

    after: Rebalance
    now_ms: int
    answers: list[Answer] = []
    reason: str = ""
    """Why a rebalance begins, as metrics say it; empty if none does."""
    removed: list[tuple[Member, str]] = []
    """Members that are gone, and why."""
    is_quiet: bool = False
    """Nothing has changed but how long members may be silent."""

    def end(self, waiter: Any, response: Message | errors.ApiError) -> None:
        """Respond to a request, if there is one."""
        if waiter is not None:
            self.answers.append(Answer(waiter, response))

    def put(self, member: Member, **changes: Any) -> None:
        """Set a member."""
        self.after.members[member.member_id] = replace(member, **changes)


# --- requests ---------------------------------------------------------------------------------------------------------


def join(
    before: Rebalance,
    request: m.JoinGroupRequest,
    waiter: Any,
    *,
    new_id: str,
    host: str = "",
    now_ms: int,
    bounds: Bounds,
) -> Step:
    """Let a member join, or join again. `new_id` is for a member that has none yet.

    The request waits, or is answered: MEMBER_ID_REQUIRED. Raises INCONSISTENT_GROUP_PROTOCOL, INVALID_SESSION_TIMEOUT,
    GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
    """
    shortest_ms, longest_ms = bounds.min_session_timeout_ms, bounds.max_session_timeout_ms
    if not shortest_ms <= request.session_timeout_ms <= longest_ms:
        raise errors.InvalidSessionTimeout(
            f"a session timeout of {request.session_timeout_ms} ms: expected {shortest_ms} to {longest_ms}"
        )
    old = _joining_member(before, request)
    _check_protocols(before, request, old)
    step = Step(before.copied(), now_ms)
    is_new = step.after.given_ids.pop(request.member_id, None) is None and old is None
    if is_new and len(before.members) + len(before.given_ids) >= bounds.max_members:
        raise errors.GroupMaxSizeReached(f"group {request.group!r} has {bounds.max_members} members, as many as may be")
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
        max(request.rebalance_timeout_ms, 1),
        tuple(request.protocols),
        deadline_ms=now_ms + request.session_timeout_ms,
        joining=waiter,
    )
    if old is None:
        _join_first(step, member, request.protocol_type, bounds)
    elif old.member_id == member.member_id:
        _join_again(step, old, member)
    else:
        _replace(step, old, member, may_skip=request.may_skip_assignment)
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
        step.end(waiter, _synced(step.after, member))
        _watch_syncs(step)
    elif before.phase is Phase.COMPLETING:
        step.end(member.syncing, _in_rebalance(request.group))
        step.put(member, syncing=waiter, owes_sync=False)
        if before.leader == member.member_id:
            _assign(step, dict(request.assignments))
    else:
        step.end(waiter, _in_rebalance(request.group))
    return step


def heartbeat(before: Rebalance, request: m.HeartbeatRequest, waiter: Any, *, now_ms: int) -> Step:
    """Note that a member is alive. UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION."""
    member = valid_member(before, request.group, request.member_id, request.generation, request.instance_id)
    step = _heard(before, member, now_ms)
    step.end(waiter, _in_rebalance(request.group) if before.phase is Phase.PREPARING else m.HeartbeatResponse())
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
            _remove(step, member, "it has left")
            gone.append(member)
    step.end(waiter, m.LeaveGroupResponse(codes))
    _look_again(step, "leave" if gone else "")
    return step


def expire(before: Rebalance, *, now_ms: int) -> Step:
    """Do what is due: sessions that end, ids that were never used, and waits that are over."""
    step = Step(before.copied(), now_ms)
    after = step.after
    after.given_ids = {member_id: due_ms for member_id, due_ms in after.given_ids.items() if due_ms > now_ms}
    silent = [each for each in before.members.values() if not each.is_waiting and each.deadline_ms <= now_ms]
    for member in silent:
        _remove(step, member, "its session has expired")
    reason = "session" if silent else ""
    if after.phase in (Phase.COMPLETING, Phase.STABLE) and after.due_ms <= now_ms:
        for member in [each for each in after.members.values() if each.owes_sync]:
            _remove(step, member, "it has not synced in time")
            reason = "sync"
    is_over = after.due_ms <= now_ms
    if after.settles_ms is not None and after.settles_ms <= now_ms:
        after.settles_ms, is_over = None, True
    if after.phase is Phase.PREPARING and is_over:
        _end_preparing(step)
    else:
        _look_again(step, reason)
    return step


def give_grace(before: Rebalance, *, now_ms: int, grace_ms: int) -> Step:
    """Let nothing be due for a time: the broker stood still, and what members have sent is not read yet."""
    step = Step(before.copied(), now_ms)
    for member in before.members.values():
        step.put(member, deadline_ms=max(member.deadline_ms, now_ms + grace_ms))
    step.after.due_ms = max(step.after.due_ms, now_ms + grace_ms)
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
        raise _in_rebalance(group)


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


def _join_first(step: Step, member: Member, protocol_type: str, bounds: Bounds) -> None:
    after = step.after
    step.put(member)
    if after.phase is Phase.EMPTY:
        after.protocol_type = protocol_type
        after.phase = Phase.PREPARING
        after.due_ms = step.now_ms + member.rebalance_timeout_ms
        after.settles_ms = min(after.due_ms, step.now_ms + bounds.initial_delay_ms)
        step.reason = "join"
    elif after.settles_ms is not None:
        after.settles_ms = min(after.due_ms, step.now_ms + bounds.initial_delay_ms)
    else:
        _prepare(step, "join")


def _join_again(step: Step, old: Member, member: Member) -> None:
    after = step.after
    is_same = old.protocols == member.protocols
    step.end(old.joining, errors.RebalanceInProgress("another request of the member to join has come"))
    step.put(member, assignment=old.assignment, syncing=old.syncing, owes_sync=old.owes_sync)
    if after.phase is Phase.PREPARING:
        _look_again(step)
    elif is_same and (after.phase is Phase.COMPLETING or after.leader != member.member_id):
        _respond_joined(step, member.member_id)
    else:
        _prepare(step, "leader" if is_same else "metadata")


def _replace(step: Step, old: Member, member: Member, *, may_skip: bool) -> None:
    """Give the place of a static member to its next process."""
    after = step.after
    fenced = _fenced(old.instance_id)
    step.end(old.joining, fenced)
    step.end(old.syncing, fenced)
    member = replace(member, assignment=old.assignment)
    after.members = {each.member_id: each for each in (member if one is old else one for one in after.members.values())}
    was_leader = after.leader == old.member_id
    if was_leader:
        after.leader = member.member_id
    saved = after.saved
    if saved is not None and any(each.member_id == old.member_id for each in saved.members):
        members = tuple(
            each._replace(member_id=member.member_id) if each.member_id == old.member_id else each
            for each in saved.members
        )
        leader = member.member_id if saved.leader == old.member_id else saved.leader
        after.saved = replace(saved, leader=leader, members=members)
    if after.phase is Phase.PREPARING:
        _look_again(step)
    elif after.phase is Phase.STABLE and old.protocols == member.protocols:
        after.saved = after.to_save()
        _watch_syncs(step)
        skips = was_leader and may_skip
        _respond_joined(step, member.member_id, leader=None if skips or not was_leader else old.member_id, skips=skips)
    else:
        _prepare(step, "static")


def _respond_joined(step: Step, member_id: str, *, leader: str | None = None, skips: bool = False) -> None:
    """Respond to the JoinGroup of a member. `leader`: who it is told to be that, if that is not so: it must not
    assign."""
    after = step.after
    member = after.members[member_id]
    told = after.leader if leader is None else leader
    listed = after.members.values() if told == member_id else ()
    response = m.JoinGroupResponse(
        after.generation,
        after.protocol_type,
        after.protocol,
        told,
        member_id,
        [m.JoinedMember(each.member_id, each.instance_id, each.metadata(after.protocol)) for each in listed],
        skips,
    )
    step.end(member.joining, response)
    step.put(member, joining=None, deadline_ms=step.now_ms + member.session_timeout_ms)


# --- phases -----------------------------------------------------------------------------------------------------------


def _prepare(step: Step, reason: str) -> None:
    """Begin a rebalance, unless one has begun: all members are to join again."""
    after = step.after
    if after.phase is not Phase.PREPARING:
        for member in list(after.members.values()):
            is_told = member.syncing is not None
            step.end(member.syncing, errors.RebalanceInProgress("a rebalance has begun"))
            deadline_ms = step.now_ms + member.session_timeout_ms if is_told else member.deadline_ms
            step.put(member, syncing=None, owes_sync=False, deadline_ms=deadline_ms)
        after.phase = Phase.PREPARING
        after.due_ms = step.now_ms + _longest_ms(after.members.values())
        step.reason = step.reason or reason
    _look_again(step)


def _look_again(step: Step, reason: str = "") -> None:
    """Go on, if nobody is waited for any more. `reason`: members are gone, so that the others are to join again."""
    after = step.after
    if not after.members:
        if after.phase is not Phase.EMPTY:
            _become_empty(step)
    elif after.phase is not Phase.PREPARING:
        if reason:
            _prepare(step, reason)
    elif after.settles_ms is None and not after.given_ids and all(each.joining for each in after.members.values()):
        _end_preparing(step)


def _end_preparing(step: Step) -> None:
    """Begin the next generation with those who have joined, and the static members."""
    after = step.after
    for member in [each for each in after.members.values() if each.joining is None and not each.instance_id]:
        _remove(step, member, "it has not joined in time")
    if not after.members:
        _become_empty(step)
        return
    joined = [member for member in after.members.values() if member.joining is not None]
    after.due_ms = step.now_ms + _longest_ms(after.members.values())
    if not joined:
        return  # static members all, which their sessions remove
    after.settles_ms = None
    after.phase = Phase.COMPLETING
    after.generation += 1
    after.protocol = chosen_protocol(after.members)
    if after.leader not in {member.member_id for member in joined}:
        after.leader = joined[0].member_id
    after.members = {
        name: replace(member, assignment=b"", owes_sync=member.joining is not None)
        for name, member in after.members.items()
    }
    for member in joined:
        _respond_joined(step, member.member_id)


def _assign(step: Step, assignments: dict[str, bytes]) -> None:
    """Give the leader's assignments to those who wait for them, and save them for all."""
    after = step.after
    after.phase = Phase.STABLE
    for member in list(after.members.values()):
        assigned = replace(member, assignment=assignments.get(member.member_id, b""))
        step.end(member.syncing, _synced(after, assigned))
        deadline_ms = member.deadline_ms if member.syncing is None else step.now_ms + member.session_timeout_ms
        step.put(assigned, syncing=None, deadline_ms=deadline_ms)
    after.saved = after.to_save()
    _watch_syncs(step)


def _watch_syncs(step: Step) -> None:
    """Wait no longer for members to sync, if all have."""
    if not any(member.owes_sync for member in step.after.members.values()):
        step.after.due_ms = NEVER_MS


def _become_empty(step: Step) -> None:
    given_ids = step.after.given_ids
    step.after = Rebalance(step.after.generation + 1, given_ids=given_ids)


# --- members ----------------------------------------------------------------------------------------------------------


def _member(rebalance: Rebalance, group: str, member_id: str, instance_id: str) -> Member:
    """Return the member; FENCED_INSTANCE_ID if another one has its instance id, UNKNOWN_MEMBER_ID if there is none."""
    holder = rebalance.holder(instance_id) if instance_id else None
    if holder is not None and holder.member_id != member_id:
        raise _fenced(instance_id)
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


def _remove(step: Step, member: Member, why: str) -> None:
    """Remove a member, and end what waits for it."""
    error = errors.UnknownMemberId(f"member {member.member_id!r} is removed: {why}")
    step.end(member.joining, error)
    step.end(member.syncing, error)
    step.removed.append((member, why))
    del step.after.members[member.member_id]


def _synced(after: Rebalance, member: Member) -> m.SyncGroupResponse:
    return m.SyncGroupResponse(after.protocol_type, after.protocol, member.assignment)


def _longest_ms(members: Iterable[Member]) -> int:
    return max(member.rebalance_timeout_ms for member in members)


def _fenced(instance_id: str) -> errors.FencedInstanceId:
    return errors.FencedInstanceId(f"another process has joined with instance id {instance_id!r}")


def _in_rebalance(group: str) -> errors.RebalanceInProgress:
    return errors.RebalanceInProgress(f"group {group!r} is in a rebalance: join again")
