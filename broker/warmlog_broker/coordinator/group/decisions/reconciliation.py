"""Hand-over of partitions: what one member holds next, on its way to the target.

A member holds what it is assigned and what it is revoking. What the target takes from it moves from assigned to
revoking, and with that the member gets the epoch of this target; a heartbeat of that epoch was sent after the member
was told, so its `owned` is what releases the partitions. A delayed heartbeat has an older epoch and releases nothing.
Afterwards the member gets what the target gives to it and is free, that is, held by no member.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from warmlog_broker.coordinator.group.decisions.records import AssignmentValue, Partition, pack_epochs
from warmlog_broker.coordinator.group.decisions.state import Group, Member


@dataclass(frozen=True, slots=True)
class Holding:
    """The assignment of a member: the fields of Member of the same names."""

    epoch: int
    previous_epoch: int
    assigned: dict[Partition, int]
    revoking: dict[Partition, int]

    @classmethod
    def of(cls, member: Member) -> "Holding":
        return cls(member.epoch, member.previous_epoch, member.assigned, member.revoking)

    def value(self) -> AssignmentValue:
        """Return it as a record has it."""
        return AssignmentValue(self.epoch, self.previous_epoch, pack_epochs(self.assigned), pack_epochs(self.revoking))


def released(holding: Holding, owned: AbstractSet[Partition]) -> Holding:
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


def rejoined(member: Member, epoch: int) -> Holding:
    """Return what `member` holds after it has joined again, all of it from `epoch` on.

    The epoch of the group has to be higher: then only a later target takes something from the member.
    """
    kept = dict.fromkeys(member.assigned.keys() & member.target, epoch)
    taken = {partition: since for partition, since in member.assigned.items() if partition not in kept}
    return Holding(epoch, member.epoch, kept, member.revoking | taken)


def _is_free(group: Group, member: Member, partition: Partition) -> bool:
    """Return whether no other member holds `partition`."""
    return group.owners.get(partition, member.member_id) == member.member_id
