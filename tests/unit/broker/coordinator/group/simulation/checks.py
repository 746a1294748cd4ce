"""The invariants of groups, as the simulation checks them after every event that changes something."""

import re
from collections.abc import Iterable

from unit.broker.coordinator.group.simulation.process import Process
from unit.broker.coordinator.group.topics import Topics
from warmlog_broker.coordinator.group.records import Partition
from warmlog_broker.coordinator.group.state import Group, Member


class Violation(Exception):
    """An invariant does not hold; the message says which."""


def require(condition: object, message: str) -> None:
    if not condition:
        raise Violation(message)


class Watch:
    """What was seen of one group so far; begins again when the group was deleted."""

    def __init__(self) -> None:
        self.epochs = (0, 0)
        self.member_epochs: dict[str, int] = {}
        self.holdings: dict[Partition, tuple[str, str, int]] = {}
        """Member id and instance id of the last holder of a partition, and the epoch in which it was assigned."""
        self.changes: dict[Partition, int] = {}
        """How often a partition was assigned."""

    def look(self, group: Group) -> None:
        """Check everything that must be true of `group` and of what has become of it since the last look."""
        epochs = (group.epoch, group.target_epoch)
        require(epochs[0] >= self.epochs[0] and epochs[1] >= self.epochs[1], f"epochs fell: {self.epochs}, {epochs}")
        require(group.target_epoch <= group.epoch, "ValidStableGroupState: the target's epoch is after the group's")
        self.epochs = epochs
        holders: dict[Partition, str] = {}
        targeted: set[Partition] = set()
        for member in group.members.values():
            self._look_at_member(group, member, holders)
            require(not targeted & member.target, "LegalTargetAssignment: the target gives a partition to two members")
            targeted |= member.target
        require(holders == group.owners, "the index of owners differs from what the members hold")
        if group.state == "stable":
            every = {Partition(topic.topic_id, n) for topic in group.topics.values() for n in range(topic.partitions)}
            require(holders.keys() == targeted == every, "ValidStableGroupState: stable, and a partition has no owner")

    def _look_at_member(self, group: Group, member: Member, holders: dict[Partition, str]) -> None:
        name = member.member_id
        require(0 < member.epoch <= group.epoch, f"ValidMemberEpoch: {name} has {member.epoch}")
        require(member.previous_epoch <= member.epoch, f"ValidMemberEpoch: the previous one of {name} is higher")
        require(member.epoch >= self.member_epochs.get(name, 0), f"ValidMemberEpoch: that of {name} fell")
        self.member_epochs[name] = member.epoch
        if group.state == "stable":
            is_settled = member.assigned.keys() == member.target and not member.revoking
            require(is_settled and member.epoch >= group.target_epoch, f"ValidStableGroupState: {name} is not settled")
        for part in (member.assigned, member.revoking):
            for partition, since in part.items():
                other = holders.setdefault(partition, name)
                require(
                    other == name and (part is member.assigned or partition not in member.assigned),
                    f"NoDoubleClientAssignment: {partition} is held by {other} and {name}",
                )
                require(since <= member.epoch, f"ValidPartitionEpoch: {partition} is of {since}, {name} of an earlier")
                self._look_at_holding(partition, (name, member.settings.instance_id, since))

    def _look_at_holding(self, partition: Partition, holding: tuple[str, str, int]) -> None:
        last = self.holdings.get(partition)
        if last == holding:
            return
        if last is not None:
            is_takeover = bool(holding[1]) and holding[1:] == last[1:]
            require(is_takeover or holding[2] > last[2], f"ValidPartitionEpoch: {partition}: {last}, then {holding}")
        self.holdings[partition] = holding
        self.changes[partition] = self.changes.get(partition, 0) + 1


def check_beliefs(processes: Iterable[Process], group: Group | None, now_ms: int) -> None:
    """NoDoubleClientAssignment, as the members understand it: none owns what another owns, or what it does not hold."""
    believed: dict[Partition, str] = {}
    for process in processes:
        is_valid = process.is_running and now_ms - process.confirmed_ms < process.session_timeout_ms
        if not process.owned or not is_valid or process.is_disowned:
            continue
        name = process.member_id
        member = group.members.get(name) if group else None
        for partition in process.owned:
            require(
                member is not None and member.holds(partition),
                f"NoDoubleClientAssignment: {name} believes to own {partition}, and does not hold it",
            )
            other = believed.setdefault(partition, name)
            require(other == name, f"NoDoubleClientAssignment: {other} and {name} believe to own {partition}")


def check_target(group: Group, topics: Topics) -> None:
    """LegalTargetAssignment: every partition that is subscribed to has one subscriber, none another member."""
    wanted: dict[tuple[tuple[str, ...], str], set[Partition]] = {}
    targeted: set[Partition] = set()
    for member in group.members.values():
        subscription = (member.settings.topics, member.settings.pattern)
        if subscription not in wanted:
            names = [n for n in topics.names() if n in subscription[0] or re.fullmatch(subscription[1] or "(?!)", n)]
            wanted[subscription] = {partition for name in names for partition in topics.partitions(name)}
        require(member.target <= wanted[subscription], f"LegalTargetAssignment: {member.member_id} did not subscribe")
        targeted |= member.target
    require(targeted == set().union(*wanted.values()), "LegalTargetAssignment: a partition is left out")
    if len(wanted) == 1 and group.assignor == "uniform":
        loads = [len(member.target) for member in group.members.values()]
        require(max(loads) - min(loads) <= 1, f"the uniform target is not balanced: {sorted(loads)}")
