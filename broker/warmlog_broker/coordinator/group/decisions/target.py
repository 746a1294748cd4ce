"""The target assignment of a group: which partitions each member shall have in the end."""

from collections import Counter

from warmlog_broker.coordinator.framework.decision import Decision, Record
from warmlog_broker.coordinator.group.decisions.assignors import ASSIGNORS, UNIFORM, Subscriber
from warmlog_broker.coordinator.group.decisions.records import (
    GroupKey,
    GroupValue,
    KnownTopic,
    ShareKey,
    TargetKey,
    TargetValue,
    pack_share,
    put,
)
from warmlog_broker.coordinator.group.decisions.state import Group, Groups, TopicsView
from warmlog_broker.coordinator.group.decisions.subscriptions import resolve

Resolved = dict[str, dict[bytes, KnownTopic]]


def needs_target(groups: Groups, group: str, topics: TopicsView) -> bool:
    """Return whether `assign` would compute a new target: members, subscriptions or partitions have changed."""
    found = groups.get(group)
    if found is None or not found.members:
        return False
    return found.target_epoch < found.epoch or _topics_changed(found, resolve(found.members.values(), topics))


def assign(groups: Groups, group: str, topics: TopicsView) -> Decision[bool]:
    """Compute a new target for subscriptions and partitions as they are now. The result is False if none is needed."""
    found = groups.get(group)
    if found is None or not found.members:
        return Decision((), False)
    resolved = resolve(found.members.values(), topics)
    if found.target_epoch == found.epoch and not _topics_changed(found, resolved):
        return Decision((), False)
    records: list[Record] = []
    epoch = max(found.epoch, found.target_epoch + 1)
    if epoch > found.epoch:
        records.append(put(GroupKey(group), GroupValue(epoch, found.empty_since_ms)))
    assignor = chosen_assignor(found)
    records.append(put(TargetKey(group), TargetValue(epoch, assignor, _known_topics(found, resolved))))
    members = {
        member_id: Subscriber((member.settings.instance_id, member_id), resolved[member_id].keys(), member.target)
        for member_id, member in found.members.items()
    }
    counts = {topic.topic_id: topic.partitions for topic in _subscribed(resolved).values()}
    for member_id, share in sorted(ASSIGNORS[assignor](members, counts).items()):
        if share != found.members[member_id].target:
            records.append(put(ShareKey(group, member_id), pack_share(share)))
    return Decision(records, True)


def chosen_assignor(group: Group) -> str:
    """Return the assignor that most of the members ask for."""
    votes = Counter(member.settings.assignor for member in group.members.values() if member.settings.assignor)
    return min(votes, key=lambda name: (-votes[name], name)) if votes else UNIFORM


def _subscribed(resolved: Resolved) -> dict[bytes, KnownTopic]:
    return {topic_id: topic for topics in resolved.values() for topic_id, topic in topics.items()}


def _topics_changed(group: Group, resolved: Resolved) -> bool:
    """Return whether the topics are others than those of the target, or no longer those of a member that has some."""
    known = {topic_id: topic for topic_id, topic in group.topics.items() if topic.partitions}
    return known != _subscribed(resolved) or any(
        partition.topic_id not in resolved[member_id]
        for member_id, member in group.members.items()
        for partition in member.target
    )


def _known_topics(group: Group, resolved: Resolved) -> tuple[KnownTopic, ...]:
    """Return the topics of the new target, and those that are not in it but of which members hold partitions."""
    topics = _subscribed(resolved)
    for topic_id in {partition.topic_id for partition in group.owners}:
        if topic_id not in topics:
            topics[topic_id] = KnownTopic(topic_id, group.topics[topic_id].name, 0)
    return tuple(sorted(topics.values()))
