"""The `ClusterStore` of a broker of a cluster: the facts are in etcd, and all brokers change them there.

A change is a transaction that compares each key it touches with what this broker has read. If its outcome is not known
it is sent again, the same, until the outcome is: the author in its values tells that an earlier one was applied. A
change is reported once the view has it.

The records of a topic are written before the topic, a part at a time, since etcd limits a transaction: they are nothing
until the topic is there. Each part compares the topic too: once it has these partitions, no late one replaces a record.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from warmlog_broker.cluster.keys import (
    AnyValue,
    DeletedValue,
    NameValue,
    ProducerIdsValue,
    QuotaValue,
    RulesValue,
    SecretValue,
    SettingsValue,
    TopicValue,
    UserValue,
    Value,
    from_bytes,
    to_bytes,
)
from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.cluster.settling import asked, new_author
from warmlog_broker.cluster.view import View
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.loader import StartRefused
from warmlog_broker.etcd.coordination import (
    ChangedAt,
    Coordination,
    Delete,
    Operation,
    Put,
    Succeeded,
    prefix_end,
)
from warmlog_broker.metadata.metadata_log import (
    AclsCreated,
    AclsDeleted,
    BrokerAltered,
    ClusterState,
    Entry,
    PartitionsAdded,
    ProducerIdsReserved,
    QuotaAltered,
    TopicAltered,
    TopicCreated,
    TopicDeleted,
    UserAltered,
    UserDeleted,
    UserSecretMade,
)
from warmlog_broker.metadata.store import DEFAULT_REPLICAS, NO_CHOICE, Changed, Replicas, Version
from warmlog_broker.replication import record as records
from warmlog_broker.replication.placement import place
from warmlog_broker.replication.record import Author, PartitionRecord
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_protocol.errors import InvalidReplicationFactor
from warmlog_protocol.messages import AclBinding

KEYS_A_TRANSACTION = 50
"""Of records, topics, or resources with rules: etcd takes 128 operations, and a topic is two."""
TOMBSTONE_MS = 30 * 86_400_000
"""A broker that was away for longer leaves the files of topics that were deleted meanwhile where they are."""


@dataclass
class Plan:
    """A transaction, with the author of its values."""

    by: Author
    compares: dict[str, ChangedAt] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)

    def put(self, compare: ChangedAt, value: Value) -> None:
        self.compares[compare.key] = compare
        self.operations.append(Put(compare.key, to_bytes(replace(value, by=self.by))))

    def delete(self, compare: ChangedAt) -> None:
        self.compares[compare.key] = compare
        self.operations.append(Delete(compare.key))


def wanted_min_isr(config: LogConfig, replicas: int) -> int:
    """Return how many replicas of a partition must have a record: as its topic says, or a majority."""
    return config.min_insync_replicas or replicas // 2 + 1


class EtcdStore:
    """The facts of a cluster in etcd, as the view has them."""

    is_alone = False

    def __init__(self, etcd: Coordination, view: View, config: BrokerConfig | None = None) -> None:
        """`config` has the settings of a topic without its own."""
        self.view = view
        self._config = config or BrokerConfig()
        self.left_open: frozenset[TopicPartition] = frozenset()
        """The partitions whose logs the last stop of this broker did not close."""
        self._etcd = etcd

    @property
    def state(self) -> ClusterState:
        return self.view.state

    @property
    def version(self) -> Version:
        """As `ClusterStore.version`: etcd's revision."""
        return self.view.revision

    async def commit(
        self, changes: Sequence[Entry], *, expected: Version | None = None, chosen: Mapping[str, Replicas] = NO_CHOICE
    ) -> None:
        """As `ClusterStore.commit`. RequestTimedOut while the outcome is not known, StorageError if etcd refuses.

        All or none, but for topics that are created, and for rules alone: of more than `KEYS_A_TRANSACTION` topics, or
        resources with rules, the first may be changed without the others.
        """
        for part in self._parts(changes):
            while not await self._committed(part, expected, chosen):
                if expected is not None:
                    raise Changed

    def _parts(self, changes: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
        """Yield the changes of one transaction after another; no two transactions change the same key."""
        match changes:
            case [AclsCreated(rules) | AclsDeleted(rules) as change]:
                by_key: dict[str, list[AclBinding]] = {}
                for rule in rules:
                    by_key.setdefault(self.view.keys.rules(rule), []).append(rule)
                groups = list(by_key.values())
                for at in range(0, len(groups), KEYS_A_TRANSACTION):
                    yield [type(change)([rule for group in groups[at : at + KEYS_A_TRANSACTION] for rule in group])]
            case _:
                are_topics = any(isinstance(change, TopicCreated) for change in changes)
                size = KEYS_A_TRANSACTION if are_topics else len(changes)
                for at in range(0, len(changes), size or 1):
                    yield changes[at : at + size]

    async def _committed(
        self, changes: Sequence[Entry], expected: Version | None, chosen: Mapping[str, Replicas]
    ) -> bool:
        """Return whether the changes were applied; the view has what they were compared with, and was not so."""
        plan = Plan(new_author(self.view.node))
        for change in changes:
            for part in self._records_of(change, expected, chosen):
                if not await self._written(part):
                    return False
            self._plan(plan, change, expected)
        return await self._written(plan)

    def here(self, topic: TopicCreated) -> Sequence[int]:
        """As `ClusterStore.here`."""
        return self.view.here(topic)

    def is_deleted(self, topic_id: bytes) -> bool:
        """As `ClusterStore.is_deleted`."""
        return topic_id in self.view.deleted

    def deleted_of(self, topic_ids: Iterable[bytes]) -> list[TopicDeleted]:
        found = []
        for topic_id in self.view.deleted.intersection(topic_ids):
            value = self._value(self.view.keys.deleted(topic_id), DeletedValue)
            found.append(TopicDeleted(topic_id, value.name, value.partitions))
        return found

    async def begin_epochs(self, latest: Mapping[TopicPartition, int]) -> None:
        """As `ClusterStore.begin_epochs`: the epochs are in the records, which change when the logs are open.

        StartRefused if the log of a partition has a later epoch than its record.
        """
        for name, epoch in latest.items():
            known = self.state.leader_epoch(self.state.topics[name.topic], name.partition)
            if epoch > known:
                raise StartRefused(
                    f"{name.directory_name} has records of the leader epoch {epoch}, and etcd knows {known} as its "
                    "latest: etcd was restored from a backup, or is another one. Restore its latest data; nothing was "
                    "changed"
                )
        self.left_open = frozenset(latest)

    @property
    def ready(self) -> Collection[int]:
        """As `ClusterStore.ready`."""
        return self.view.racks()

    def default_replicas(self) -> int:
        """As `ClusterStore.default_replicas`: refused while so few brokers are up that one lost disk loses records."""
        ready, wanted = len(self.ready), min(DEFAULT_REPLICAS, len(self.view.nodes))
        if ready <= wanted // 2:
            raise InvalidReplicationFactor(
                f"{ready} of {wanted} brokers that would have a replica are ready, and a majority is wanted: start the "
                "others, take out those that are gone by `warmlog cluster replace`, or name a replication factor"
            )
        return min(wanted, ready)

    def replication_factor(self, topic: TopicCreated) -> int:
        """As `ClusterStore.replication_factor`: as many as the first one, which may have been reassigned."""
        first = self.view.records.get(PartitionKey(topic.topic_id, 0))
        return topic.replication_factor if first is None else len(first.record.replicas) - len(first.record.removing)

    async def reserve_producer_ids(self, count: int) -> int:
        """As `ClusterStore.reserve_producer_ids`."""
        while True:
            first = self.state.next_producer_id
            plan = Plan(new_author(self.view.node))
            plan.put(self._as_read(self.view.keys.producer_ids, None), ProducerIdsValue(next=first + count))
            if await self._written(plan):
                return first

    def _as_read(self, key: str, expected: Version | None) -> ChangedAt:
        """Return the compare of a key with the view. Raises Changed if it was changed after `expected`."""
        revision = self.view.changed_at(key)
        if expected is not None and revision > expected:
            raise Changed
        return ChangedAt(key, revision)

    def _value(self, key: str, kind: type[AnyValue]) -> AnyValue:
        """Return the value of a key in the view. Raises Changed if it is not there."""
        if (item := self.view.items.get(key)) is None:
            raise Changed
        return from_bytes(key, item.value, kind)

    def _records_of(self, change: Entry, expected: Version | None, chosen: Mapping[str, Replicas]) -> Iterator[Plan]:
        """Yield the transactions that must come before the one with `change`. Raises Changed."""
        if isinstance(change, TopicCreated):
            yield from self._new_records(change, range(change.partitions), expected, chosen)
        elif isinstance(change, PartitionsAdded):
            if (topic := self.state.topics.get(change.name)) is None:
                raise Changed
            topic = replace(topic, replication_factor=self.replication_factor(topic))
            yield from self._new_records(topic, range(topic.partitions, change.partitions), expected, chosen)

    def _new_records(
        self, topic: TopicCreated, numbers: range, expected: Version | None, chosen: Mapping[str, Replicas]
    ) -> Iterator[Plan]:
        """Yield transactions with records, applied while the topic is as it is now: only what an earlier addition has
        left is replaced.
        """
        if not numbers:
            return
        unchanged = self._as_read(self.view.keys.topic(topic.name), expected)
        new = self._first_records(topic, numbers, chosen.get(topic.name, ()))
        for at in range(0, len(numbers), KEYS_A_TRANSACTION):
            plan = Plan(new_author(self.view.node), {unchanged.key: unchanged})
            for number in numbers[at : at + KEYS_A_TRANSACTION]:
                compare = self._as_read(self.view.keys.partition(topic.topic_id, number), None)
                plan.compares[compare.key] = compare
                plan.operations.append(Put(compare.key, records.to_bytes(replace(new[number], by=plan.by))))
            yield plan

    def _first_records(self, topic: TopicCreated, numbers: range, chosen: Replicas) -> dict[int, PartitionRecord]:
        """Return the records with which partitions of a topic begin."""
        factor = topic.replication_factor
        placed = [tuple(nodes) for nodes in chosen]
        if not placed:
            first = int.from_bytes(topic.topic_id[:4])
            placed = place(self.view.racks(), partitions=numbers.stop, factor=factor, first=first)[numbers.start :]
        min_isr = wanted_min_isr(LogConfig.from_settings(topic.settings, base=self._config.topic_defaults), factor)
        return {
            number: PartitionRecord(leader=nodes[0], leader_epoch=0, replicas=nodes, isr=nodes, min_isr=min_isr)
            for number, nodes in zip(numbers, placed, strict=True)
        }

    def _plan(self, plan: Plan, change: Entry, expected: Version | None) -> None:
        """Add a change to a transaction. Raises Changed if it was decided from what is not so any more."""
        match change:
            case TopicCreated() | TopicDeleted() | TopicAltered() | PartitionsAdded():
                self._plan_topic(plan, change, expected)
            case ProducerIdsReserved(next_id):
                following = ProducerIdsValue(next=max(next_id, self.state.next_producer_id))
                plan.put(self._as_read(self.view.keys.producer_ids, expected), following)
            case BrokerAltered(settings):
                plan.put(self._as_read(self.view.keys.settings, expected), SettingsValue(settings=settings))
            case AclsCreated(rules) | AclsDeleted(rules):
                self._plan_rules(plan, change, {self.view.keys.rules(rule) for rule in rules}, expected)
            case QuotaAltered(user, client_id, limits):
                compare = self._as_read(self.view.keys.quota(user, client_id), expected)
                plan.put(compare, QuotaValue(limits=limits)) if limits else plan.delete(compare)
            case UserAltered():
                value = UserValue(
                    credentials=change.credentials,
                    is_token=change.is_token,
                    changed_ms=change.changed_ms,
                    previous=change.previous,
                    previous_end_ms=change.previous_end_ms,
                )
                plan.put(self._as_read(self.view.keys.user(change.name), expected), value)
            case UserDeleted(name):
                plan.delete(self._as_read(self.view.keys.user(name), expected))
            case UserSecretMade(secret):
                plan.put(self._as_read(self.view.keys.user_secret, expected), SecretValue(secret=secret))
            case _:
                raise AssertionError(f"{change} is no fact of a cluster")

    def _plan_topic(
        self, plan: Plan, change: TopicCreated | TopicDeleted | TopicAltered | PartitionsAdded, expected: Version | None
    ) -> None:
        keys = self.view.keys
        compare = self._as_read(keys.topic(change.name), expected)
        if isinstance(change, TopicCreated):
            value = TopicValue(
                id=change.topic_id.hex(),
                partitions=change.partitions,
                replication_factor=change.replication_factor,
                settings=change.settings,
                is_internal=change.is_internal,
            )
            plan.put(compare, value)
            plan.put(self._as_read(keys.folded(change.name), expected), NameValue(name=change.name))
            return
        value = self._value(keys.topic(change.name), TopicValue)
        if value.id != change.topic_id.hex():
            raise Changed
        match change:
            case TopicAltered():
                plan.put(compare, replace(value, settings=change.settings))
            case PartitionsAdded():
                plan.put(compare, replace(value, partitions=change.partitions))
            case TopicDeleted():
                plan.delete(compare)
                plan.operations.append(Delete(keys.folded(change.name)))
                for first in (keys.partitions(change.topic_id), keys.orders(change.topic_id)):
                    plan.operations.append(Delete(first, prefix_end(first)))
                deleted = DeletedValue(name=change.name, partitions=change.partitions, deleted_ms=now_ms())
                plan.put(ChangedAt(keys.deleted(change.topic_id), 0), deleted)
                self._plan_forgetting(plan)

    def _plan_forgetting(self, plan: Plan) -> None:
        """Add the removal of one old tombstone: one is added at a time."""
        for topic_id in self.view.deleted:
            key = self.view.keys.deleted(topic_id)
            if self._value(key, DeletedValue).deleted_ms < now_ms() - TOMBSTONE_MS:
                plan.operations.append(Delete(key))
                return

    def _plan_rules(
        self, plan: Plan, change: AclsCreated | AclsDeleted, keys: Iterable[str], expected: Version | None
    ) -> None:
        for key in sorted(keys):
            item = self.view.items.get(key)
            present = {} if item is None else dict.fromkeys(from_bytes(key, item.value, RulesValue).rules)
            wanted = {rule: None for rule in change.rules if self.view.keys.rules(rule) == key}
            if isinstance(change, AclsCreated):
                rules = [*(present | wanted)]
            else:
                rules = [rule for rule in present if rule not in wanted]
            compare = self._as_read(key, expected)
            plan.put(compare, RulesValue(rules=rules)) if rules else plan.delete(compare)

    async def _written(self, plan: Plan) -> bool:
        """Return whether the transaction was applied; the view has what became of its keys."""
        compares = list(plan.compares.values())
        outcome = await asked(self._etcd, self.view, plan.by, compares, plan.operations)
        if isinstance(outcome, Succeeded):
            await self.view.reached(outcome.revision)
            return True
        await self._differs(compares, outcome.revision)
        return False

    async def _differs(self, compares: Sequence[ChangedAt], revision: int) -> None:
        """Return once the view shows that a compare did not hold, at a revision of etcd."""
        while self.view.revision < revision and not self.view.frozen:
            if any(self.view.changed_at(each.key) != each.revision for each in compares):
                return
            await self.view.moved()
