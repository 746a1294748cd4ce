"""What a step does to a group of the classic protocol: how its phases follow each other, and its members.

A step changes a copy. It is all or nothing: if what it saves cannot be written, the caller forgets it, and the requests
that it would have ended go on waiting.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from warmlog_broker.coordinator.classic import messages as m
from warmlog_broker.coordinator.classic.state import NEVER_MS, Member, Phase, Rebalance, chosen_protocol
from warmlog_protocol import errors
from warmlog_protocol.messages import Message


class Step(Struct):
    """What an event results in."""

    after: Rebalance
    now_ms: int
    answers: list[tuple[Any, Message | errors.ApiError]] = []
    """Requests, which may have waited, and their responses."""
    reason: str = ""
    """Why a rebalance begins, as metrics say it; empty if none does."""
    removed: list[tuple[Member, str]] = []
    """Members that are gone, and why."""
    is_quiet: bool = False
    """Nothing has changed but how long members may be silent."""

    def end(self, waiter: Any, response: Message | errors.ApiError) -> None:
        if waiter is not None:
            self.answers.append((waiter, response))

    def put(self, member: Member, **changes: Any) -> None:
        self.after.members[member.member_id] = replace(member, **changes)


def join_first(step: Step, member: Member, protocol_type: str, initial_delay_ms: int) -> None:
    """Add a member. The first one of a group waits for more."""
    after = step.after
    step.put(member)
    if after.phase is Phase.EMPTY:
        after.protocol_type = protocol_type
        after.phase = Phase.PREPARING
        after.due_ms = step.now_ms + member.rebalance_timeout_ms
        after.settles_ms = min(after.due_ms, step.now_ms + initial_delay_ms)
        step.reason = "join"
    elif after.settles_ms is not None:
        after.settles_ms = min(after.due_ms, step.now_ms + initial_delay_ms)
    else:
        prepare(step, "join")


def join_again(step: Step, old: Member, member: Member) -> None:
    """Let a member join that is one: what it says of itself replaces what it said before."""
    after = step.after
    is_same = old.protocols == member.protocols
    step.end(old.joining, errors.RebalanceInProgress("another request of the member to join has come"))
    step.put(member, assignment=old.assignment, syncing=old.syncing, owes_sync=old.owes_sync)
    if after.phase is Phase.PREPARING:
        look_again(step)
    elif is_same and (after.phase is Phase.COMPLETING or after.leader != member.member_id):
        _respond_joined(step, member.member_id)
    else:
        prepare(step, "leader" if is_same else "metadata")


def take_place(step: Step, old: Member, member: Member, *, may_skip: bool) -> None:
    """Give the place of a static member to its next process."""
    after = step.after
    error = fenced(old.instance_id)
    step.end(old.joining, error)
    step.end(old.syncing, error)
    member = replace(member, assignment=old.assignment)
    after.members = {each.member_id: each for each in (member if one is old else one for one in after.members.values())}
    was_leader = after.leader == old.member_id
    if was_leader:
        after.leader = member.member_id
    saved = after.saved
    if saved is not None and any(each.member_id == old.member_id for each in saved.members):
        members = tuple(
            replace(each, member_id=member.member_id) if each.member_id == old.member_id else each
            for each in saved.members
        )
        leader = member.member_id if saved.leader == old.member_id else saved.leader
        after.saved = replace(saved, leader=leader, members=members)
    if after.phase is Phase.PREPARING:
        look_again(step)
    elif after.phase is Phase.STABLE and old.protocols == member.protocols:
        after.saved = after.to_save()
        watch_syncs(step)
        skips = was_leader and may_skip
        _respond_joined(step, member.member_id, leader=None if skips or not was_leader else old.member_id, skips=skips)
    else:
        prepare(step, "static")


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


def prepare(step: Step, reason: str) -> None:
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
    look_again(step)


def look_again(step: Step, reason: str = "") -> None:
    """Go on, if no member is awaited any more. `reason`: members are gone, so that the others are to join again."""
    after = step.after
    if not after.members:
        if after.phase is not Phase.EMPTY:
            _become_empty(step)
    elif after.phase is not Phase.PREPARING:
        if reason:
            prepare(step, reason)
    elif after.settles_ms is None and not after.given_ids and all(each.joining for each in after.members.values()):
        end_preparing(step)


def end_preparing(step: Step) -> None:
    """Begin the next generation with those who have joined, and the static members."""
    after = step.after
    for member in [each for each in after.members.values() if each.joining is None and not each.instance_id]:
        remove(step, member, "it has not joined in time")
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


def assign(step: Step, assignments: dict[str, bytes]) -> None:
    """Give the leader's assignments to those who wait for them, and save them for all."""
    after = step.after
    after.phase = Phase.STABLE
    for member in list(after.members.values()):
        assigned = replace(member, assignment=assignments.get(member.member_id, b""))
        step.end(member.syncing, synced(after, assigned))
        deadline_ms = member.deadline_ms if member.syncing is None else step.now_ms + member.session_timeout_ms
        step.put(assigned, syncing=None, deadline_ms=deadline_ms)
    after.saved = after.to_save()
    watch_syncs(step)


def watch_syncs(step: Step) -> None:
    """Wait no longer for members to sync, if all have."""
    if not any(member.owes_sync for member in step.after.members.values()):
        step.after.due_ms = NEVER_MS


def _become_empty(step: Step) -> None:
    given_ids = step.after.given_ids
    step.after = Rebalance(step.after.generation + 1, given_ids=given_ids)


def remove(step: Step, member: Member, why: str) -> None:
    """Remove a member, and end what waits for it."""
    error = errors.UnknownMemberId(f"member {member.member_id!r} is removed: {why}")
    step.end(member.joining, error)
    step.end(member.syncing, error)
    step.removed.append((member, why))
    del step.after.members[member.member_id]


def synced(after: Rebalance, member: Member) -> m.SyncGroupResponse:
    """Return the response that gives a member its assignment."""
    return m.SyncGroupResponse(after.protocol_type, after.protocol, member.assignment)


def _longest_ms(members: Iterable[Member]) -> int:
    return max(member.rebalance_timeout_ms for member in members)


def fenced(instance_id: str) -> errors.FencedInstanceId:
    """Return the error for a process that has lost its place to the next one."""
    return errors.FencedInstanceId(f"another process has joined with instance id {instance_id!r}")


def in_rebalance(group: str) -> errors.RebalanceInProgress:
    """Return the error for a member that is to join again."""
    return errors.RebalanceInProgress(f"group {group!r} is in a rebalance: join again")
