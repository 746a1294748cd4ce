"""Subscriptions: the topics that members stand for, by name and by pattern, kept as topics come and go.

A set of topics is an integer with one bit for each topic that exists. So what a thousand patterns stand for takes a
megabyte if there are ten thousand topics, and the union of all is a thousand ORs. A pattern is matched once against
each topic: against all when it is first used (`Pattern.unmatched`), later against those that were created since.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from weakref import WeakValueDictionary

from warmlog_broker.coordinator.group.decisions.records import KnownTopic, MemberValue
from warmlog_broker.coordinator.group.decisions.state import NO_TOPICS, Member, Pattern, Subscription, TopicsView

MAX_PRINCIPALS = 1000
"""Whose rights are remembered, two bits for each topic; those of further ones are asked for again."""


class Subscriptions:
    """The topics that exist, and the subscriptions that members have. A subscription goes with its last member."""

    def __init__(self, topics: TopicsView, on_unknown: Callable[[], object] = lambda: None) -> None:
        """`on_unknown` is called if it is not known what the pattern of a member stands for, as after a start."""
        self._view = topics
        self._on_unknown = on_unknown
        self._topics: list[KnownTopic | None] = []
        """By the number of their bit; None for one that is free."""
        self._numbers: dict[str, int] = {}
        """Of the bits, by name."""
        self._free: list[int] = []
        self._all = NO_TOPICS
        self._patterns: WeakValueDictionary[str, Pattern] = WeakValueDictionary()
        self._known: WeakValueDictionary[tuple[tuple[str, ...], str, str], Subscription] = WeakValueDictionary()
        self._describable: dict[str, tuple[int, int]] = {}
        """By principal: the topics that were looked at, and those of them that it may describe."""
        self.version = 0
        """Rises with each change of what any subscription stands for."""
        self.changed(topics.names())

    # --- changes ----------------------------------------------------------------------------------------------------

    def changed(self, names: Iterable[str]) -> None:
        """Take in that topics of these names were created, recreated or deleted, or got more partitions."""
        for name in names:
            number = self._numbers.get(name)
            old = None if number is None else self._topics[number]
            new = self._view.by_name(name)
            if new == old:
                continue
            self.version += 1
            if old is not None and (new is None or new.topic_id != old.topic_id):
                self._remove(name)
            if new is not None:
                self._put(name, new)

    def _put(self, name: str, topic: KnownTopic) -> None:
        number = self._numbers.get(name)
        if number is not None:
            self._topics[number] = topic
            return
        if self._free:
            number = self._free.pop()
            self._topics[number] = topic
        else:
            number = len(self._topics)
            self._topics.append(topic)
        self._numbers[name] = number
        self._all |= 1 << number
        for pattern in self._patterns.values():
            pattern.unmatched |= 1 << number

    def _remove(self, name: str) -> None:
        number = self._numbers.pop(name)
        others = ~(1 << number)
        self._topics[number] = None
        self._free.append(number)
        self._all &= others
        for pattern in self._patterns.values():
            pattern.matched &= others
            pattern.unmatched &= others
        self._describable = {
            principal: (seen & others, allowed & others) for principal, (seen, allowed) in self._describable.items()
        }

    def rights_changed(self) -> None:
        """Take in that principals may describe other topics than before."""
        self._describable.clear()
        self.version += 1

    # --- patterns ---------------------------------------------------------------------------------------------------

    def pattern(self, text: str) -> Pattern:
        """Return what is known of a pattern; it is remembered while the result, or a member, is kept."""
        found = self._patterns.get(text)
        if found is None:
            found = self._patterns[text] = Pattern(text, self._all)
        return found

    def patterns(self) -> list[Pattern]:
        return list(self._patterns.values())

    def compared(self, pattern: Pattern, topics: Iterable[KnownTopic], matching: Collection[str]) -> None:
        """Note that of `topics` those with the names in `matching` match, unless they were deleted meanwhile."""
        for topic in topics:
            number = self._numbers.get(topic.name)
            found = None if number is None else self._topics[number]
            if number is not None and found is not None and found.topic_id == topic.topic_id:
                pattern.unmatched &= ~(1 << number)
                if topic.name in matching:
                    pattern.matched |= 1 << number
        pattern.is_known = True
        self.version += 1

    # --- members ----------------------------------------------------------------------------------------------------

    def of(self, member: Member) -> Subscription:
        if member.subscription is None:
            member.subscription = self._subscription(member.settings)
        return member.subscription

    def _subscription(self, settings: MemberValue) -> Subscription:
        principal = settings.principal if settings.pattern else ""
        key = settings.topics, settings.pattern, principal
        found = self._known.get(key)
        if found is None:
            pattern = self.pattern(settings.pattern) if settings.pattern else None
            found = self._known[key] = Subscription(settings.topics, pattern, principal)
            if pattern is not None and not pattern.is_known:
                self._on_unknown()
        return found

    def is_known(self, member: Member) -> bool:
        """Return whether it is known what the member's pattern stands for."""
        pattern = self.of(member).pattern
        return pattern is None or pattern.is_known

    def topics_of(self, member: Member) -> int:
        """Return the topics that a member stands for. Of those that match its pattern, it may describe all."""
        found = self.of(member)
        if found.version != self.version:
            found.topics = NO_TOPICS
            for name in found.names:
                if name in self._numbers:
                    found.topics |= 1 << self._numbers[name]
            if found.pattern is not None:
                found.topics |= self._described(found.principal, found.pattern.matched)
            found.version = self.version
        return found.topics

    def _described(self, principal: str, topics: int) -> int:
        """Return those of `topics` that the principal may describe: asked once for each."""
        seen, allowed = self._describable.get(principal, (NO_TOPICS, NO_TOPICS))
        unseen = topics & ~seen
        if unseen:
            for bit, topic in self.topics(unseen):
                if self._view.may_describe(principal, topic.name):
                    allowed |= bit
            if len(self._describable) >= MAX_PRINCIPALS:
                self._describable.clear()
            self._describable[principal] = seen | unseen, allowed
        return topics & allowed

    # --- sets of topics ---------------------------------------------------------------------------------------------

    def topics(self, topics: int) -> Iterator[tuple[int, KnownTopic]]:
        """Iterate over the topics in a set, each with its bit."""
        for bit in bits_of(topics):
            topic = self._topics[bit.bit_length() - 1]
            assert topic is not None
            yield bit, topic

    def is_in(self, topics: int, topic: str) -> bool:
        """Return whether the topic of this name exists, and is in a set."""
        number = self._numbers.get(topic)
        return number is not None and topics >> number & 1 != 0


def bits_of(topics: int) -> Iterator[int]:
    while topics:
        bit = topics & -topics
        yield bit
        topics ^= bit
