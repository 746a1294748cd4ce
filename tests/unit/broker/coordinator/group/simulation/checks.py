"""The invariants of groups, as the simulation checks them after every event that changes something."""

import re
from collections.abc import Iterable

from unit.broker.coordinator.group.simulation.process import Process
from unit.broker.coordinator.group.topics import Topics
from warmlog_broker.coordinator.framework.decision import PartitionId
from warmlog_broker.coordinator.group.decisions.state import Group, Member


class Violation(Exception):
    """An invariant does not hold; the message says which."""


def require(condition: object, message: str, *values: object) -> None:
    """Raise a Violation with `message`, in which each {} stands for one of `values`, unless `condition` is true."""
    if not condition:
        raise Violation(message.format(*values))


class Watch:
    """What was seen of one group so far; begins again when the group was deleted."""

    def __init__(self) -> None:
        self.epochs = (0, 0)
        self.member_epochs: dict[str, int] = {}
        self.holdings: dict[PartitionId, tuple[str, str, int]] = {}
        """Member id and instance id of the last holder of a partition, and the epoch in which it was assigned."""
        self.changes: dict[PartitionId, int] = {}
        """How often a partition was assigned."""

    def look(self, group: Group) -> None:
        """Check everything that must be true of `group` and of what has become of it since the last look."""
        epochs = (group.epoch, group.target_epoch)
        require(epochs[0] >= self.epochs[0] and epochs[1] >= self.epochs[1], "epochs fell: {}, {}", self.epochs, epochs)
        require(group.target_epoch <= group.epoch, "ValidStableGroupState: the target's epoch is after the group's")
        self.epochs = epochs
        holders: dict[PartitionId, str] = {}
        targeted: set[PartitionId] = set()
        is_stable = group.state == "stable"
        for member in group.members.values():
            self._look_at_member(group, member, holders, is_stable=is_stable)
            require(not targeted & member.target, "LegalTargetAssignment: the target gives a partition to two members")
            targeted |= member.target
        require(holders == group.owners, "the index of owners differs from what the members hold")
        if is_stable:
            every = {PartitionId(topic.topic_id, n) for topic in group.topics.values() for n in range(topic.partitions)}
            require(holders.keys() == targeted == every, "ValidStableGroupState: stable, and a partition has no owner")

    def _look_at_member(
        self, group: Group, member: Member, holders: dict[PartitionId, str], *, is_stable: bool
    ) -> None:
        name = member.member_id
        require(0 < member.epoch <= group.epoch, "ValidMemberEpoch: {} has {}", name, member.epoch)
        require(member.previous_epoch <= member.epoch, "ValidMemberEpoch: the previous one of {} is higher", name)
        require(member.epoch >= self.member_epochs.get(name, 0), "ValidMemberEpoch: that of {} fell", name)
        self.member_epochs[name] = member.epoch
        if is_stable:
            is_settled = member.assigned.keys() == member.target and not member.revoking
            require(is_settled and member.epoch >= group.target_epoch, "ValidStableGroupState: {} is not settled", name)
        for part in (member.assigned, member.revoking):
            for partition, since in part.items():
                other = holders.setdefault(partition, name)
                require(
                    other == name and (part is member.assigned or partition not in member.assigned),
                    "NoDoubleClientAssignment: {} is held by {} and {}",
                    partition,
                    other,
                    name,
                )
                require(
                    since <= member.epoch, "ValidPartitionEpoch: {} is of {}, {} of an earlier", partition, since, name
                )
                self._look_at_holding(partition, (name, member.settings.instance_id, since))

    def _look_at_holding(self, partition: PartitionId, holding: tuple[str, str, int]) -> None:
        last = self.holdings.get(partition)
        if last == holding:
            return
        if last is not None:
            is_takeover = bool(holding[1]) and holding[1:] == last[1:]
            require(
                is_takeover or holding[2] > last[2], "ValidPartitionEpoch: {}: {}, then {}", partition, last, holding
            )
        self.holdings[partition] = holding
        self.changes[partition] = self.changes.get(partition, 0) + 1


def check_beliefs(processes: Iterable[Process], group: Group | None, now_ms: int) -> None:
    """NoDoubleClientAssignment, as the members understand it: none owns what another owns, or what it does not hold."""
    believed: dict[PartitionId, str] = {}
    for process in processes:
        is_valid = process.is_running and now_ms - process.confirmed_ms < process.session_timeout_ms
        if not process.owned or not is_valid or process.is_disowned:
            continue
        name = process.member_id
        member = group.members.get(name) if group else None
        for partition in process.owned:
            require(
                member is not None and member.holds(partition),
                "NoDoubleClientAssignment: {} believes to own {}, and does not hold it",
                name,
                partition,
            )
            other = believed.setdefault(partition, name)
            require(other == name, "NoDoubleClientAssignment: {} and {} believe to own {}", other, name, partition)


def check_target(group: Group, topics: Topics) -> None:
    """LegalTargetAssignment: every partition that is subscribed to has one subscriber, none another member."""
    wanted: dict[tuple[tuple[str, ...], str], set[PartitionId]] = {}
    targeted: set[PartitionId] = set()
    for member in group.members.values():
        subscription = (member.settings.topics, member.settings.pattern)
        if subscription not in wanted:
            names = [n for n in topics.names() if n in subscription[0] or re.fullmatch(subscription[1] or "(?!)", n)]
            wanted[subscription] = {partition for name in names for partition in topics.partitions(name)}
        require(member.target <= wanted[subscription], "LegalTargetAssignment: {} did not subscribe", member.member_id)
        targeted |= member.target
    require(targeted == set().union(*wanted.values()), "LegalTargetAssignment: a partition is left out")
    if len(wanted) == 1 and group.assignor == "uniform":
        loads = [len(member.target) for member in group.members.values()]
        require(max(loads) - min(loads) <= 1, "the uniform target is not balanced: {}", sorted(loads))
