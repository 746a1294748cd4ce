"""Finds, creates and deletes topics and their partitions.

A topic exists once the metadata log holds it; its directories are created after that (`partition_creation`), by the
next start in case of a crash. They are in the metadata log before the partitions are served. `topic_changes` changes
settings and adds partitions. A deletion is written to the metadata log first, too; then the directories are renamed to
Kafka's `-delete` form, and removed after file.delete.delay.ms (`data_dirs/deletion`). Directories that belong to no
topic are left alone.

Internal topics hold state of the broker itself: `internal`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID, uuid4

from msgspec import Struct
from msgspec.structs import replace

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.deletion import Renamed, rename_deleted
from warmlog_broker.data_dirs.loader import LoadedPartition
from warmlog_broker.metadata.metadata_log import (
    PartitionsLeft,
    TopicCreated,
    TopicDeleted,
    TopicRemoved,
    partitions_assigned,
)
from warmlog_broker.metadata.store import (
    NO_CHOICE,
    ClusterStore,
    NodeStore,
    Replicas,
    Version,
    retried,
)
from warmlog_broker.metadata.topic_names import INTERNAL_PREFIX, check_topic_name, colliding_topic
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.partition_state import PartitionState
from warmlog_broker.replica.served_directories import DataDirectories
from warmlog_broker.runtime.tasks import in_turns
from warmlog_broker.storage.config import LogConfig, normalized
from warmlog_broker.storage.directory.data_dir import DataDirectory
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.log.log import Log
from warmlog_broker.topics.partition_creation import PartitionCreator, keys_of
from warmlog_protocol import errors
from warmlog_protocol.messages import NewTopic

BROKER_DEFAULT = -1

Subject = TypeVar("Subject", str, Partition)

_log = logging.getLogger(__name__)


class Topic(Struct, frozen=True):
    """A topic that exists, and its partitions on this broker."""

    entry: TopicCreated
    config: LogConfig
    local: Mapping[int, Partition]
    """By their numbers."""

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def topic_id(self) -> bytes:
        return self.entry.topic_id

    @property
    def count(self) -> int:
        """How many partitions it has in the cluster."""
        return self.entry.partitions

    def partition(self, number: int) -> Partition:
        """Return a partition; NotLeaderOrFollower if it is on other brokers, UnknownTopicOrPartition without one."""
        found = self.local.get(number)
        if found is not None:
            return found
        self.check_number(number)
        raise errors.NotLeaderOrFollower(f"{self.name}-{number} is not on this broker")

    def check_number(self, number: int) -> None:
        """Raise UnknownTopicOrPartition unless it is that of a partition, wherever that is."""
        if not 0 <= number < self.count:
            raise errors.UnknownTopicOrPartition(f"topic {self.name!r} has no partition {number}, it has {self.count}")

    @property
    def is_internal(self) -> bool:
        """Whether the broker keeps its own state in it: clients may read but not change it."""
        return self.entry.is_internal


class InternalTopic(NamedTuple):
    """A topic for the broker's own state, as it is created on first use."""

    name: str
    partitions: int
    settings: Mapping[str, str]


class PartitionWatcher(Protocol):
    """A part of the broker, such as a coordinator, that acts for the partitions of a topic that this broker leads."""

    def loaded(self, partition: Partition) -> None:
        """Called when this broker begins to lead `partition`, in its leader epoch."""
        ...

    def unloaded(self, partition: Partition) -> None:
        """This broker leads it no longer: it was deleted, or its disk has failed. Then pending appends fail."""
        ...


MAX_NEW_TOPICS = 1000
"""The most in one request: each is checked against all existing topics, which takes up to 0.5 ms."""
CHECKED_A_TURN = 20
"""Topics that are processed in one turn of the event loop."""


def check_new_topic(
    new: NewTopic, *, existing: Collection[str], partition_count: int, config: BrokerConfig
) -> TopicCreated:
    """Return the entry of a `new` topic; the `existing` ones have `partition_count` partitions.

    Raises InvalidTopic, TopicAlreadyExists, InvalidPartitions or InvalidConfig.
    """
    if new.replicas and (new.partitions, new.replication_factor) != (BROKER_DEFAULT, BROKER_DEFAULT):
        raise errors.InvalidRequest("replicas of each partition, and also how many: give one of them, and -1 for these")
    check_topic_name(new.name)
    if new.name in existing:
        raise errors.TopicAlreadyExists(f"topic {new.name!r} exists")
    if new.name.startswith(INTERNAL_PREFIX):
        raise errors.InvalidTopic(
            f"topic {new.name!r} cannot be created: names that begin with {INTERNAL_PREFIX!r} are reserved for the "
            f"broker's internal topics"
        )
    other = colliding_topic(new.name, existing)
    if other is not None:
        raise errors.InvalidTopic(f"topic {new.name!r} collides with {other!r}: they differ in '.' and '_' alone")
    given = len(new.replicas) or new.partitions
    partitions = config.num_partitions if given == BROKER_DEFAULT else given
    check_partition_count(partitions, partitions, partition_count, config)
    LogConfig.from_settings(new.configs, base=config.topic_defaults)
    return TopicCreated(new.name, uuid4().bytes, partitions, normalized(new.configs))


def check_partition_count(total: int, added: int, existing: int, config: BrokerConfig) -> None:
    """Raise InvalidPartitions unless a topic may have `total` partitions, and the broker `added` to the `existing`."""
    if not 1 <= total <= config.max_partitions_per_topic:
        raise errors.InvalidPartitions(f"{total} partitions, 1 to {config.max_partitions_per_topic} are allowed")
    if existing + added > config.max_partitions:
        raise errors.InvalidPartitions(
            f"{added} more partitions, {existing} exist and max.partitions is {config.max_partitions}"
        )


def wanted_replicas(new: NewTopic, cluster: ClusterStore) -> int:
    """Return how many replicas each partition gets. InvalidReplicationFactor, InvalidReplicaAssignment."""
    if new.replicas:
        check_replicas(new.replicas, len(new.replicas[0]), cluster.ready)
        return len(new.replicas[0])
    asked, count = new.replication_factor, len(cluster.ready)
    factor = cluster.default_replicas() if asked == BROKER_DEFAULT else asked
    if not 1 <= factor <= count:
        raise errors.InvalidReplicationFactor(
            f"{asked} replicas: expected 1 to {count}, as many brokers are ready, or -1 for the default"
        )
    return factor


def check_replicas(replicas: Replicas, factor: int, ready: Collection[int]) -> None:
    """Raise InvalidReplicaAssignment unless each partition is on `factor` brokers that are `ready`, once on each."""
    for nodes in replicas:
        if not nodes or len(nodes) != factor or len(set(nodes).intersection(ready)) != factor:
            raise errors.InvalidReplicaAssignment(
                f"replicas on the brokers {list(nodes)}: give {max(factor, 1)} of {sorted(ready)}, each once"
            )


class Topics:
    def __init__(
        self,
        cluster: ClusterStore,
        node: NodeStore,
        *,
        config: BrokerConfig,
        directories: DataDirectories,
        open_log: Callable[[DataDirectory, TopicCreated, int, LogConfig], Log],
        threads: Executor,
        on_deleted: Callable[[Sequence[Path], int], None],
        take_role: Callable[[TopicCreated, Partition], None],
    ) -> None:
        """`open_log` creates the log of a new topic's partition, in a thread. `on_deleted` removes directories, after a
        delay in milliseconds. `take_role` gives this broker its role for a partition that it serves from now on."""
        self._directories = directories
        self._cluster = cluster
        self._node = node
        self._config = config
        self._threads = threads
        self._on_deleted = on_deleted
        self._take_role = take_role
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._watchers: dict[str, list[PartitionWatcher]] = {}
        self.on_changed: list[Callable[[str], None]] = []
        """Called with the name of a topic after it was added or deleted, or got more partitions."""
        self.unlinking: set[LocalLog] = set()
        """The logs that have files to be unlinked, once their delay is over: see `Housekeeping.unlink_due`."""
        self.creator = PartitionCreator(directories, open_log=open_log, threads=threads, on_deleted=on_deleted)
        self.changing = asyncio.Lock()
        """Held while topics are created, changed or deleted."""

    def __iter__(self) -> Iterator[Topic]:
        """Iterate over the topics as they are now."""
        return iter(list(self._topics.values()))

    @property
    def partitions(self) -> list[Partition]:
        """The partitions of all topics that are on this broker."""
        return [partition for topic in self._topics.values() for partition in topic.local.values()]

    @property
    def partition_count(self) -> int:
        return sum(len(topic.local) for topic in self._topics.values())

    def get(self, name: str) -> Topic:
        """Return the topic called `name`; UnknownTopicOrPartition if there is none.

        NotLeaderOrFollower while this broker is about to serve one that was created at another broker.
        """
        topic = self._topics.get(name)
        if topic is None:
            self._refuse_unserved(name)
            raise errors.UnknownTopicOrPartition(f"there is no topic {name!r}")
        return topic

    def _refuse_unserved(self, name: str) -> None:
        if not self._cluster.is_alone and name in self._cluster.state.topics:
            raise errors.NotLeaderOrFollower(f"topic {name!r} was just created, and is not served here yet")

    def find(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def find_by_id(self, topic_id: bytes) -> Topic | None:
        return self._by_id.get(topic_id)

    def identified(self, name: str, topic_id: bytes | None) -> Topic:
        """Return the topic by its name and, if not None, its id.

        UnknownTopicId if it is gone, InconsistentTopicId if another has its name now; without an id as `get`.
        """
        if topic_id is None:
            return self.get(name)
        topic = self._topics.get(name)
        if topic is None:
            self._refuse_unserved(name)
            raise errors.UnknownTopicId(f"there is no topic {name!r} any more")
        if topic_id != topic.topic_id:
            raise errors.InconsistentTopicId(
                f"topic {name!r} has the id {UUID(bytes=topic.topic_id)} now, not {topic_id.hex()}"
            )
        return topic

    def partition(self, name: str, index: int, *, to_change: bool = False) -> Partition:
        """Return one partition, as `Topic.partition`; UnknownTopicOrPartition without the topic.

        InvalidTopic for an internal topic if the request is `to_change` its content.
        """
        topic = self.get(name)
        if to_change and topic.entry.is_internal:
            raise _internal_refusal(name)
        found = topic.local.get(index)
        return topic.partition(index) if found is None else found

    def assigned_to(self, directory_id: bytes) -> list[TopicPartition]:
        """Return the partitions that the metadata log assigns to that data directory, in order."""
        assignments = self._node.state.assignments
        return sorted(
            TopicPartition(topic.name, partition)
            for topic in self
            for partition, assigned in assignments.get(topic.topic_id, {}).items()
            if assigned == directory_id
        )

    def settings_of(self, entry: TopicCreated) -> LogConfig:
        """The settings in force for a topic: its own over the broker's defaults."""
        return LogConfig.from_settings(entry.settings, base=self._config.topic_defaults)

    def add(self, entry: TopicCreated, loaded: Mapping[int, LoadedPartition]) -> None:
        """Serve a topic, or further partitions of one that exists, by their numbers, each in its role.

        Their logs are open unless they have failed.
        """
        config, present = self.settings_of(entry), self._topics.get(entry.name)
        added = {number: self._serve(TopicPartition(entry.name, number), config, loaded[number]) for number in loaded}
        self._put(Topic(entry, config, {**(present.local if present is not None else {}), **added}))
        for partition in added.values():
            self._take_role(entry, partition)
        self._tell_changed(entry.name)

    def alter(self, entry: TopicCreated) -> Topic:
        """Put the settings of `entry` in force for a topic that exists: the one place that hands them to all parts."""
        config = self.settings_of(entry)
        topic = self._put(Topic(entry, config, self._topics[entry.name].local))
        for partition in topic.local.values():
            partition.update_config(config)
        return topic

    def _put(self, topic: Topic) -> Topic:
        self._topics[topic.name] = self._by_id[topic.topic_id] = topic
        return topic

    def _serve(self, key: TopicPartition, config: LogConfig, loaded: LoadedPartition) -> Partition:
        partition = Partition(key, loaded.log, config, loaded.failure, on_leadership=self._leadership_changed)
        if loaded.log is not None:
            loaded.log.local.on_retired = self.unlinking.add
        if loaded.directory is not None:
            self._directories.of(loaded.directory).admit(partition)
        return partition

    def watch(self, name: str, watcher: PartitionWatcher) -> None:
        """Tell `watcher` which partitions of the topic called `name`, if it exists, this broker leads.

        It is called for those that are led already before this returns, and for every change from then on.
        """
        self._watchers.setdefault(name, []).append(watcher)
        topic = self._topics.get(name)
        for partition in topic.local.values() if topic is not None else ():
            if partition.allows.append:
                _tell(watcher.loaded, partition)

    def _tell_changed(self, name: str) -> None:
        for told in self.on_changed:
            _tell(told, name)

    def _leadership_changed(self, partition: Partition) -> None:
        for watcher in self._watchers.get(partition.key.topic, ()):
            _tell(watcher.loaded if partition.allows.append else watcher.unloaded, partition)

    async def create(self, wanted: Sequence[NewTopic], *, validate_only: bool) -> list[TopicCreated | errors.ApiError]:
        """Create topics durably, each independently; return the entry of each, or the error."""
        if len(wanted) > MAX_NEW_TOPICS:
            raise errors.InvalidRequest(f"{len(wanted)} topics to create in one request, {MAX_NEW_TOPICS} are allowed")
        async with self.changing:
            return await retried(self._cluster, partial(self._create, wanted, validate_only))

    async def _create(
        self, wanted: Sequence[NewTopic], validate_only: bool, version: Version
    ) -> list[TopicCreated | errors.ApiError]:
        results = await self._check(wanted)
        if validate_only:
            return results
        created = [result for result in results if isinstance(result, TopicCreated)]
        await self._commit(created, version, {new.name: new.replicas for new in wanted})
        return [await self._make(result) if isinstance(result, TopicCreated) else result for result in results]

    async def _commit(
        self, created: Sequence[TopicCreated], version: Version, chosen: Mapping[str, Replicas] = NO_CHOICE
    ) -> None:
        await self.creator.forget([key for entry in created for key in keys_of(entry.name, range(entry.partitions))])
        await self._cluster.commit(created, expected=version, chosen=chosen)

    async def internal(self, new: InternalTopic) -> Topic:
        """Return an internal topic. The first call creates it durably.

        An existing topic keeps the partitions and settings with which it was created. Raises InvalidTopic for a topic
        that a client of 0.1.0 created under this name, InvalidConfig, and the errors of `create`.
        """
        name = new.name
        assert name.startswith(INTERNAL_PREFIX)
        if name not in self._topics:
            LogConfig.from_settings(new.settings, base=self._config.topic_defaults)
            async with self.changing:
                await retried(self._cluster, partial(self._create_internal, new))
        topic = self._topics[name]
        if not topic.is_internal:
            raise errors.InvalidTopic(
                f"topic {name!r} was created by a client, and the broker needs the name for an internal topic: copy "
                f"what is needed of it to another topic, and delete it"
            )
        return topic

    async def _create_internal(self, new: InternalTopic, version: Version) -> None:
        known = self._cluster.state.topics.get(new.name)
        if known is not None and not self._cluster.is_alone:  # another broker has just created it
            if new.name not in self._topics:
                await self.assigned(known, self._cluster.here(known))
        elif new.name not in self._topics:
            entry = TopicCreated(
                new.name,
                uuid4().bytes,
                new.partitions,
                dict(new.settings),
                is_internal=True,
                replication_factor=wanted_replicas(NewTopic(new.name), self._cluster),
            )
            self._refuse_remains(entry)
            await self._commit([entry], version)
            result = await self._make(entry)
            if isinstance(result, errors.ApiError):
                raise result

    async def delete(self, name: str) -> None:
        """Delete a topic for a client. On return the deletion is durable; its files are removed later."""
        async with self.changing:
            await retried(self._cluster, partial(self._delete, name))

    async def _delete(self, name: str, version: Version) -> None:
        topic = self.get(name)
        if topic.is_internal:
            raise _internal_refusal(name)
        await self._cluster.commit([TopicDeleted(topic.topic_id, name, topic.count)], expected=version)
        await self.drop(topic)

    async def drop(self, topic: Topic) -> None:
        """Serve a topic no longer that the store has no more, and remove its files, later."""
        deleted = TopicDeleted(topic.topic_id, topic.name, topic.count)
        if not self._cluster.is_alone:
            await self._node.commit([deleted])
        del self._topics[topic.name], self._by_id[topic.topic_id]
        for partition in topic.local.values():
            partition.deleted()
            self._directories.dismiss(partition)
        self._tell_changed(topic.name)
        await self._remove(deleted, topic.local.values(), topic.config.file_delete_delay_ms)

    async def leave(self, name: str, numbers: Sequence[int]) -> None:
        """Serve partitions no longer that other brokers have now, and remove their files, later.

        From the first moment on none of them fetches, also if this broker gets it again: its files are removed then.
        """
        topic = self.get(name)
        left = [topic.local[number] for number in numbers]
        kept = {number: partition for number, partition in topic.local.items() if number not in numbers}
        for partition in left:
            if partition.state is not PartitionState.DELETED:  # an attempt before this one may have failed
                partition.deleted()
            self._directories.dismiss(partition)
        await self._node.commit([PartitionsLeft(topic.topic_id, list(numbers))])
        self._put(Topic(topic.entry, topic.config, kept))
        paths = []
        for partition in left:
            path = await asyncio.get_running_loop().run_in_executor(self._threads, partition.delete_log)
            paths += [] if path is None else [path]
        self._on_deleted(paths, topic.config.file_delete_delay_ms)

    async def _check(self, wanted: Sequence[NewTopic]) -> list[TopicCreated | errors.ApiError]:
        results: list[TopicCreated | errors.ApiError] = []
        names = {*self._topics} if self._cluster.is_alone else {*self._topics, *self._cluster.state.topics}
        times_asked = Counter(new.name for new in wanted)
        partition_count = self.partition_count
        async for new in in_turns(wanted, CHECKED_A_TURN):
            try:
                if times_asked[new.name] > 1:
                    raise errors.InvalidRequest(f"topic {new.name!r} is in the request more than once")
                entry = check_new_topic(new, existing=names, partition_count=partition_count, config=self._config)
                entry = replace(entry, replication_factor=wanted_replicas(new, self._cluster))
                self._refuse_remains(entry)
            except errors.ApiError as error:
                results.append(error)
                continue
            names.add(entry.name)
            partition_count += entry.partitions
            results.append(entry)
        return results

    def _refuse_remains(self, entry: TopicCreated) -> None:
        """StorageError for an unfinished creation, InvalidTopic for directories that no topic owns."""
        if entry.name in self._cluster.state.topics:
            raise errors.StorageError(
                f"the creation of topic {entry.name!r} could neither be finished nor undone: the next start finishes it"
            )
        self.creator.refuse_remains(keys_of(entry.name, range(entry.partitions)))

    async def _make(self, entry: TopicCreated) -> TopicCreated | errors.ApiError:
        """Create the directories of a topic that is in the store; if that fails, remove it from there.

        In a cluster it remains, and is tried again: other brokers have created theirs.
        """
        try:
            await self.assigned(entry, self._cluster.here(entry))
        except errors.ApiError as error:
            _log.error("topic %r could not be created: %s", entry.name, error)
            if not self._cluster.is_alone:
                return entry
            await self._undo(entry)
            return error
        _log.info("topic %r created, partitions: %d", entry.name, entry.partitions)
        return entry

    async def assigned(self, entry: TopicCreated, numbers: Sequence[int]) -> None:
        """Create the directories of partitions that this broker has by the store, note where they are, and serve them.

        The request that has put them into the store may have come to another broker. Raises the errors of the disk;
        then none is served, and directories may be left.
        """
        opened = await self.creator.create(entry, numbers, self.settings_of(entry))
        places = {number: directory.data.directory_id.bytes for number, (directory, _) in opened.items()}
        await self._node.commit(partitions_assigned(entry.topic_id, places))
        self.add(entry, {number: LoadedPartition(directory.data, log) for number, (directory, log) in opened.items()})

    async def _undo(self, entry: TopicCreated) -> None:
        deleted = TopicDeleted(entry.topic_id, entry.name, entry.partitions)
        try:
            await self._cluster.commit([deleted])
        except errors.StorageError as error:
            _log.error("the creation of topic %r cannot be undone, the next start finishes it: %s", entry.name, error)
            return
        await self._remove(deleted, [], 0)

    async def _remove(self, deleted: TopicDeleted, partitions: Collection[Partition], delay_ms: int) -> None:
        """Rename the directories. If that fails, the next start does it."""
        try:
            renamed = await asyncio.get_running_loop().run_in_executor(
                self._threads, _rename_all, [each.path for each in self._directories.live], deleted, partitions
            )
        except (OSError, errors.StorageError) as error:
            _log.error("topic %r is deleted, but directories of it are still there: %s", deleted.name, error)
            return
        self._on_deleted(renamed.paths, delay_ms)
        if renamed.is_finished and self._directories.are_all_live:
            self._node.note(TopicRemoved(deleted.topic_id))
        _log.info("topic %r deleted", deleted.name)


def lead_alone(cluster: ClusterStore, topic: TopicCreated, partition: Partition) -> None:
    """Lead a partition: there is no other broker. No log may have a later leader epoch than the current one."""
    epoch = cluster.state.leader_epoch(topic, partition.key.partition)
    partition.become_leader(max(epoch, partition.log.epochs.latest_epoch if partition.allows.read else -1))


def _internal_refusal(name: str) -> errors.InvalidTopic:
    return errors.InvalidTopic(f"topic {name!r} is internal: only the broker writes to it, and it cannot be deleted")


def _tell(told: Callable[[Subject], None], subject: Subject) -> None:
    """An error of a watcher must not stop others, nor what is done to the topic or partition."""
    try:
        told(subject)
    except Exception:
        _log.exception("%s: a watcher failed: a bug", subject)


def _rename_all(paths: Sequence[Path], deleted: TopicDeleted, partitions: Iterable[Partition]) -> Renamed:
    """In a thread: delete the unused logs, and find other directories of the topic by its id."""
    closed = [path for partition in partitions if (path := partition.delete_log()) is not None]
    renamed = rename_deleted(paths, deleted)
    return Renamed(closed + renamed.paths, renamed.is_finished)
