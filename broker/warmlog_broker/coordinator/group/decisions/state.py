"""What the records of one partition of `__groups` result in: groups with members, targets and committed offsets.

Fields that are not in the records are *soft*: they are set by `Groups.heard` and `Groups.start_timers`, are rebuilt
after a load, and do not count when two states are compared.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.coordinator.classic import events, phases
from warmlog_broker.coordinator.classic import state as classic
from warmlog_broker.coordinator.classic.consumer_protocol import CONSUMER
from warmlog_broker.coordinator.framework.decision import OwnedState, PartitionId, Record, Value, holds_anything
from warmlog_broker.coordinator.group.decisions import records
from warmlog_protocol.errors import FencedInstanceId, InvalidGroupId, TooManyGroups, UnknownMemberId
from warmlog_protocol.messages.coordinators.groups import TopicPartitions

K = TypeVar("K")
V = TypeVar("V", bound=Value)

NO_TOPICS = 0
"""A set of topics is an integer, see `decisions/subscriptions`."""

MAX_NAME_BYTES = 249
"""Of a group, a member id, an instance id, a client id and a pattern: as of topics."""

GROUP_BYTES = 1500
"""What a group takes in memory, about, without what `held_bytes` counts."""


def held_bytes(value: Value | None) -> int:
    """Return what a value takes in memory, about; 0 for None. Only what a client can make large or many counts."""
    match value:
        case records.OffsetValue():
            return 400 + len(value.metadata) + len(value.topic)
        case records.MemberValue():
            pattern_bytes = 8192 if value.pattern else 0  # two bits for each topic
            return 2500 + pattern_bytes + sum(len(name) + 60 for name in value.topics)
        case records.PendingValue():
            return 400 + sum(held_bytes(each.value) for each in value.offsets)
        case records.TargetValue():
            return sum(250 + len(topic.name) + 400 * topic.partitions for topic in value.topics)
        case classic.SavedRebalance():
            return classic.held_bytes(value.members)
    return 0


class Limits(NamedTuple):
    """What bounds groups."""

    config: BrokerConfig = BrokerConfig()
    may_hold: Callable[[str, int], None] = holds_anything
    """See `Holdings.check`."""
    other_groups: int = 0
    """How many there are beside those of one `Groups`."""


class TopicsView(Protocol):
    """The topics of the cluster, without internal ones."""

    def names(self) -> Iterable[str]: ...

    def may_describe(self, principal: str, name: str) -> bool:
        """Return whether the principal of a member may know of the topic."""
        ...

    def by_name(self, name: str) -> records.KnownTopic | None:
        """Return the topic that has this name now."""
        ...

    def by_id(self, topic_id: bytes) -> records.KnownTopic | None:
        """Return the topic with this id; None if it was deleted."""
        ...

    def log_end(self, partition: PartitionId) -> int | None:
        """Return the log end offset of a partition that exists; None if it is not known now."""
        ...


@dataclass(eq=False)
class Pattern:
    """A pattern that members or requests use, and what it stands for so far."""

    text: str
    unmatched: int
    """Topics that it was not compared with yet."""
    matched: int = NO_TOPICS
    is_known: bool = False
    """Whether it was compared with all topics that existed when it was first used."""
    problem: str = ""
    """Why it is not matched any more: it stands for what it has matched until then."""


@dataclass(eq=False)
class Subscription:
    """What members with the same names, pattern and principal stand for: `decisions/subscriptions`."""

    names: tuple[str, ...]
    pattern: Pattern | None
    principal: str
    topics: int = NO_TOPICS
    """As of `version`: see `Subscriptions.topics_of`."""
    version: int = -1


@dataclass(slots=True)
class Member:
    """A member. It holds what it is assigned and what it is revoking: these belong to it and to no other member."""

    member_id: str
    settings: records.MemberValue = field(default_factory=records.MemberValue)
    """As it gave them: its ids, subscription and timeouts."""
    target: frozenset[PartitionId] = frozenset()
    """What the target of the group gives to it; a part may still be held by others."""
    epoch: int = 0
    """The epoch of the last target that it was told of. Each change that takes partitions away raises it."""
    previous_epoch: int = 0
    assigned: dict[PartitionId, int] = field(default_factory=dict)
    """What it may own, with the member epochs in which it was assigned."""
    revoking: dict[PartitionId, int] = field(default_factory=dict)
    """What it was told to give up in `epoch`, until it has confirmed that."""

    owned: frozenset[PartitionId] | None = field(default=None, compare=False)
    """Soft: what it said in a heartbeat of `epoch` that it owns; None if it has not, since the load."""
    heard_ms: int = field(default=0, compare=False)
    """Soft: the time of the last heartbeat, or of the load."""
    revoking_since_ms: int | None = field(default=None, compare=False)
    """Soft: since when it has something to give up."""
    commit_sequence: int = field(default=0, compare=False)
    """Soft: the highest sequence number of its commits."""
    subscription: Subscription | None = field(default=None, compare=False)
    """Soft: what `settings` stand for; None if that was not asked for yet. See `Subscriptions.of`."""

    def holds(self, partition: PartitionId) -> bool:
        return partition in self.assigned or partition in self.revoking

    def is_settled(self, target_epoch: int) -> bool:
        """Return whether it has exactly what the target of `target_epoch` gives to it."""
        return self.epoch >= target_epoch and not self.revoking and self.assigned.keys() == self.target

    def deadline_ms(self) -> int:
        """Return the time at which it is to be removed, if it is not heard of before: `expire_member`."""
        deadline = self.heard_ms + self.settings.session_timeout_ms
        if self.revoking_since_ms is not None:
            deadline = min(deadline, self.revoking_since_ms + self.settings.rebalance_timeout_ms)
        return deadline


class Reader(Protocol):
    """A connection that reads with a group."""

    @property
    def is_over(self) -> bool: ...


@dataclass(slots=True)
class Group:
    """A group. One that has committed offsets only, from outside, has the epoch 0."""

    name: str
    epoch: int = 0
    """Rises with each change of the members, their subscriptions, or the partitions that these stand for."""
    empty_since_ms: int = -1
    """When the last member left, or, without members, a reader was noted as connected."""
    owner: str = ""
    """The principal that created it."""
    size_bytes: int = GROUP_BYTES
    """What it takes in memory, about."""
    target_epoch: int = 0
    """The group's epoch when the target was computed."""
    assignor: str = ""
    topics: dict[bytes, records.KnownTopic] = field(default_factory=dict)
    """By id: the topics that the target was computed for, and deleted ones of which members still hold partitions."""
    members: dict[str, Member] = field(default_factory=dict)
    offsets: dict[PartitionId, records.OffsetValue] = field(default_factory=dict)
    pending: dict[int, records.PendingValue] = field(default_factory=dict)
    """By producer id: what open transactions commit, and the epochs in which ended ones have."""

    saved: classic.SavedRebalance | None = None
    """The members of Kafka's classic protocol, as of the last assignment: a group has these or the other `members`."""

    rebalance: classic.Rebalance | None = field(default=None, compare=False)
    """Soft, except for what is `saved`: the members of the classic protocol; None if there are none."""
    soft_bytes: int = field(default=0, compare=False)
    """What `rebalance` takes in memory, about."""
    instances: dict[str, str] = field(default_factory=dict)
    """Index: member ids of static members by their instance ids."""
    owners: dict[PartitionId, str] = field(default_factory=dict)
    """Index: the id of the member that holds a partition. A partition that is not in it is free."""
    away: set[str] = field(default_factory=set, compare=False)
    """Soft: the ids of members of which nothing was heard since the load, or since the connection ended in which one
    waited for news."""
    has_news: bool = field(default=False, compare=False)
    """Soft: a target was assigned, or a member has released something or is gone: what others may wait for."""
    reader: Reader | None = field(default=None, compare=False)
    """Soft: the connection that was the last to fetch or commit offsets of partitions."""
    used_ms: int = field(default=-1, compare=False)
    """Soft: when that connection has done so, or was last seen to be open."""
    target_version: int = field(default=-1, compare=False)
    """Soft: `Subscriptions.version` as of which the target is up to date, if the members are the same."""

    @property
    def total_bytes(self) -> int:
        """What it takes in memory, about, with its classic members."""
        return self.size_bytes + self.soft_bytes

    @property
    def is_classic(self) -> bool:
        """Return whether it has members of Kafka's classic protocol."""
        return self.rebalance is not None and bool(self.rebalance.members)

    @property
    def protocol_type(self) -> str:
        """Return what the members are: "consumer", or what classic members call themselves; empty without any."""
        if self.rebalance is not None and self.rebalance.members:
            return self.rebalance.protocol_type
        return CONSUMER if self.members else ""

    @property
    def member_count(self) -> int:
        return len(self.members) or (len(self.rebalance.members) if self.rebalance is not None else 0)

    @property
    def state(self) -> str:
        """Return "empty", "assigning", "reconciling", "stable", or for classic members "preparing" or "completing"."""
        if not self.members:
            return "empty" if self.rebalance is None else self.rebalance.phase.value
        if self.target_epoch < self.epoch:
            return "assigning"
        if all(member.is_settled(self.target_epoch) for member in self.members.values()):
            return "stable"
        return "reconciling"

    def topic_partitions(self, partitions: Iterable[PartitionId]) -> list[TopicPartitions]:
        """Return partitions that members hold or the target names as a message has them."""
        return [
            TopicPartitions(topic_id, self.topics[topic_id].name, numbers)
            for topic_id, numbers in records.by_topic(partitions).items()
        ]

    def is_bare(self) -> bool:
        """Return whether no record of it is left."""
        has_members = self.members or self.saved
        return not (self.epoch or self.target_epoch or has_members or self.offsets or self.pending or self.owner)

    def replay(self, key: records.OfGroup, value: Any) -> None:
        """Change what is known by a record; None for a tombstone."""
        match key:
            case records.OffsetKey():
                self._replace(self.offsets, PartitionId(key.topic_id, key.partition), value)
            case records.PendingKey():
                self._replace(self.pending, key.producer_id, value)
            case records.GroupKey():
                group = value or records.GroupValue()
                self.epoch, self.empty_since_ms, self.owner = group.epoch, group.empty_since_ms, group.owner
            case records.TargetKey():
                target = value or records.TargetValue()
                self.target_epoch, self.assignor, self.has_news = target.epoch, target.assignor, True
                self.changed_size(records.TargetValue(topics=tuple(self.topics.values())), target)
                self.topics = {topic.topic_id: topic for topic in target.topics}
            case records.MemberKey():
                _replay_member(self, key.member_id, value)
            case records.ShareKey():
                _replay_share(self, key.member_id, value)
            case records.AssignmentKey():
                _replay_assignment(self, key.member_id, value)
            case records.ClassicKey():
                self.changed_size(self.saved, value)
                self.saved = value

    def _replace(self, known: dict[K, V], key: K, value: V | None) -> None:
        old = known.pop(key, None) if value is None else known.get(key)
        if value is not None:
            known[key] = value
            self.size_bytes += held_bytes(value)
        if old is not None:
            self.size_bytes -= held_bytes(old)

    def changed_size(self, old: Value | None, new: Value | None) -> None:
        """Note that `new` has replaced `old`."""
        self.size_bytes += held_bytes(new) - held_bytes(old)


class Groups(OwnedState[Group]):
    """The groups of one partition of `__groups`: what a replay of its records results in."""

    def __init__(self) -> None:
        super().__init__()
        self.beginning: set[str] = set()
        """Soft: names of groups whose first records are not durable yet. They count for the limit."""
        self.steps: dict[str, phases.Step] = {}
        """Soft: by group, what happens to its classic members once its records are durable: at most one."""

    def member(self, group: str, member_id: str) -> Member | None:
        found = self._found.get(group)
        return found.members.get(member_id) if found else None

    def replay(self, record: Record) -> None:
        """Change the state by the next record of the log. ValueError for a damaged record."""
        entry = records.read(record)
        if entry is None:
            return
        key, value = entry
        group = self._found.get(key.group)
        if group is not None:
            owner, before_bytes = group.owner, group.total_bytes
        elif value is None:
            return
        else:
            owner, before_bytes = "", 0
            group = self._found[key.group] = Group(key.group)
            self.beginning.discard(key.group)
        group.replay(key, value)
        if value is None and group.is_bare():
            del self._found[key.group]
            self._recount(owner, before_bytes, owner, 0)
        else:
            self._recount(owner, before_bytes, group.owner, group.total_bytes)

    def heard(
        self,
        group: str,
        member_id: str,
        *,
        now_ms: int,
        epoch: int = 0,
        owned: Iterable[TopicPartitions] | None = None,
        commit_sequence: int = 0,
    ) -> None:
        """Note a heartbeat or commit that was accepted, once its records are applied.

        `epoch`, `owned`: of the heartbeat's request. `commit_sequence`: of a commit.
        """
        found = self._found.get(group)
        if found is not None and found.rebalance is not None:
            found.rebalance = events.heard(found.rebalance, member_id, now_ms=now_ms)
        member = self.member(group, member_id)
        if member is None:
            return
        member.heard_ms = max(member.heard_ms, now_ms)
        self._found[group].away.discard(member_id)
        member.commit_sequence = max(member.commit_sequence, commit_sequence)
        if owned is not None and epoch == member.epoch:
            member.owned = as_partitions(owned)
        _watch_revocation(member, now_ms)

    def happened(self, name: str, step: phases.Step) -> None:
        """Set what the classic members of a group are after a step, whose records are applied."""
        group = self._found.get(name)
        if group is None:
            return
        if step.is_quiet:
            group.rebalance = step.after
        else:
            self._set_rebalance(group, step.after)

    def _set_rebalance(self, group: Group, rebalance: classic.Rebalance) -> None:
        more_bytes = classic.more_bytes(group.rebalance or classic.Rebalance(), rebalance)
        group.rebalance = rebalance if rebalance.members or rebalance.given_ids else None
        group.soft_bytes += more_bytes
        self._hold(group.owner, more_bytes)

    def start_timers(self, now_ms: int) -> None:
        """Start the timers of all members, in full: after a load."""
        for group in self:
            if group.saved is not None:
                self._set_rebalance(group, classic.loaded(group.saved, now_ms))
            for member in group.members.values():
                member.heard_ms = now_ms
                member.revoking_since_ms = now_ms if member.revoking else None


def as_partitions(topics: Iterable[TopicPartitions]) -> frozenset[PartitionId]:
    return frozenset(PartitionId(topic.topic_id, number) for topic in topics for number in topic.partitions)


def _watch_revocation(member: Member, now_ms: int) -> None:
    if not member.revoking:
        member.revoking_since_ms = None
    elif member.revoking_since_ms is None:
        member.revoking_since_ms = now_ms


def _replay_member(group: Group, member_id: str, value: records.MemberValue | None) -> None:
    old = group.members.get(member_id)
    if old is not None and group.instances.get(old.settings.instance_id) == member_id:
        del group.instances[old.settings.instance_id]
    if value is None:
        if old is not None:
            group.changed_size(old.settings, None)
            _hold(group, old, {}, {})
            del group.members[member_id]
            group.away.discard(member_id)
            group.has_news = True
        return
    member = _member(group, member_id)
    group.changed_size(member.settings, value)
    member.settings, member.subscription = value, None
    if value.instance_id:
        group.instances[value.instance_id] = member_id


def _member(group: Group, member_id: str) -> Member:
    """Return the member; in a compacted log what belongs to one may come before its settings."""
    found = group.members.get(member_id)
    if found is None:
        found = group.members[member_id] = Member(member_id)
        group.changed_size(None, found.settings)
        group.away.add(member_id)
    return found


def _replay_share(group: Group, member_id: str, value: records.ShareValue | None) -> None:
    if value is None:
        if member_id in group.members:
            group.members[member_id].target = frozenset()
        return
    _member(group, member_id).target = records.unpack_share(value)


def _replay_assignment(group: Group, member_id: str, value: records.AssignmentValue | None) -> None:
    if value is None:
        if member_id in group.members:
            _hold(group, group.members[member_id], {}, {})
        return
    member = _member(group, member_id)
    if value.epoch != member.epoch:
        member.owned = member.revoking_since_ms = None
    member.epoch, member.previous_epoch = value.epoch, value.previous_epoch
    _hold(group, member, records.unpack_epochs(value.assigned), records.unpack_epochs(value.revoking))


def _hold(group: Group, member: Member, assigned: dict[PartitionId, int], revoking: dict[PartitionId, int]) -> None:
    """Let `member` hold these partitions, and no others."""
    for partition in (*member.assigned, *member.revoking):
        if group.owners.get(partition) == member.member_id:
            del group.owners[partition]
            group.has_news |= partition not in assigned and partition not in revoking
    member.assigned, member.revoking = assigned, revoking
    group.owners.update(dict.fromkeys((*assigned, *revoking), member.member_id))


def check_group_id(group: str) -> None:
    """Raise InvalidGroupId if `group` cannot be the name of a group."""
    if not group:
        raise InvalidGroupId("the name of the group is empty")
    size = len(group.encode())
    if size > MAX_NAME_BYTES:
        raise InvalidGroupId(f"a group's name of {size} bytes: at most {MAX_NAME_BYTES} are allowed")


def check_room(groups: Groups, group: Group | None, limits: Limits) -> None:
    """Raise TooManyGroups if `group`, None for a new one, would be one too many."""
    if group is None and len(groups) + limits.other_groups >= limits.config.group_max_groups:
        raise TooManyGroups("the broker has as many groups as group.max.groups allows: delete unused ones")


def created(group: Group | None, name: str, owner: str, more_bytes: int, limits: Limits) -> list[Record]:
    """Return the record of a group that begins with `more_bytes` of offsets, or none for one that gets as many more."""
    if group is not None:
        if more_bytes > 0:
            limits.may_hold(group.owner, more_bytes)
        return []
    limits.may_hold(owner, GROUP_BYTES + more_bytes)
    return [records.put(records.GroupKey(name), records.GroupValue(owner=owner))] if owner else []


def valid_member(group: Group | None, name: str, member_id: str, instance_id: str) -> Member:
    """Return the member; FencedInstanceId if another one has its instance id, UnknownMemberId if there is none."""
    holder = group.instances.get(instance_id) if group else None
    if holder is not None and holder != member_id:
        raise fenced(name, instance_id)
    member = group.members.get(member_id) if group else None
    if member is None:
        raise UnknownMemberId(f"group {name!r} has no member {member_id!r}: its session has expired, or it has left")
    return member


def fenced(group: str, instance_id: str) -> FencedInstanceId:
    """Return the error for a process that has lost its instance id to another."""
    return FencedInstanceId(f"another process has joined group {group!r} with instance id {instance_id!r}")
