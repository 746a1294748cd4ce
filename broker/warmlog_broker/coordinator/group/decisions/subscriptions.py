"""Subscriptions: the topics that members stand for, by name and by pattern."""

from collections.abc import Iterable

from warmlog_broker.coordinator.group.patterns import compile_pattern
from warmlog_broker.coordinator.group.decisions.records import KnownTopic, MemberValue
from warmlog_broker.coordinator.group.decisions.state import Member, TopicsView


def subscribes_to(settings: MemberValue, name: str) -> bool:
    """Return whether a member with these settings subscribes to the topic of this name."""
    return name in settings.topics or bool(settings.pattern and compile_pattern(settings.pattern).fullmatch(name))


def resolve(members: Iterable[Member], topics: TopicsView) -> dict[str, dict[bytes, KnownTopic]]:
    """Return the existing topics that each member subscribes to, by member id and topic id.

    A pattern stands for topics that the member's principal may describe.
    """
    resolved: dict[tuple[tuple[str, ...], str, str], dict[bytes, KnownTopic]] = {}
    names: list[str] | None = None
    result = {}
    for member in members:
        principal = member.settings.principal if member.settings.pattern else ""
        subscription = (member.settings.topics, member.settings.pattern, principal)
        if subscription not in resolved:
            wanted = list(member.settings.topics)
            if member.settings.pattern:
                names = sorted(topics.names()) if names is None else names
                matches = compile_pattern(member.settings.pattern).fullmatch
                wanted += [name for name in names if matches(name) and topics.may_describe(principal, name)]
            found = [topics.by_name(name) for name in wanted]
            resolved[subscription] = {topic.topic_id: topic for topic in found if topic is not None}
        result[member.member_id] = resolved[subscription]
    return result
