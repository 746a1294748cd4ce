"""Where a running broker keeps facts: of the cluster in a `ClusterStore`, of itself in its `NodeStore`.

A broker that is a cluster alone has both in its metadata log. Changes are grouped, and each group is on disk before it
is in force.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol, TypeVar

from warmlog_broker.metadata.log_file import MetadataLog
from warmlog_broker.metadata.metadata_log import (
    AclsCreated,
    AclsDeleted,
    ClusterState,
    Entry,
    LeaderEpochsBegun,
    NodeState,
    PartitionsAdded,
    ProducerIdsReserved,
    QuotaAltered,
    TopicAltered,
    TopicCreated,
    TopicDeleted,
    UserAltered,
    UserDeleted,
    leader_epochs_begun,
)
from warmlog_broker.storage.directory.topic_partition import TopicPartition

DEFAULT_REPLICAS = 3
"""Of a topic for which none are asked: as many, or as many as there are brokers."""
BLOCK_IDS = 1000
"""How many producer ids are reserved on disk at a time: a flush for each thousand producers, and 1000 of 2^63 ids lost
in a crash."""
REMEMBERED_SUBJECTS = 10_000
"""A change about a subject that is no longer remembered counts as late: it is decided again."""

Version = int
Replicas = Sequence[Sequence[int]]
"""The brokers of each of some partitions, the preferred leader first."""
NO_CHOICE: Mapping[str, Replicas] = {}
T = TypeVar("T")


class Changed(Exception):
    """Nothing was committed: a subject of the changes is not as the caller has read it."""


class ClusterStore(Protocol):
    """The facts about which all brokers of a cluster agree. Every broker may change them."""

    @property
    def state(self) -> ClusterState:
        """The facts as this broker knows them. Only `commit` changes them."""
        ...

    @property
    def version(self) -> Version: ...

    async def commit(
        self, changes: Sequence[Entry], *, expected: Version | None = None, chosen: Mapping[str, Replicas] = NO_CHOICE
    ) -> None:
        """Return once `changes`, all or none, are durable and in the state. `chosen` are replicas by topic.

        Raises Changed if one of their subjects (a topic, a user, the rules about rights) was changed after the version
        `expected`, which is in the state then, and the errors of `NodeStore.commit`.
        """
        ...

    def here(self, topic: TopicCreated) -> Sequence[int]:
        """Return the partitions of `topic` of which this broker has a replica."""
        ...

    def is_deleted(self, topic_id: bytes) -> bool:
        """Return whether the topic is gone for good, which is more than that this broker does not know it yet."""
        ...

    @property
    def is_alone(self) -> bool:
        """Whether there is no other broker: what this one cannot carry out is undone."""
        ...

    @property
    def ready(self) -> Collection[int]:
        """The brokers that may have replicas of new partitions."""
        ...

    def default_replicas(self) -> int:
        """Return how many replicas a topic gets that asks for no number. InvalidReplicationFactor."""
        ...

    def replication_factor(self, topic: TopicCreated) -> int:
        """Return how many replicas a new partition of a topic that exists gets."""
        ...

    async def reserve_producer_ids(self, count: int) -> int:
        """Return the first of so many producer ids in a row, durably reserved. Raises as `commit`."""
        ...

    async def begin_epochs(self, latest: Mapping[TopicPartition, int]) -> None:
        """Begin a leader epoch for partitions of this broker, later than the `latest` in the log of each.

        They are those whose logs the last stop did not close, as readers may have seen what was lost, and those whose
        logs have later epochs than `state`, which an earlier copy was put in the place of. A start calls this before it
        opens the logs: on return `state` has the epochs in force, and what a log has of later ones counts as damage.
        """
        ...


async def retried(store: ClusterStore, attempt: Callable[[Version], Awaitable[T]]) -> T:
    """Return what `attempt` returns, which reads the store and commits with that version; again after `Changed`."""
    while True:
        try:
            return await attempt(store.version)
        except Changed:
            continue


class NodeStore:
    """The facts about one broker, and its metadata log while it runs."""

    def __init__(self, log: MetadataLog, threads: Executor) -> None:
        self.state: NodeState = log.state
        """The state on disk. Only `commit` changes it."""
        self.log = log
        self._threads = threads
        self._turn = asyncio.Lock()
        self._deferred: list[Entry] = []

    async def commit(self, entries: Iterable[Entry]) -> None:
        """Return once `entries` are on disk and in the state.

        After a StorageError they are in neither; but if a flush failed they may be on disk, and all commits fail until
        a restart.
        """
        async with self._turn:
            group = [*self._deferred, *entries]
            if not group:
                return
            self.log.append(group)
            self._deferred.clear()
            await asyncio.get_running_loop().run_in_executor(self._threads, self.log.flush)
            for entry in group:
                self.log.state.apply(entry)

    def note(self, entry: Entry) -> None:
        """Write `entry`, on which nothing depends, with the next commit."""
        self._deferred.append(entry)

    async def close(self) -> None:
        """Write the entries of `note`, and close the file. StorageError if they could not be written."""
        try:
            await self.commit([])
        finally:
            self.log.close()


class LoneClusterStore:
    """The `ClusterStore` of a broker that is a cluster alone: the facts are in its metadata log."""

    is_alone = True

    def __init__(self, node: NodeStore) -> None:
        self.state: ClusterState = node.log.state
        self.version: Version = 0
        self._node = node
        self._turn = asyncio.Lock()
        self._versions: dict[Hashable, Version] = {}
        """In which version each subject was changed, the latest last."""
        self._forgotten: Version = 0
        """The subjects that are not in `_versions` were changed in this version, or earlier."""

    async def commit(
        self,
        changes: Sequence[Entry],
        *,
        expected: Version | None = None,
        chosen: Mapping[str, Replicas] = NO_CHOICE,  # noqa: ARG002
    ) -> None:
        """As `ClusterStore.commit`. There is no choice of brokers."""
        subjects = [_subject_of(change) for change in changes]
        async with self._turn:
            if expected is not None and any(self._versions.get(each, self._forgotten) > expected for each in subjects):
                raise Changed
            await self._node.commit(changes)
            self.version += 1
            for subject in subjects:
                self._versions.pop(subject, None)
                self._versions[subject] = self.version
            while len(self._versions) > REMEMBERED_SUBJECTS:
                self._forgotten = self._versions.pop(next(iter(self._versions)))

    def here(self, topic: TopicCreated) -> Sequence[int]:
        """As `ClusterStore.here`: all of them."""
        return range(topic.partitions)

    def is_deleted(self, topic_id: bytes) -> bool:
        """As `ClusterStore.is_deleted`: the state is never late."""
        return all(topic.topic_id != topic_id for topic in self.state.topics.values())

    @property
    def ready(self) -> Collection[int]:
        """As `ClusterStore.ready`."""
        assert self.state.cluster is not None
        return [self.state.cluster.node_id]

    def default_replicas(self) -> int:
        """As `ClusterStore.default_replicas`."""
        return 1

    def replication_factor(self, topic: TopicCreated) -> int:
        """As `ClusterStore.replication_factor`."""
        return topic.replication_factor

    async def reserve_producer_ids(self, count: int) -> int:
        """As `ClusterStore.reserve_producer_ids`."""
        first = self.state.next_producer_id
        await self.commit([ProducerIdsReserved(first + count)])
        return first

    async def begin_epochs(self, latest: Mapping[TopicPartition, int]) -> None:
        """As `ClusterStore.begin_epochs`: no other broker can lead them, so each epoch is the one after the last."""
        begun: defaultdict[bytes, dict[int, int]] = defaultdict(dict)
        for key, epoch in latest.items():
            topic = self.state.topics[key.topic]
            begun[topic.topic_id][key.partition] = max(self.state.leader_epoch(topic, key.partition), epoch) + 1
        await self.commit([change for each in begun.items() for change in leader_epochs_begun(*each)])


def _subject_of(change: Entry) -> Hashable:
    """Return what `change` is about. Topics whose names collide are one subject."""
    match change:
        case TopicCreated() | TopicDeleted() | TopicAltered() | PartitionsAdded():
            return "topic", change.name.replace(".", "_")
        case LeaderEpochsBegun():
            return "leader epochs", change.topic_id
        case UserAltered() | UserDeleted():
            return "user", change.name
        case QuotaAltered():
            return "quota", change.user, change.client_id
        case AclsCreated() | AclsDeleted():
            return "rules"
        case _:
            return type(change)


class ProducerIds:
    """Producer ids: each is assigned at most once in a cluster.

    Ids are reserved in blocks. A block is on disk before the first of its ids is assigned, so a crash loses at most the
    rest of a block.
    """

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._next = self._end = store.state.next_producer_id
        """The ids of this broker's block that are not assigned yet."""
        self._reserving = asyncio.Lock()
        self.hear()

    def hear(self) -> None:
        """Take over what the store knows now."""
        self.known_below = self._next if self._store.is_alone else self._store.state.next_producer_id
        """From this id on, none was ever assigned as far as this broker has heard: another may have a later block."""

    async def give_out(self) -> int:
        """Assign the next id. StorageError if none can be reserved."""
        async with self._reserving:
            if self._next >= self._end:
                self._next = await self._store.reserve_producer_ids(BLOCK_IDS)
                self._end = self._next + BLOCK_IDS
            producer_id = self._next
            self._next += 1
            self.hear()
            return producer_id
