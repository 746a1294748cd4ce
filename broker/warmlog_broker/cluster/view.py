"""What one broker knows of its cluster: all keys of etcd at one revision, and what follows from them.

A revision is applied as a whole, then those who listen are told. The view may be late, but it never skips a revision
and never goes back: an etcd that does is not believed any more, and the view is frozen.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from msgspec import Struct, field

from warmlog_broker.cluster.keys import (
    FEATURE_LEVEL,
    ClusterValue,
    Keys,
    OrderValue,
    ProducerIdsValue,
    QuotaValue,
    Registration,
    RulesValue,
    SecretValue,
    SettingsValue,
    TopicValue,
    UserValue,
    from_bytes,
    unquoted,
)
from warmlog_broker.cluster.records import PartitionKey, Seen
from warmlog_broker.etcd.coordination import (
    Change,
    Compacted,
    Coordination,
    CoordinationError,
    Item,
    Revision,
    WentBack,
    prefix_end,
)
from warmlog_broker.metadata.metadata_log import ClusterCreated, ClusterState, TopicCreated, UserAltered
from warmlog_broker.replica.cluster_view import NO_LEADER, BrokerAddress, Leadership
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replication import events as ev
from warmlog_broker.replication import record as records
from warmlog_broker.replication.record import PartitionRecord
from warmlog_protocol.errors import UnsupportedVersion, WarmlogError

PAUSE_S = 0.5
"""Before etcd is listed again."""

_log = logging.getLogger(__name__)


class Applied(Struct):
    """What one revision, or a listing, has changed."""

    topics: set[str] = field(default_factory=set)
    """Names of topics that were created, altered or deleted."""
    records: dict[PartitionKey, Seen | None] = field(default_factory=dict)
    """Records that are new or changed; None: deleted."""
    before: dict[PartitionKey, PartitionRecord] = field(default_factory=dict)
    """What those that are changed were."""
    orders: set[PartitionKey] = field(default_factory=set)
    """Partitions of which an operator wants something else than before."""
    is_drained: bool = False
    """Whether other nodes than before are drained."""
    are_sessions: bool = False
    """Whether the registered brokers have changed."""
    is_access: bool = False
    """Whether users, rules about rights or quotas have."""
    are_settings: bool = False
    """Whether the settings of all brokers have."""


class Registered(Struct, frozen=True):
    """A broker that is alive, under its broker epoch."""

    value: Registration
    broker_epoch: int


class View:
    """The facts of one cluster, and the brokers that are alive."""

    def __init__(self, etcd: Coordination | None, keys: Keys, node: int) -> None:
        """Without etcd it has only what `take` is given."""
        self.keys = keys
        self.node = node
        self.state = ClusterState()
        self.revision = 0
        """That of `state`, and of everything here."""
        self.changed = 0
        """The last revision that changed more than registrations and marks of disks."""
        self.generation = 0
        self.level = 0
        """The feature level."""
        self.items: dict[str, Item] = {}
        self.records: dict[PartitionKey, Seen] = {}
        self.brokers: dict[int, Registered] = {}
        self.nodes: set[int] = set()
        """All brokers that the cluster has: those that are away, too."""
        self.orders: dict[PartitionKey, OrderValue] = {}
        self.drained: set[int] = set()
        """Nodes that shall lead nothing."""
        self.deleted: set[bytes] = set()
        """Ids of topics that were deleted."""
        self.frozen = ""
        """Why etcd is not believed any more; empty while it is."""
        self.on_applied: list[Callable[[Applied], None]] = []
        self._etcd = etcd
        self._moved = asyncio.Event()

    async def read(self) -> None:
        """List everything, and apply what is new of it; the view is frozen if etcd has gone back.

        Raises Unavailable, Refused; WarmlogError for a value that this version cannot read.
        """
        assert self._etcd is not None
        listing = await self._etcd.range(self.keys.prefix, prefix_end(self.keys.prefix))
        present = {item.key: item for item in listing.items}
        older = [key for key, item in present.items() if item.changed < self.changed_at(key)]
        if listing.revision < self.revision or older:
            self.freeze(f"it is at revision {listing.revision}, and was at {self.revision}")
            return
        gone = [Change(key, None) for key in self.items if key not in present]
        new = [Change(key, item) for key, item in present.items() if item.changed > self.changed_at(key)]
        self.take(Revision(listing.revision, gone + new))

    async def follow(self) -> None:
        """Apply what comes after the listing, for as long as the broker runs."""
        while not self.frozen:
            assert self._etcd is not None
            try:
                async for revision in self._etcd.watch(self.keys.prefix, self.revision):
                    self.take(revision)
            except Compacted as error:
                _log.warning("etcd is listed again: %s", error)
            except WentBack as error:
                self.freeze(str(error))
                return
            except WarmlogError as error:
                _log.error("etcd cannot be followed, trying again: %s", error)
            except Exception:
                _log.exception("etcd cannot be followed, trying again: a bug")
            await asyncio.sleep(PAUSE_S)
            try:
                await self.read()
            except CoordinationError as error:
                _log.warning("etcd cannot be listed, trying again: %s", error)
            except Exception as error:
                _log.exception("what is in etcd cannot be read: %s", error)

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Read everything, and follow what changes until the end of the block. Raises as `read`."""
        await self.read()
        following = asyncio.create_task(self.follow())
        try:
            yield
        finally:
            following.cancel()
            await asyncio.wait([following])

    def freeze(self, reason: str) -> None:
        """Believe nothing more of etcd, and write nothing: roles stay as they are."""
        self.frozen = reason
        _log.critical(
            "ETCD HAS GONE BACK: %s. This broker goes on with what it knows, and changes nothing; restore etcd's "
            "latest data and restart the brokers, or stop them and run `warmlog cluster recover`",
            reason,
        )
        self._wake()

    async def reached(self, revision: int) -> None:
        """Return once all up to `revision` is applied, or the view is frozen."""
        while self.revision < revision and not self.frozen:
            await self.moved()

    async def moved(self) -> None:
        """Return when another revision was applied, or the view is frozen."""
        await self._moved.wait()

    def changed_at(self, key: str) -> int:
        """Return the revision at which a key was last changed; 0 if it does not exist."""
        item = self.items.get(key)
        return 0 if item is None else item.changed

    def here(self, topic: TopicCreated) -> list[int]:
        """Return the partitions of a topic of which this broker has a replica."""
        return [
            number
            for number in range(topic.partitions)
            if (seen := self.records.get(PartitionKey(topic.topic_id, number))) is not None
            and self.node in seen.record.replicas
        ]

    def racks(self) -> dict[int, str]:
        """Return the racks of the brokers that may have replicas of new topics."""
        return {node: each.value.rack for node, each in self.brokers.items() if each.value.is_ready}

    def sessions(self) -> ev.Sessions:
        """Return the registered brokers as replicas know them."""
        return {node: _session(each) for node, each in self.brokers.items()}

    def take(self, revision: Revision) -> None:
        """Apply changes. WarmlogError if one cannot be read: then all are applied but that one.

        None is applied, and the view is frozen, if the key of the cluster is gone or another one: its topics were not
        deleted, but etcd's data was.
        """
        known = self.items.get(self.keys.cluster)
        for key, item in revision.changes:
            if key == self.keys.cluster and known is not None and (item is None or item.created != known.created):
                self.freeze(f"{key} was deleted" if item is None else f"{key} was created again")
                return
        if any(self.keys.parts(change.key)[0] not in ("brokers", "nodes") for change in revision.changes):
            self.changed = revision.revision
        applied, failure = Applied(), None
        for change in revision.changes:
            try:
                self._apply(change, applied)
            except WarmlogError as error:
                failure = error
            if change.item is None:
                self.items.pop(change.key, None)
            else:
                self.items[change.key] = change.item
        self.revision = revision.revision
        for told in self.on_applied:
            try:
                told(applied)
            except Exception:
                _log.exception("a part of the broker does not take in what etcd has: a bug")
        self._wake()
        if failure is not None:
            raise failure

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def _apply(self, change: Change, applied: Applied) -> None:
        """Take over what a key says now, before `items` has it."""
        kind, *rest = self.keys.parts(change.key)
        match kind, rest:
            case "partitions" | "orders", (topic_id, number):
                apply = self._apply_record if kind == "partitions" else self._apply_order
                apply(PartitionKey(bytes.fromhex(topic_id), int(number)), change, applied)
            case "brokers", (node,):
                self._apply_broker(int(node), change)
                applied.are_sessions = True
            case "topics", (name,):
                self._apply_topic(name, change)
                applied.topics.add(name)
            case "nodes" | "drained", (node,):
                known = self.nodes if kind == "nodes" else self.drained
                (known.discard if change.item is None else known.add)(int(node))
                applied.is_drained |= kind == "drained"
            case "deleted", (topic_id,):
                (self.deleted.discard if change.item is None else self.deleted.add)(bytes.fromhex(topic_id))
            case "producer_ids", () if change.item is not None:
                self.state.next_producer_id = from_bytes(change.key, change.item.value, ProducerIdsValue).next
            case "settings", () if change.item is not None:
                self.state.settings_of_all = from_bytes(change.key, change.item.value, SettingsValue).settings
                applied.are_settings = True
            case "cluster", () if change.item is not None:
                value = from_bytes(change.key, change.item.value, ClusterValue)
                self.generation, self.level = value.generation, value.level
                if value.level > FEATURE_LEVEL:
                    raise UnsupportedVersion(
                        f"the cluster has the feature level {value.level}, and this version knows {FEATURE_LEVEL}: "
                        "install a newer version"
                    )
                self.state.cluster = ClusterCreated(self.keys.cluster_id, self.node, value.created_ms)
            case "user_secret" | "users" | "acls" | "quotas", _:
                self._apply_access(kind, rest, change)
                applied.is_access = True

    def _apply_record(self, key: PartitionKey, change: Change, applied: Applied) -> None:
        epochs = self.state.leader_epochs.setdefault(key.topic_id, {})
        if change.item is None:
            self.records.pop(key, None)
            epochs.pop(key.number, None)
            if not epochs:
                del self.state.leader_epochs[key.topic_id]
            applied.records[key] = None
            return
        record = records.from_bytes(change.item.value)
        if (known := self.records.get(key)) is not None:
            applied.before[key] = known.record
        applied.records[key] = self.records[key] = Seen(record, change.item.changed)
        epochs[key.number] = record.leader_epoch

    def _apply_order(self, key: PartitionKey, change: Change, applied: Applied) -> None:
        self.orders.pop(key, None)
        if change.item is not None:
            self.orders[key] = from_bytes(change.key, change.item.value, OrderValue)
        applied.orders.add(key)

    def _apply_broker(self, node: int, change: Change) -> None:
        if change.item is None:
            self.brokers.pop(node, None)
        else:
            value = from_bytes(change.key, change.item.value, Registration)
            self.brokers[node] = Registered(value, change.item.created)

    def _apply_topic(self, name: str, change: Change) -> None:
        if change.item is None:
            self.state.topics.pop(name, None)
            return
        value = from_bytes(change.key, change.item.value, TopicValue)
        self.state.topics[name] = TopicCreated(
            name,
            bytes.fromhex(value.id),
            value.partitions,
            value.settings,
            is_internal=value.is_internal,
            replication_factor=value.replication_factor,
        )

    def _apply_access(self, kind: str, rest: list[str], change: Change) -> None:
        state, item = self.state, change.item
        match kind, [unquoted(part) for part in rest]:
            case "user_secret", _:
                state.user_secret = b"" if item is None else from_bytes(change.key, item.value, SecretValue).secret
            case "users", [name] if name is not None:
                state.users.pop(name, None)
                if item is not None:
                    user = from_bytes(change.key, item.value, UserValue)
                    state.users[name] = UserAltered(
                        name, user.credentials, user.is_token, user.changed_ms, user.previous, user.previous_end_ms
                    )
            case "quotas", [user_name, client_id]:
                state.quotas.pop((user_name, client_id), None)
                if item is not None:
                    state.quotas[user_name, client_id] = from_bytes(change.key, item.value, QuotaValue).limits
            case "acls", _:
                if (old := self.items.get(change.key)) is not None:
                    for rule in from_bytes(change.key, old.value, RulesValue).rules:
                        state.acls.pop(rule, None)
                if item is not None:
                    state.acls |= dict.fromkeys(from_bytes(change.key, item.value, RulesValue).rules)


def _session(registered: Registered) -> ev.Session:
    value = registered.value
    return ev.Session(registered.broker_epoch, value.is_ready, value.was_clean, value.rack, value.has_room)


class EtcdClusterView:
    """The cluster as clients see it: this broker and those that are registered, and the records of partitions."""

    def __init__(self, view: View, described: Registration) -> None:
        self.cluster_id = view.keys.cluster_id
        self.node_id = view.node
        self._view = view
        self._described = described

    def brokers(self, listener: str) -> list[BrokerAddress]:
        """As `ClusterView.brokers`: those that have a listener of this name.

        This broker is always one, also while it registers again: clients of Kafka's give up if there is none.
        """
        values = {self.node_id: self._described} | {node: each.value for node, each in self._view.brokers.items()}
        return [
            BrokerAddress(node, *value.endpoints[listener], value.rack)
            for node, value in sorted(values.items())
            if listener in value.endpoints
        ]

    def leadership(self, topic_id: bytes, number: int, _here: Partition | None) -> Leadership:
        """As `ClusterView.leadership`. A leader that is not registered leads no longer."""
        seen = self._view.records.get(PartitionKey(topic_id, number))
        if seen is None:
            return Leadership(NO_LEADER, -1, [], [])
        record = seen.record
        leader = record.leader if record.leader in self._view.brokers else NO_LEADER
        return Leadership(leader, record.leader_epoch, list(record.replicas), list(record.isr))
