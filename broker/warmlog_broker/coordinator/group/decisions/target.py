"""The target assignment of a group: which partitions each member shall have in the end.

A target is computed step by step for the members and topics of one moment (`compute`), while the group goes on; then
`assign` makes it that of the group. If the members have changed since, the epoch of the group rises once more, so that
another target follows.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_

from warmlog_broker.coordinator.framework.decision import Decision, PartitionId, Record, holds_anything
from warmlog_broker.coordinator.group.decisions.assignors import ASSIGNORS, UNIFORM, Subscriber, TopicClass
from warmlog_broker.coordinator.group.decisions.records import (
    GroupKey,
    GroupValue,
    KnownTopic,
    MemberValue,
    ShareKey,
    TargetKey,
    TargetValue,
    pack_share,
    put,
)
from warmlog_broker.coordinator.group.decisions.state import Group, Groups, Member, held_bytes
from warmlog_broker.coordinator.group.decisions.subscriptions import Subscriptions, bits_of


@dataclass(frozen=True, slots=True)
class Target:
    """A target that was computed for a group as it was at one moment."""

    group: Group
    epoch: int
    """Of the group at that moment."""
    assignor: str
    topics: Mapping[bytes, KnownTopic]
    """That the members subscribed to."""
    settings: Mapping[str, MemberValue]
    """That the members had, by member id."""
    shares: Mapping[str, set[PartitionId]]


def needs_target(group: Group | None, subscriptions: Subscriptions) -> bool:
    """Return whether members, subscriptions or partitions may have changed since the target was computed.

    False as long as it is not known what the pattern of a member stands for.
    """
    if group is None or not group.members:
        return False
    is_due = group.target_epoch < group.epoch or group.target_version != subscriptions.version
    return is_due and all(subscriptions.is_known(member) for member in group.members.values())


def compute(group: Group, subscriptions: Subscriptions) -> Generator[None, None, Target | None]:
    """Return the target of the group; None if it has it, or if it is not known yet what a pattern stands for.

    A generator: it yields after each small step, and the group and the topics may change meanwhile. If the target is
    not assigned after all, set `Group.target_version` back to -1.
    """
    for member in list(group.members.values()):
        subscriptions.topics_of(member)
        yield
    if not group.members:
        return None
    # From here on without a pause: what the group is now.
    if not all(subscriptions.is_known(member) for member in group.members.values()):
        return None
    epoch, version, assignor = group.epoch, subscriptions.version, chosen_assignor(group)
    wanted = {member_id: subscriptions.topics_of(member) for member_id, member in group.members.items()}
    settings = {member_id: member.settings for member_id, member in group.members.items()}
    members = {
        member_id: Subscriber((member.settings.instance_id, member_id), member.target)
        for member_id, member in group.members.items()
    }
    by_bit = dict(subscriptions.topics(reduce(or_, wanted.values())))
    topics = {topic.topic_id: topic for topic in by_bit.values()}
    known = {topic_id: topic for topic_id, topic in group.topics.items() if topic.partitions}
    is_due = group.target_epoch < epoch or known != topics
    group.target_version = version
    yield
    if not is_due:
        bits = {topic.topic_id: bit for bit, topic in by_bit.items()}
        for member_id, subscriber in members.items():
            is_due |= any(not bits.get(partition.topic_id, 0) & wanted[member_id] for partition in subscriber.current)
            yield
        if not is_due:
            return None
    classes = yield from _classes(members, wanted, by_bit)
    shares = yield from ASSIGNORS[assignor](members, classes)
    return Target(group, epoch, assignor, topics, settings, shares)


def _classes(
    members: Mapping[str, Subscriber], wanted: Mapping[str, int], by_bit: Mapping[int, KnownTopic]
) -> Generator[None, None, list[TopicClass]]:
    """Divide the topics by their subscribers. `wanted` has sets of topics by member id."""
    same: dict[int, list[str]] = {}
    for member_id in sorted(members, key=lambda member_id: members[member_id].rank):
        same.setdefault(wanted[member_id], []).append(member_id)
    union = reduce(or_, same)
    parts: dict[int, list[int]] = {union: []} if union else {}
    for topics in same:
        divided: dict[int, list[int]] = {}
        for part, sets in parts.items():
            if part & topics:
                divided[part & topics] = [*sets, topics]
            if part & ~topics:
                divided[part & ~topics] = sets
            yield
        parts = divided
    classes = []
    for part, sets in parts.items():
        subscribers = sorted((m for each in sets for m in same[each]), key=lambda member_id: members[member_id].rank)
        counts = {by_bit[bit].topic_id: by_bit[bit].partitions for bit in bits_of(part)}
        classes.append(TopicClass(subscribers, dict(sorted(counts.items()))))
        yield
    return sorted(classes, key=lambda each: next(iter(each.topics)))


def assign(
    groups: Groups, target: Target, subscriptions: Subscriptions, may_hold: Callable[[str, int], None] = holds_anything
) -> Decision[bool]:
    """Make `target` that of its group. The result is False if the group has ended meanwhile.

    PolicyViolation if `may_hold` raises it, see `Holdings.check`.
    """
    group, name = target.group, target.group.name
    if groups.get(name) is not group or not group.members:
        return Decision((), False)
    records: list[Record] = []
    epoch = max(group.epoch, group.target_epoch + 1)
    is_stale = group.epoch != target.epoch
    if is_stale or epoch > group.epoch:
        records.append(put(GroupKey(name), GroupValue(epoch + is_stale, group.empty_since_ms, group.owner)))
    value = TargetValue(epoch, target.assignor, _known_topics(group, target.topics))
    may_hold(group.owner, held_bytes(value) - held_bytes(TargetValue(topics=tuple(group.topics.values()))))
    records.append(put(TargetKey(name), value))
    given = dict.fromkeys(group.members, frozenset[PartitionId]())
    for member_id, share in target.shares.items():
        settings = target.settings[member_id]
        place = group.instances.get(settings.instance_id, "") if settings.instance_id else member_id
        if place in given:
            member = group.members[place]
            is_same = member.settings is settings
            given[place] = frozenset(share) if is_same else _still_wanted(member, share, target, subscriptions)
    records += [
        put(ShareKey(name, member_id), pack_share(share))
        for member_id, share in sorted(given.items())
        if share != group.members[member_id].target
    ]
    return Decision(records, True)


def _still_wanted(
    member: Member, share: Iterable[PartitionId], target: Target, subscriptions: Subscriptions
) -> frozenset[PartitionId]:
    """Return `share` without the topics that the member has ceased to subscribe to since it was computed."""
    wanted = subscriptions.topics_of(member)
    return frozenset(
        partition for partition in share if subscriptions.is_in(wanted, target.topics[partition.topic_id].name)
    )


def chosen_assignor(group: Group) -> str:
    """Return the assignor that most of the members ask for."""
    votes = Counter(member.settings.assignor for member in group.members.values() if member.settings.assignor)
    return min(votes, key=lambda name: (-votes[name], name)) if votes else UNIFORM


def _known_topics(group: Group, subscribed: Mapping[bytes, KnownTopic]) -> tuple[KnownTopic, ...]:
    """Return the topics of the new target, and those that are not in it but of which members hold partitions."""
    topics = dict(subscribed)
    for topic_id in {partition.topic_id for partition in group.owners}:
        if topic_id not in topics:
            topics[topic_id] = KnownTopic(topic_id, group.topics[topic_id].name, 0)
    return tuple(sorted(topics.values()))
