"""What a broker knows beside its logs: the entries of the metadata log, and the state that they result in.

Entries, in the order in which things happened:

=====  ====================  ========================================================================================
kind   entry                 fields
=====  ====================  ========================================================================================
1      ClusterCreated        cluster id, node id, time: always the first entry
2      TopicCreated          name, topic id (16 bytes), number of partitions, the topic's own settings, leader epoch of
                             the partitions that no LeaderEpochsBegun names, whether it is an internal topic, number
                             of replicas
3      TopicDeleted          topic id, name, number of partitions: its directories may still be there
4      TopicRemoved          topic id: the directories of a deleted topic are gone
5      ProducerIdsReserved   the next producer id that was not reserved yet
6      UncleanStart          all leader epochs rise by one. Written by 0.1.0 only, instead of LeaderEpochsBegun
10     DirectoryKnown        directory id (16 bytes), path: a data directory that belongs to the cluster
11     PartitionsAssigned    topic id, directory id, partitions: they are there, and nowhere else
12     PartitionMoved        topic id, partition, ids of its old and its new directory: what is left of it in the old
                             one is to be removed
13     DirectoryForgotten    directory id: it was removed from the configuration, and held no partition
14     LeaderEpochsBegun     topic id, leader epoch, partitions: it is in force for them
15     TopicAltered          topic id, name, all of the topic's own settings from now on
16     PartitionsAdded       topic id, name, number of partitions from now on. Their directories are created after this;
                             a smaller number takes back an addition whose directories could not be created
20     UserAltered           name, credentials (protocol sasl/credential), whether it is a token, time; the credentials
                             before these, and the time until which they are valid
21     UserDeleted           name
22     UserSecretMade        random bytes, from which the salts of users that do not exist are made
60     AclsCreated           rules (protocol messages/access/acls), none of which was there
61     AclsDeleted           rules, all of which were there
70     QuotaAltered          user or nil, client id or nil, all limits of this quota from now on, by their keys; none if
                             it was removed
80     BrokerAltered         all settings of the broker from now on that were altered while it ran
90     NodeMarked            of a broker of a cluster: incarnation and beat (replication/membership) that it writes to
                             etcd next, those that etcd has had, and the largest revision of etcd seen: each rises
91     RecoveryObeyed        topic id, partition, nonce of the last recovery for which its replica here may cut its log
92     PartitionsLeft        topic id, partitions: their replicas are on other brokers from now on
=====  ====================  ========================================================================================
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from warmlog_broker.replication.membership import NodeMarks
from warmlog_protocol.messages import AclBinding
from warmlog_protocol.sasl.credential import Credential

RULES_AN_ENTRY = 1000
"""Each has at most 6 KiB."""

Value = TypeVar("Value", bytes, int)


class Entry(msgspec.Struct, array_like=True, frozen=True, tag_field="kind"):
    """The base of all entries: on disk an array that begins with its kind."""


class ClusterCreated(Entry, frozen=True, tag=1):
    cluster_id: str
    node_id: int
    created_ms: int


class TopicCreated(Entry, frozen=True, tag=2):
    name: str
    topic_id: bytes
    partitions: int
    settings: dict[str, str]
    leader_epoch: int = 0
    is_internal: bool = False
    replication_factor: int = 1


class TopicDeleted(Entry, frozen=True, tag=3):
    topic_id: bytes
    name: str
    partitions: int


class TopicRemoved(Entry, frozen=True, tag=4):
    topic_id: bytes


class ProducerIdsReserved(Entry, frozen=True, tag=5):
    next_producer_id: int


class UncleanStart(Entry, frozen=True, tag=6):
    started_ms: int


class DirectoryKnown(Entry, frozen=True, tag=10):
    directory_id: bytes
    path: str


class PartitionsAssigned(Entry, frozen=True, tag=11):
    topic_id: bytes
    directory_id: bytes
    partitions: list[int]


class PartitionMoved(Entry, frozen=True, tag=12):
    topic_id: bytes
    partition: int
    from_id: bytes
    directory_id: bytes


class DirectoryForgotten(Entry, frozen=True, tag=13):
    directory_id: bytes


class LeaderEpochsBegun(Entry, frozen=True, tag=14):
    topic_id: bytes
    leader_epoch: int
    partitions: list[int]


class TopicAltered(Entry, frozen=True, tag=15):
    topic_id: bytes
    name: str
    settings: dict[str, str]


class PartitionsAdded(Entry, frozen=True, tag=16):
    topic_id: bytes
    name: str
    partitions: int


class UserAltered(Entry, frozen=True, tag=20):
    name: str
    credentials: list[Credential]
    is_token: bool
    changed_ms: int
    previous: list[Credential] = msgspec.field(default_factory=list)
    previous_end_ms: int = -1


class UserDeleted(Entry, frozen=True, tag=21):
    name: str


class UserSecretMade(Entry, frozen=True, tag=22):
    secret: bytes

    def __repr__(self) -> str:
        return "UserSecretMade(…)"


class AclsCreated(Entry, frozen=True, tag=60):
    rules: list[AclBinding]


class AclsDeleted(Entry, frozen=True, tag=61):
    rules: list[AclBinding]


class QuotaAltered(Entry, frozen=True, tag=70):
    user: str | None
    client_id: str | None
    limits: dict[str, int]


class BrokerAltered(Entry, frozen=True, tag=80):
    settings: dict[str, str]


class PartitionsLeft(Entry, frozen=True, tag=92):
    topic_id: bytes
    partitions: list[int]


class NodeMarked(Entry, frozen=True, tag=90):
    marks: NodeMarks


class RecoveryObeyed(Entry, frozen=True, tag=91):
    topic_id: bytes
    partition: int
    nonce: str


class ClusterState:
    """The facts about which all brokers of a cluster agree: topics, leader epochs, producer ids, users, rights."""

    def __init__(self) -> None:
        self.cluster: ClusterCreated | None = None
        self.topics: dict[str, TopicCreated] = {}
        """By name."""
        self.leader_epochs: dict[bytes, dict[int, int]] = {}
        """By topic id, for the partitions whose leader epoch is not that of their topic: see `leader_epoch`."""
        self.next_producer_id = 0
        self.users: dict[str, UserAltered] = {}
        """By name."""
        self.user_secret = b""
        self.acls: dict[AclBinding, None] = {}
        """The rules about rights, each once, in the order in which they were added."""
        self.quotas: dict[tuple[str | None, str | None], dict[str, int]] = {}
        """The limits of each quota by their keys; quotas by user and client id."""
        self.settings_of_all: dict[str, str] = {}
        """Those of all brokers that were altered while they ran. Those of a broker that is alone are its own."""

    def apply(self, entry: Entry) -> None:
        """Change the state by `entry`, if it is about the cluster."""
        match entry:
            case ClusterCreated():
                self.cluster = entry
            case ProducerIdsReserved():
                self.next_producer_id = max(self.next_producer_id, entry.next_producer_id)
            case UncleanStart():
                for name, topic in self.topics.items():
                    self.topics[name] = msgspec.structs.replace(topic, leader_epoch=topic.leader_epoch + 1)
                for epochs in self.leader_epochs.values():
                    epochs.update({partition: epoch + 1 for partition, epoch in epochs.items()})
            case LeaderEpochsBegun():
                epochs = self.leader_epochs.setdefault(entry.topic_id, {})
                epochs.update(dict.fromkeys(entry.partitions, entry.leader_epoch))
            case TopicCreated() | TopicDeleted() | TopicAltered() | PartitionsAdded():
                self._alter_topics(entry)
            case _:
                self._alter_access(entry)

    def _alter_topics(self, entry: Entry) -> None:
        match entry:
            case TopicCreated():
                self.topics[entry.name] = entry
            case TopicDeleted():
                if self._has(entry):
                    del self.topics[entry.name]
                self.leader_epochs.pop(entry.topic_id, None)
            case TopicAltered() if self._has(entry):
                self.topics[entry.name] = msgspec.structs.replace(self.topics[entry.name], settings=entry.settings)
            case PartitionsAdded() if self._has(entry):
                self.topics[entry.name] = msgspec.structs.replace(self.topics[entry.name], partitions=entry.partitions)
                _forget_from(entry.partitions, self.leader_epochs, entry.topic_id)

    def _has(self, entry: TopicDeleted | TopicAltered | PartitionsAdded) -> bool:
        """Return whether the topic of `entry` is there, and not another one of its name."""
        return entry.name in self.topics and self.topics[entry.name].topic_id == entry.topic_id

    def _alter_access(self, entry: Entry) -> None:
        match entry:
            case UserAltered():
                self.users[entry.name] = entry
            case UserDeleted():
                self.users.pop(entry.name, None)
            case UserSecretMade():
                self.user_secret = entry.secret
            case AclsCreated():
                self.acls |= dict.fromkeys(entry.rules)
            case AclsDeleted():
                for rule in entry.rules:
                    self.acls.pop(rule, None)
            case QuotaAltered():
                self.quotas.pop((entry.user, entry.client_id), None)
                if entry.limits:
                    self.quotas[entry.user, entry.client_id] = entry.limits

    def leader_epoch(self, topic: TopicCreated, partition: int) -> int:
        """Return the leader epoch in force for one partition of `topic`."""
        return self.leader_epochs.get(topic.topic_id, {}).get(partition, topic.leader_epoch)


class NodeState:
    """The facts about one broker: its data directories, what is in them, and its own settings."""

    def __init__(self) -> None:
        self.deleted: dict[bytes, TopicDeleted] = {}
        """Deleted topics, by id, whose directories may still be there."""
        self.directories: dict[bytes, str] = {}
        """Paths of the data directories by their ids."""
        self.assignments: dict[bytes, dict[int, bytes]] = {}
        """By topic id: the directory of each partition whose directory was created."""
        self.leaving: dict[tuple[bytes, int], bytes] = {}
        """The directories from which partitions moved, as long as something of them may still be there."""
        self.broker_settings: dict[str, str] = {}
        """Those of the broker that were altered while it ran."""
        self.marks: NodeMarks | None = None
        """None if it never was a broker of a cluster."""
        self.obeyed: dict[tuple[bytes, int], str] = {}
        """The last recovery of each partition, by topic id and number, for which its log here may have been cut."""

    def apply(self, entry: Entry) -> None:
        """Change the state by `entry`, if it is about this broker, or removes partitions that may be here."""
        match entry:
            case DirectoryKnown():
                self.directories[entry.directory_id] = entry.path
            case DirectoryForgotten():
                self.directories.pop(entry.directory_id, None)
            case BrokerAltered():
                self.broker_settings = entry.settings
            case PartitionsLeft():
                for partition in entry.partitions:
                    self.assignments.get(entry.topic_id, {}).pop(partition, None)
            case NodeMarked():
                self.marks = entry.marks
            case RecoveryObeyed():
                self.obeyed[entry.topic_id, entry.partition] = entry.nonce
            case TopicDeleted():
                self.obeyed = {key: nonce for key, nonce in self.obeyed.items() if key[0] != entry.topic_id}
                self.assignments.pop(entry.topic_id, None)
                self.leaving = {key: old for key, old in self.leaving.items() if key[0] != entry.topic_id}
                self.deleted[entry.topic_id] = entry
            case TopicRemoved():
                self.deleted.pop(entry.topic_id, None)
            case PartitionsAdded():
                _forget_from(entry.partitions, self.assignments, entry.topic_id)
            case PartitionsAssigned() | PartitionMoved() if entry.topic_id not in self.deleted:
                self._assign(entry)

    def _assign(self, entry: PartitionsAssigned | PartitionMoved) -> None:
        assignments = self.assignments.setdefault(entry.topic_id, {})
        for partition in entry.partitions if isinstance(entry, PartitionsAssigned) else (entry.partition,):
            assignments[partition] = entry.directory_id
            self.leaving.pop((entry.topic_id, partition), None)
        if isinstance(entry, PartitionMoved):
            self.leaving[entry.topic_id, entry.partition] = entry.from_id


class MetadataState(ClusterState, NodeState):
    """The result of all entries so far: the file of a broker that is a cluster alone has the facts of both."""

    def __init__(self) -> None:
        ClusterState.__init__(self)
        NodeState.__init__(self)

    def apply(self, entry: Entry) -> None:
        """Change the state by `entry`."""
        ClusterState.apply(self, entry)
        NodeState.apply(self, entry)

    def entries(self) -> list[Entry]:
        """Return the fewest entries that result in this state."""
        entries: list[Entry] = [self.cluster] if self.cluster else []
        entries += self.deleted.values()
        entries += self.topics.values()
        for topic_id, epochs in self.leader_epochs.items():
            entries += leader_epochs_begun(topic_id, epochs)
        if self.next_producer_id:
            entries.append(ProducerIdsReserved(self.next_producer_id))
        entries += [DirectoryKnown(directory_id, path) for directory_id, path in self.directories.items()]
        for topic_id, assignments in self.assignments.items():
            entries += partitions_assigned(topic_id, assignments)
        for (topic_id, partition), from_id in self.leaving.items():
            entries.append(PartitionMoved(topic_id, partition, from_id, self.assignments[topic_id][partition]))
        entries += [UserSecretMade(self.user_secret)] if self.user_secret else []
        entries += self.users.values()
        rules = list(self.acls)
        entries += [AclsCreated(rules[at : at + RULES_AN_ENTRY]) for at in range(0, len(rules), RULES_AN_ENTRY)]
        entries += [QuotaAltered(*entity, limits) for entity, limits in self.quotas.items()]
        entries += [BrokerAltered(self.broker_settings)] if self.broker_settings else []
        entries += [NodeMarked(self.marks)] if self.marks else []
        entries += [RecoveryObeyed(*key, nonce) for key, nonce in self.obeyed.items()]
        return entries


def partitions_assigned(topic_id: bytes, assignments: Mapping[int, bytes]) -> list[PartitionsAssigned]:
    """Return the entries that assign partitions to directories: one for each directory."""
    return [PartitionsAssigned(topic_id, directory_id, numbers) for directory_id, numbers in _grouped(assignments)]


def leader_epochs_begun(topic_id: bytes, epochs: Mapping[int, int]) -> list[LeaderEpochsBegun]:
    """Return the entries that begin `epochs`, by partition: one for each epoch."""
    return [LeaderEpochsBegun(topic_id, epoch, numbers) for epoch, numbers in _grouped(epochs)]


def _grouped(values: Mapping[int, Value]) -> Iterable[tuple[Value, list[int]]]:
    """Return each value of `values` with the partitions that have it."""
    partitions: dict[Value, list[int]] = {}
    for partition, value in values.items():
        partitions.setdefault(value, []).append(partition)
    return partitions.items()


def _forget_from(first: int, values: dict[bytes, dict[int, Value]], topic_id: bytes) -> None:
    """Remove what `values` has for a topic's partitions from `first` on."""
    kept = {partition: value for partition, value in values.pop(topic_id, {}).items() if partition < first}
    if kept:
        values[topic_id] = kept
