"""Groups as tools see them."""

from warmlog_broker.coordinator.group.decisions.offsets import existing_group
from warmlog_broker.coordinator.group.decisions.state import Group, Groups, Member
from warmlog_broker.coordinator.group.decisions.target import chosen_assignor
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.messages.coordinators.groups import DescribedGroup, GroupMember, ListedGroup


def list_groups(groups: Groups) -> list[ListedGroup]:
    """Return all groups, by name."""
    return [
        ListedGroup(group.name, group.state, len(group.members))
        for group in sorted(groups, key=lambda group: group.name)
    ]


def describe(groups: Groups, name: str) -> DescribedGroup:
    """Return a group with its members, by member id; GroupIdNotFound."""
    group = existing_group(groups, name)
    return DescribedGroup(
        int(ErrorCode.NONE),
        "",
        group.name,
        group.state,
        group.epoch,
        group.target_epoch,
        group.assignor or chosen_assignor(group),
        [_described(group, member) for _, member in sorted(group.members.items())],
    )


def _described(group: Group, member: Member) -> GroupMember:
    settings = member.settings
    return GroupMember(
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
