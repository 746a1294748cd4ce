"""Groups of Kafka's classic protocol: what `classic/events` decides about their members, as records.

A group with members is of one kind: classic, or KIP-848, which warmlog's own members speak. One without members is
of neither, and the next to join decides; generations and epochs are one number that rises, so that nothing late of one
kind fits the other. Committed offsets are the same for both. A group is created by its first member, which counts for
limits; the three times at which its members are saved are those of `classic/state`.
"""

from collections.abc import Callable

from msgspec.structs import replace

from warmlog_broker.coordinator.classic import events, phases
from warmlog_broker.coordinator.classic import messages as m
from warmlog_broker.coordinator.classic.state import Phase, Rebalance, more_bytes
from warmlog_broker.coordinator.framework.decision import Decision, Record
from warmlog_broker.coordinator.group.decisions.records import ClassicKey, GroupKey, GroupValue, put, remove
from warmlog_broker.coordinator.group.decisions.state import (
    GROUP_BYTES,
    MAX_NAME_BYTES,
    Group,
    Groups,
    Limits,
    check_group_id,
    check_room,
)
from warmlog_protocol.errors import InconsistentGroupProtocol, InvalidRequest

MAX_PROTOCOLS = 100
"""Of one member. Kafka's clients have one for each assignor."""

Event = Callable[[Rebalance], phases.Step]


def rebalance_of(group: Group | None) -> Rebalance:
    """Return the classic members of a group, or how the first of them begins."""
    if group is None:
        return Rebalance()
    present = group.rebalance or Rebalance()
    if present.phase is Phase.EMPTY and present.generation < group.epoch:
        return replace(present, generation=group.epoch)
    return present


def decide(groups: Groups, name: str, event: Event, *, now_ms: int, limits: Limits) -> Decision[phases.Step]:
    """Decide what an event does to the classic members of a group. It takes effect by `Groups.happened`.

    PolicyViolation if `Limits.may_hold` raises it.
    """
    group = groups.get(name)
    before = rebalance_of(group)
    step = event(before)
    if group is not None and not step.is_quiet:
        limits.may_hold(group.owner, more_bytes(before, step.after))
    return Decision(_records(group, name, before, step.after, now_ms), step)


def decide_join(
    groups: Groups,
    request: m.JoinGroupRequest,
    waiter: object,
    *,
    new_id: str,
    host: str,
    owner: str,
    now_ms: int,
    limits: Limits,
    time_ms: int,
) -> Decision[phases.Step]:
    """Decide a JoinGroup; it creates the group. `now_ms` is the time of timers, `time_ms` that of day.

    INVALID_GROUP_ID, INVALID_REQUEST, INCONSISTENT_GROUP_PROTOCOL, TOO_MANY_GROUPS, and what `events.join` raises.
    """
    _check_names(request)
    group = groups.get(request.group)
    check_room(groups, group, limits)
    if group is not None and group.members:
        raise InconsistentGroupProtocol(
            f"the members of group {request.group!r} are of the protocol of KIP-848 (group.protocol=consumer, or "
            f"warmlog's own): stop them first, or use another group"
        )

    def event(before: Rebalance) -> phases.Step:
        return events.join(before, request, waiter, new_id=new_id, host=host, now_ms=now_ms, config=limits.config)

    decision = decide(groups, request.group, event, now_ms=time_ms, limits=limits)
    if group is not None:
        return decision
    limits.may_hold(owner, GROUP_BYTES + more_bytes(Rebalance(), decision.result.after))
    return Decision([put(GroupKey(request.group), GroupValue(owner=owner)), *decision.records], decision.result)


def _records(group: Group | None, name: str, before: Rebalance, after: Rebalance, now_ms: int) -> list[Record]:
    if before.members and not after.members:
        assert group is not None
        tombstones = [remove(ClassicKey(name))] if before.saved is not None else []
        return [put(GroupKey(name), GroupValue(after.generation, now_ms, group.owner)), *tombstones]
    if after.saved is not None and after.saved is not before.saved:
        return [put(ClassicKey(name), after.saved)]
    return []


def _check_names(request: m.JoinGroupRequest) -> None:
    check_group_id(request.group)
    names = [("member id", request.member_id), ("instance id", request.instance_id), ("type", request.protocol_type)]
    for what, name in names + [("protocol", name) for name, _ in request.protocols]:
        size = len(name.encode())
        most = MAX_NAME_BYTES + 40 * (what == "member id")  # which is an instance id or a client id, and 37 characters
        if size > most:
            raise InvalidRequest(f"the {what} of a member has {size} bytes: at most {most} are allowed")
    if len(request.protocols) > MAX_PROTOCOLS:
        raise InvalidRequest(f"a member with {len(request.protocols)} protocols: at most {MAX_PROTOCOLS} are allowed")
