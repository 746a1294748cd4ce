"""Subscriptions: the topics that members stand for, by name and by pattern."""

import re
from collections.abc import Iterable
from functools import lru_cache

from warmlog_broker.coordinator.group.records import KnownTopic, MemberValue
from warmlog_broker.coordinator.group.state import Member, TopicsView
from warmlog_protocol.errors import InvalidRegularExpression


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return the regular expression for whole names; InvalidRegularExpression."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidRegularExpression(f"the pattern {pattern!r} is not a regular expression: {error}") from None


def subscribes_to(settings: MemberValue, name: str) -> bool:
    """Return whether a member with these settings subscribes to the topic of this name."""
    return name in settings.topics or bool(settings.pattern and compile_pattern(settings.pattern).fullmatch(name))


def resolve(members: Iterable[Member], topics: TopicsView) -> dict[str, dict[bytes, KnownTopic]]:
    """Return the existing topics that each member subscribes to, by member id and topic id."""
    resolved: dict[tuple[tuple[str, ...], str], dict[bytes, KnownTopic]] = {}
    names: list[str] | None = None
    result = {}
    for member in members:
        subscription = (member.settings.topics, member.settings.pattern)
        if subscription not in resolved:
            wanted = list(member.settings.topics)
            if member.settings.pattern:
                names = sorted(topics.names()) if names is None else names
                matches = compile_pattern(member.settings.pattern).fullmatch
                wanted += [name for name in names if matches(name)]
            found = [topics.by_name(name) for name in wanted]
            resolved[subscription] = {topic.topic_id: topic for topic in found if topic is not None}
        result[member.member_id] = resolved[subscription]
    return result
