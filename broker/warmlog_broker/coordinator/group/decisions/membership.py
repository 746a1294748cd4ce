"""Membership: heartbeats that join, confirm, and leave, and the removal of members that are silent or too slow.

A member holds what it is assigned and what it is revoking. What the target takes from it moves from assigned to
revoking, and with that the member gets the epoch of this target; a heartbeat of that epoch was sent after the member
was told, so its `owned` is what releases the partitions. A delayed heartbeat has an older epoch and releases nothing.
Afterwards the member gets what the target gives to it and is free, that is, held by no member.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import msgspec

from warmlog_broker.coordinator.framework.decision import Decision, PartitionId, Record
from warmlog_broker.coordinator.group.decisions.assignors import ASSIGNORS
from warmlog_broker.coordinator.group.decisions.records import (
    AssignmentKey,
    AssignmentValue,
    GroupKey,
    GroupValue,
    MemberKey,
    MemberValue,
    ShareKey,
    pack_epochs,
    pack_share,
    put,
    remove,
)
from warmlog_broker.coordinator.group.decisions.state import (
    GROUP_BYTES,
    MAX_NAME_BYTES,
    Group,
    Groups,
    Limits,
    Member,
    as_partitions,
    check_group_id,
    check_room,
    fenced,
    held_bytes,
    valid_member,
)
from warmlog_protocol import messages as m
from warmlog_protocol.errors import (
    FencedMemberEpoch,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidRequest,
    InvalidSessionTimeout,
    UnsupportedAssignor,
)

MAX_TOPICS = 1000
"""Names in a subscription; a pattern may stand for more topics. Bounds the record of a member."""
PREDECESSORS = 8
"""So many member ids that a static member has replaced are known, so that late copies of their joins are refused."""

Heartbeat = Decision[m.GroupHeartbeatResponse]


@dataclass(frozen=True, slots=True)
class Holding:
    """The assignment of a member: the fields of Member of the same names."""

    epoch: int
    previous_epoch: int
    assigned: dict[PartitionId, int]
    revoking: dict[PartitionId, int]

    @classmethod
    def of(cls, member: Member) -> "Holding":
        return cls(member.epoch, member.previous_epoch, member.assigned, member.revoking)

    def value(self) -> AssignmentValue:
        """Return it as a record has it."""
        return AssignmentValue(self.epoch, self.previous_epoch, pack_epochs(self.assigned), pack_epochs(self.revoking))


def heartbeat(
    groups: Groups,
    request: m.GroupHeartbeatRequest,
    *,
    host: str,
    principal: str = "",
    owner: str = "",
    now_ms: int,
    limits: Limits,
) -> Heartbeat:
    """Decide a heartbeat. One that changes nothing has no records. Call `groups.heard` once its records are applied.

    The caller knows what a pattern in the request stands for (`Subscriptions.pattern`). The response has the assignment
    if the member joins, gets a new epoch, or does not say that it owns exactly that. `owner` is the principal of the
    request, which a new group belongs to. PolicyViolation if `Limits.may_hold` raises it.
    """
    check_request(request)
    group = groups.get(request.group)
    if request.member_epoch == m.JOINING:
        check_room(groups, group, limits)
        return _join(group or Group(request.group, owner=owner, size_bytes=0), request, host, principal, limits)
    if request.member_epoch in (m.LEAVING, m.LEAVING_FOR_A_WHILE):
        return _leave(group, request, now_ms)
    if request.member_epoch < m.LEAVING_FOR_A_WHILE:
        raise InvalidRequest(f"a member epoch of {request.member_epoch}: expected -2 or more")
    member = valid_member(group, request.group, request.member_id, request.instance_id)
    assert group is not None
    return _continue(group, member, request, principal, limits)


def expire_member(groups: Groups, group: str, member_id: str, *, now_ms: int) -> Decision[bool]:
    """Remove a member whose deadline has passed. The result is False if there is no such member."""
    member = groups.member(group, member_id)
    found = groups.get(group)
    if member is None or found is None:
        return Decision((), False)
    return Decision(_removal(found, member, now_ms), True)


def check_request(request: m.GroupHeartbeatRequest) -> None:
    """Raise InvalidGroupId or InvalidRequest if a name in the request is missing or too long."""
    check_group_id(request.group)
    if not request.member_id:
        raise InvalidRequest("the member id is empty: each consumer chooses one for itself")
    names = {"member id": request.member_id, "instance id": request.instance_id, "client id": request.client_id}
    for what, name in {**names, "pattern": request.pattern or ""}.items():
        size = len(name.encode())
        if size > MAX_NAME_BYTES:
            raise InvalidRequest(f"the {what} has {size} bytes: at most {MAX_NAME_BYTES} are allowed")


def _join(group: Group, request: m.GroupHeartbeatRequest, host: str, principal: str, limits: Limits) -> Heartbeat:
    """Add a member, or let it take the place of the one with its instance id. Of a member it changes the settings."""
    if group.is_classic:
        raise InconsistentGroupProtocol(
            f"the members of group {group.name!r} are of Kafka's classic protocol: stop them first, or use another "
            f"group"
        )
    old = group.members.get(request.member_id)
    holder = group.instances.get(request.instance_id)
    replaced = group.members[holder] if holder is not None and holder != request.member_id else None
    if old is not None and old.settings.instance_id != request.instance_id:
        raise InvalidRequest(
            f"member {request.member_id!r} joined with instance id {old.settings.instance_id!r}, and not with "
            f"{request.instance_id!r}: choose another member id"
        )
    if old is None and replaced is None and len(group.members) >= limits.config.group_max_size:
        raise GroupMaxSizeReached(f"group {group.name!r} has {len(group.members)} members, as many as are allowed")
    defaults = MemberValue(
        request.instance_id,
        rebalance_timeout_ms=limits.config.group_rebalance_timeout_ms,
        session_timeout_ms=limits.config.group_session_timeout_ms,
    )
    settings = _settings(old.settings if old else defaults, request, principal, limits)
    settings = msgspec.structs.replace(settings, host=host, client_id=request.client_id)
    if old is not None:
        return _rejoin(group, old, settings, limits)
    if replaced is not None:
        return _replace(group, replaced, request.member_id, settings, limits)
    epoch = group.epoch + 1
    limits.may_hold(group.owner, held_bytes(settings) + (0 if group.size_bytes else GROUP_BYTES))
    holding = Holding(epoch, epoch, {}, {})
    records = [
        _group_record(group, epoch),
        put(MemberKey(group.name, request.member_id), settings),
        put(AssignmentKey(group.name, request.member_id), holding.value()),
    ]
    return Decision(records, _response(group, holding, settings, limits, is_resent=True))


def _rejoin(group: Group, member: Member, settings: MemberValue, limits: Limits) -> Heartbeat:
    """Respond to a member that joins again. It keeps what it holds, since this may be a late copy of its first join.

    But it holds it from a new epoch on: commits that it sent before it joined again are refused.
    """
    records = _settings_records(group, member, settings, limits)
    holding = Holding.of(member)
    if member.assigned or member.revoking:
        epoch = group.epoch + 1
        # All of it is from the higher epoch on: only a later target takes something from the member.
        kept = dict.fromkeys(member.assigned.keys() & member.target, epoch)
        taken = {partition: since for partition, since in member.assigned.items() if partition not in kept}
        holding = Holding(epoch, member.epoch, kept, member.revoking | taken)
        records.append(put(AssignmentKey(group.name, member.member_id), holding.value()))
        records.append(_group_record(group, epoch + 1))
    return Decision(records, _response(group, holding, settings, limits, is_resent=True))


def _replace(group: Group, old: Member, member_id: str, settings: MemberValue, limits: Limits) -> Heartbeat:
    """Let a new process have the place of the static member `old`: its epoch, its assignment and its target."""
    if member_id in old.settings.predecessors:
        raise fenced(group.name, settings.instance_id)
    predecessors = (*old.settings.predecessors, old.member_id)[-PREDECESSORS:]
    holding = Holding.of(old)
    records = [
        put(MemberKey(group.name, member_id), msgspec.structs.replace(settings, predecessors=predecessors)),
        put(ShareKey(group.name, member_id), pack_share(old.target)),
    ]
    records.append(put(AssignmentKey(group.name, member_id), holding.value()))
    records += _tombstones(group, old)
    limits.may_hold(group.owner, held_bytes(settings) - held_bytes(old.settings))
    if _subscription(old.settings) != _subscription(settings):
        records.append(_group_record(group, group.epoch + 1))
    return Decision(records, _response(group, holding, settings, limits, is_resent=True))


def _continue(
    group: Group, member: Member, request: m.GroupHeartbeatRequest, principal: str, limits: Limits
) -> Heartbeat:
    """Decide the heartbeat of a member that knows its epoch, or the one before: then the last response was lost."""
    claimed = None if request.owned is None else as_partitions(request.owned)
    _check_claim(group, member, request.member_epoch, claimed)
    owned = member.owned if claimed is None else claimed
    settings = _settings(member.settings, request, principal, limits)
    before = holding = Holding.of(member)
    if request.member_epoch != member.epoch:
        return Decision((), _response(group, holding, member.settings, limits, is_resent=True))
    if claimed is not None:
        holding = released(holding, claimed)
    holding = advanced(group, member, holding)
    records = _settings_records(group, member, settings, limits)
    if holding != before:
        records.append(put(AssignmentKey(group.name, member.member_id), holding.value()))
    is_resent = holding.epoch != member.epoch or owned is None or owned != holding.assigned.keys()
    return Decision(records, _response(group, holding, settings, limits, is_resent=is_resent))


def _check_claim(group: Group, member: Member, epoch: int, claimed: frozenset[PartitionId] | None) -> None:
    """Raise FencedMemberEpoch for an epoch that is neither the member's nor the one before, whose response may have
    been lost, and for partitions that the member does not hold."""
    if epoch not in (member.epoch, member.previous_epoch):
        raise FencedMemberEpoch(
            f"member {member.member_id!r} of group {group.name!r} has epoch {member.epoch}, the request {epoch}: "
            f"it has lost its partitions; join again"
        )
    foreign = [partition for partition in claimed or () if not member.holds(partition)]
    if foreign:
        topic_id, number = min(foreign)
        raise FencedMemberEpoch(
            f"member {member.member_id!r} of group {group.name!r} claims partition {number} of topic {topic_id.hex()}, "
            f"which it was not assigned: it has lost its partitions; join again"
        )


def _leave(group: Group | None, request: m.GroupHeartbeatRequest, now_ms: int) -> Heartbeat:
    """Remove a member, or let a static one go for a while: then it keeps its partitions until its session ends."""
    response = m.GroupHeartbeatResponse(request.member_epoch, 0, 0)
    member = group.members.get(request.member_id) if group else None
    if group is None or member is None:
        if group is not None and request.instance_id in group.instances:
            valid_member(group, request.group, request.member_id, request.instance_id)
        return Decision((), response)
    if request.left_epoch and request.left_epoch not in (member.epoch, member.previous_epoch):
        return Decision((), response)  # it has joined again since
    if request.member_epoch == m.LEAVING:
        return Decision(_removal(group, member, now_ms), response)
    if not member.settings.instance_id:
        raise InvalidRequest("only a member with an instance id can leave for a while: leave with -1 instead")
    if not member.revoking:
        return Decision((), response)
    holding = released(Holding.of(member), frozenset())
    return Decision([put(AssignmentKey(group.name, member.member_id), holding.value())], response)


def _removal(group: Group, member: Member, now_ms: int) -> list[Record]:
    empty_since_ms = now_ms if len(group.members) == 1 else -1
    return [*_tombstones(group, member), _group_record(group, group.epoch + 1, empty_since_ms)]


def _group_record(group: Group, epoch: int, empty_since_ms: int = -1) -> Record:
    return put(GroupKey(group.name), GroupValue(epoch, empty_since_ms, group.owner))


def _tombstones(group: Group, member: Member) -> list[Record]:
    name, member_id = group.name, member.member_id
    return [remove(key(name, member_id)) for key in (AssignmentKey, ShareKey, MemberKey)]


def _settings(old: MemberValue, request: m.GroupHeartbeatRequest, principal: str, limits: Limits) -> MemberValue:
    """Return the member's settings with what the request changes of them."""
    if request.assignor and request.assignor not in ASSIGNORS:
        raise UnsupportedAssignor(f"there is no assignor {request.assignor!r}: expected one of {', '.join(ASSIGNORS)}")
    session_ms = request.session_timeout_ms
    shortest_ms, longest_ms = limits.config.group_min_session_timeout_ms, limits.config.group_max_session_timeout_ms
    if session_ms != -1 and not shortest_ms <= session_ms <= longest_ms:
        raise InvalidSessionTimeout(f"a session timeout of {session_ms} ms: expected {shortest_ms} to {longest_ms}")
    if request.rebalance_timeout_ms < -1 or request.rebalance_timeout_ms == 0:
        raise InvalidRequest(f"a rebalance timeout of {request.rebalance_timeout_ms} ms: expected 1 or more, or -1")
    return msgspec.structs.replace(
        old,
        topics=old.topics if request.topics is None else _checked_topics(request.topics),
        pattern=old.pattern if request.pattern is None else request.pattern,
        assignor=old.assignor if request.assignor is None else request.assignor,
        rebalance_timeout_ms=_given(request.rebalance_timeout_ms, old.rebalance_timeout_ms),
        session_timeout_ms=_given(session_ms, old.session_timeout_ms),
        principal=principal,
    )


def _checked_topics(names: Iterable[str]) -> tuple[str, ...]:
    topics = tuple(sorted(set(names)))
    if len(topics) > MAX_TOPICS:
        raise InvalidRequest(f"a subscription to {len(topics)} names: at most {MAX_TOPICS} are allowed; use a pattern")
    for name in topics:
        if len(name) > MAX_NAME_BYTES:
            raise InvalidRequest(f"a topic's name of {len(name)} characters: at most {MAX_NAME_BYTES} are allowed")
    return topics


def _given(value: int, old: int) -> int:
    return old if value == -1 else value


def _subscription(settings: MemberValue) -> tuple[tuple[str, ...], str, str, str]:
    return settings.topics, settings.pattern, settings.assignor, settings.principal if settings.pattern else ""


def _settings_records(group: Group, member: Member, settings: MemberValue, limits: Limits) -> list[Record]:
    """Return the records that give `member` these settings; a new subscription begins a new epoch of the group."""
    if settings == member.settings:
        return []
    limits.may_hold(group.owner, held_bytes(settings) - held_bytes(member.settings))
    records = [put(MemberKey(group.name, member.member_id), settings)]
    if _subscription(settings) != _subscription(member.settings):
        records.append(_group_record(group, group.epoch + 1))
    return records


def _response(
    group: Group, holding: Holding, settings: MemberValue, limits: Limits, *, is_resent: bool
) -> m.GroupHeartbeatResponse:
    interval_ms = min(limits.config.group_heartbeat_interval_ms, settings.session_timeout_ms // 3)
    assignment = group.topic_partitions(holding.assigned) if is_resent else None
    return m.GroupHeartbeatResponse(holding.epoch, interval_ms, settings.session_timeout_ms, assignment)


# --- hand-over of partitions ------------------------------------------------------------------------------------------


def released(holding: Holding, owned: AbstractSet[PartitionId]) -> Holding:
    """Return `holding` after a heartbeat of its epoch that says what the member owns."""
    revoking = {partition: epoch for partition, epoch in holding.revoking.items() if partition in owned}
    return Holding(holding.epoch, holding.previous_epoch, holding.assigned, revoking)


def advanced(group: Group, member: Member, holding: Holding) -> Holding:
    """Return what `member` holds after the next step towards its target, from `holding` on."""
    if holding.revoking:
        return holding
    epoch, previous_epoch = holding.epoch, holding.previous_epoch
    if group.target_epoch > epoch:
        epoch, previous_epoch = group.target_epoch, epoch
    kept = {partition: since for partition, since in holding.assigned.items() if partition in member.target}
    if len(kept) < len(holding.assigned):
        assert epoch > holding.epoch, "only a new target takes partitions from a member"
        revoking = {partition: since for partition, since in holding.assigned.items() if partition not in kept}
        return Holding(epoch, previous_epoch, kept, revoking)
    gained = {
        partition: epoch for partition in member.target if partition not in kept and _is_free(group, member, partition)
    }
    return Holding(epoch, previous_epoch, kept | gained, {})


def _is_free(group: Group, member: Member, partition: PartitionId) -> bool:
    """Return whether no other member holds `partition`."""
    return group.owners.get(partition, member.member_id) == member.member_id
