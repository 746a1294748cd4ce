"""Topics and their partitions: finding them, creating and deleting them.

A topic exists from the moment at which the metadata log holds it; its directories are made after that, and a start
makes those that a crash prevented. Each partition goes to the data directory that has the fewest; when that one
refuses, to the next, and what was begun is taken away (`leftovers`). Where they lie is in the metadata log before
anybody may write to them. Deleting is the same the other way round: first the metadata log, then the directories are
renamed to Kafka's `-delete` form, then removed after file.delete.delay.ms. What was renamed is removed at the next
start; what a crash prevented from being renamed is renamed then, told by its topic id. Directories that belong to no
topic are left alone.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import UUID, uuid4

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.deletion import Renamed, rename_deleted
from warmlog_broker.data_dirs.leftovers import is_leftover, take_away
from warmlog_broker.metadata.metadata_log import TopicCreated, TopicDeleted, placed
from warmlog_broker.metadata.store import Metadata
from warmlog_broker.metadata.topic_names import check_topic_name, colliding_topic
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.served_directories import DataDirectories, ServedDirectory
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.data_dir import DataDirectory
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.durable_files import sync_directory
from warmlog_broker.storage.io.os_errors import storage_error
from warmlog_broker.storage.log.log import Log
from warmlog_protocol.errors import (
    ApiError,
    InconsistentTopicId,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    StorageError,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from warmlog_protocol.messages import NewTopic

BROKER_DEFAULT = -1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that exists, and its partitions in order."""

    entry: TopicCreated
    config: LogConfig
    partitions: Sequence[Partition]

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def topic_id(self) -> bytes:
        return self.entry.topic_id


class PartitionWatcher(Protocol):
    """A coordinator whose state is in the partitions of a topic. It leads what this broker leads."""

    def loaded(self, partition: Partition) -> None:
        """This broker leads `partition` now, in its leader epoch."""
        ...

    def unloaded(self, partition: Partition) -> None:
        """It does so no longer: the partition was deleted, or its disk has failed. Then batches that wait fail."""
        ...


class OpenPartition(NamedTuple):
    """A partition to be served. `directory` is None where it is not known, `log` where it cannot be opened."""

    directory: ServedDirectory | None
    log: Log | None
    failure: str = ""


MAX_NEW_TOPICS = 1000
"""In one request: each is checked against all that exist, which takes half a millisecond at worst."""
CHECKED_A_TURN = 20
"""After so many others have their turn."""


class TopicLimits(NamedTuple):
    """What new topics are checked against."""

    default_partitions: int
    max_partitions_per_topic: int
    max_partitions: int

    @classmethod
    def from_config(cls, config: BrokerConfig) -> "TopicLimits":
        return cls(config.num_partitions, config.max_partitions_per_topic, config.max_partitions)


def check_new_topic(
    new: NewTopic, *, existing: Collection[str], partition_count: int, defaults: LogConfig, limits: TopicLimits
) -> TopicCreated:
    """The entry of the topic that `new` asks for, beside the `existing` ones, which have `partition_count` partitions.

    Raises InvalidTopic, TopicAlreadyExists, InvalidPartitions, InvalidReplicationFactor or InvalidConfig.
    """
    check_topic_name(new.name)
    if new.name in existing:
        raise TopicAlreadyExists(f"topic {new.name!r} exists")
    other = colliding_topic(new.name, existing)
    if other is not None:
        raise InvalidTopic(f"topic {new.name!r} collides with {other!r}: they differ in '.' and '_' alone")
    partitions = limits.default_partitions if new.partitions == BROKER_DEFAULT else new.partitions
    if not 1 <= partitions <= limits.max_partitions_per_topic:
        raise InvalidPartitions(f"{partitions} partitions, 1 to {limits.max_partitions_per_topic} are allowed")
    if partition_count + partitions > limits.max_partitions:
        raise InvalidPartitions(
            f"{partitions} more partitions, {partition_count} exist and max.partitions is {limits.max_partitions}"
        )
    if new.replication_factor not in (1, BROKER_DEFAULT):
        raise InvalidReplicationFactor(f"replication factor {new.replication_factor}, there is 1 broker")
    LogConfig.from_settings(new.configs, base=defaults)
    return TopicCreated(new.name, uuid4().bytes, partitions, dict(new.configs))


class Topics:
    """All topics of this broker."""

    def __init__(
        self,
        metadata: Metadata,
        *,
        config: BrokerConfig,
        directories: DataDirectories,
        open_log: Callable[[DataDirectory, TopicCreated, int, LogConfig], Log],
        threads: Executor,
        on_deleted: Callable[[Sequence[Path], int], None],
    ) -> None:
        """`open_log` creates the log of a new topic's partition, in a thread. `on_deleted` is given directories, which
        are to be removed after so many milliseconds."""
        self._directories = directories
        self._metadata = metadata
        self._defaults = config.topic_defaults
        self._limits = TopicLimits.from_config(config)
        self._open_log = open_log
        self._threads = threads
        self._on_deleted = on_deleted
        self._topics: dict[str, Topic] = {}
        self._watchers: dict[str, list[PartitionWatcher]] = {}
        self._loop = asyncio.get_running_loop()
        self._changing = asyncio.Lock()

    @property
    def changing(self) -> asyncio.Lock:
        """Held while topics are created or deleted."""
        return self._changing

    def __iter__(self) -> Iterator[Topic]:
        """As they are now: topics may come and go meanwhile."""
        return iter(list(self._topics.values()))

    @property
    def partitions(self) -> list[Partition]:
        """The partitions of all topics."""
        return [partition for topic in self._topics.values() for partition in topic.partitions]

    @property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self._topics.values())

    def get(self, name: str) -> Topic:
        """The topic called `name`; UnknownTopicOrPartition when there is none."""
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        return topic

    def find(self, name: str) -> Topic | None:
        """The topic called `name`, if there is one."""
        return self._topics.get(name)

    def identified(self, name: str, topic_id: bytes | None) -> Topic:
        """The topic by its name and, if the asker knows it, its id.

        UnknownTopicId when it is gone, InconsistentTopicId when another has its name now; without an id as `get`.
        """
        try:
            topic = self.get(name)
        except UnknownTopicOrPartition:
            if topic_id is not None:
                raise UnknownTopicId(f"there is no topic {name!r} any more") from None
            raise
        if topic_id is not None and topic_id != topic.topic_id:
            raise InconsistentTopicId(
                f"topic {name!r} has the id {UUID(bytes=topic.topic_id)} now, not {topic_id.hex()}"
            )
        return topic

    def partition(self, name: str, index: int) -> Partition:
        """One partition; UnknownTopicOrPartition when there is none."""
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        partitions = topic.partitions
        if not 0 <= index < len(partitions):
            raise UnknownTopicOrPartition(f"topic {name!r} has no partition {index}, it has {len(partitions)}")
        return partitions[index]

    def placed_in(self, directory_id: bytes) -> list[TopicPartition]:
        """The partitions that the metadata log places in that data directory, in order."""
        places = self._metadata.state.places
        return sorted(
            TopicPartition(topic.name, partition)
            for topic in self
            for partition, place in places.get(topic.topic_id, {}).items()
            if place == directory_id
        )

    def settings_of(self, entry: TopicCreated) -> LogConfig:
        """What is in force for a topic: its own settings over the broker's defaults."""
        return LogConfig.from_settings(entry.settings, base=self._defaults)

    def add(self, entry: TopicCreated, opened: Sequence[OpenPartition]) -> Topic:
        """Takes in a topic whose logs are open, as far as they can be."""
        config = self.settings_of(entry)
        partitions = []
        for index, (directory, log, failure) in enumerate(opened):
            key = TopicPartition(entry.name, index)
            partition = Partition(key, log, config, _epoch_in_force(entry, log), failure, on_unloaded=self._unloaded)
            if directory is not None:
                directory.admit(partition)
            partitions.append(partition)
        topic = self._topics[entry.name] = Topic(entry, config, partitions)
        for watcher in self._watchers.get(entry.name, ()):
            _tell_loaded(watcher, topic)
        return topic

    def watch(self, name: str, watcher: PartitionWatcher) -> None:
        """Tell `watcher` which partitions of the topic called `name`, if there is one, this broker leads.

        It is told of those that are led already before this returns, and of every change from then on.
        """
        self._watchers.setdefault(name, []).append(watcher)
        topic = self._topics.get(name)
        if topic is not None:
            _tell_loaded(watcher, topic)

    def _unloaded(self, partition: Partition) -> None:
        for watcher in self._watchers.get(partition.key.topic, ()):
            watcher.unloaded(partition)

    async def create(self, wanted: Sequence[NewTopic], *, validate_only: bool) -> list[TopicCreated | ApiError]:
        """Creates topics, each by itself; returns, in the same order, its entry or why it was not created.

        On return what was created is on disk.
        """
        if len(wanted) > MAX_NEW_TOPICS:
            raise InvalidRequest(f"{len(wanted)} topics to create in one request, {MAX_NEW_TOPICS} are allowed")
        async with self._changing:
            results = await self._check(wanted)
            if validate_only:
                return results
            entries = [result for result in results if isinstance(result, TopicCreated)]
            await self._forget_predecessors(entries)
            await self._metadata.commit(entries)
            return [await self._make(result) if isinstance(result, TopicCreated) else result for result in results]

    async def delete(self, name: str) -> None:
        """Deletes a topic. On return it is gone for good, although its files are removed later."""
        async with self._changing:
            topic = self.get(name)
            deleted = TopicDeleted(topic.topic_id, name, topic.entry.partitions)
            await self._metadata.commit([deleted])
            del self._topics[name]
            for partition in topic.partitions:
                partition.deleted()
                self._directories.dismiss(partition)
            await self._remove(deleted, topic.partitions, topic.config.file_delete_delay_ms)

    async def _check(self, wanted: Sequence[NewTopic]) -> list[TopicCreated | ApiError]:
        results: list[TopicCreated | ApiError] = []
        names = set(self._topics)
        times_asked = Counter(new.name for new in wanted)
        partition_count = self.partition_count
        for number, new in enumerate(wanted):
            if number % CHECKED_A_TURN == CHECKED_A_TURN - 1:
                await asyncio.sleep(0)
            try:
                if times_asked[new.name] > 1:
                    raise InvalidRequest(f"topic {new.name!r} is in the request more than once")
                entry = check_new_topic(
                    new,
                    existing=names,
                    partition_count=partition_count,
                    defaults=self._defaults,
                    limits=self._limits,
                )
                self._refuse_unfinished(entry)
                self._refuse_existing_directories(entry)
            except ApiError as error:
                results.append(error)
                continue
            names.add(entry.name)
            partition_count += entry.partitions
            results.append(entry)
        return results

    async def _forget_predecessors(self, entries: Sequence[TopicCreated]) -> None:
        keys = [TopicPartition(entry.name, index) for entry in entries for index in range(entry.partitions)]
        try:
            await self._directories.forget(keys)
        except OSError as error:
            raise storage_error(f"no topic can be made, checkpoints cannot be written: {error}", error) from error

    def _refuse_unfinished(self, entry: TopicCreated) -> None:
        if entry.name in self._metadata.state.topics:
            raise StorageError(
                f"topic {entry.name!r} was begun and could neither be made nor be taken back: the next start makes it"
            )

    def _refuse_existing_directories(self, entry: TopicCreated) -> None:
        """What lies there belongs to nobody we know, and nobody's data is touched."""
        for index in range(entry.partitions):
            for directory in self._directories.live:
                path = directory.data.partition_path(TopicPartition(entry.name, index))
                if path.exists():
                    raise InvalidTopic(
                        f"topic {entry.name!r} cannot be made: {path} exists already; move it away first"
                    )

    async def _make(self, entry: TopicCreated) -> TopicCreated | ApiError:
        """Makes the directories of a topic that is in the metadata log; if that fails, takes it out again."""
        try:
            opened = await asyncio.get_running_loop().run_in_executor(self._threads, self._open_logs, entry)
            places = {index: directory.data.directory_id.bytes for index, (directory, _) in enumerate(opened)}
            await self._metadata.commit(placed(entry.topic_id, places))
        except ApiError as error:
            _log.error("topic %r could not be made: %s", entry.name, error)
            await self._take_back(entry)
            return error
        self.add(entry, [OpenPartition(directory, log) for directory, log in opened])
        _log.info("topic %r created with %d partitions", entry.name, entry.partitions)
        return entry

    async def _take_back(self, entry: TopicCreated) -> None:
        """Takes a topic that could not be made out of the metadata log; if that fails, the next start makes it."""
        deleted = TopicDeleted(entry.topic_id, entry.name, entry.partitions)
        try:
            await self._metadata.commit([deleted])
        except StorageError as error:
            _log.error("topic %r cannot be taken back, and is made by the next start: %s", entry.name, error)
            return
        await self._remove(deleted, [], 0)

    def _open_logs(self, entry: TopicCreated) -> list[tuple[ServedDirectory, Log]]:
        """In a thread: makes the logs, each where the fewest partitions are; their directories are durable then."""
        config = self.settings_of(entry)
        planned: dict[ServedDirectory, int] = {}
        opened = []
        for index in range(entry.partitions):
            directory, log = self._open_log_somewhere(entry, index, config, planned)
            planned[directory] = planned.get(directory, 0) + 1
            opened.append((directory, log))
        for directory in planned:
            try:
                sync_directory(directory.path)
            except OSError as error:
                raise storage_error(f"{directory.path} cannot be synced: {error}", error) from error
        return opened

    def _open_log_somewhere(
        self, entry: TopicCreated, index: int, config: LogConfig, planned: dict[ServedDirectory, int]
    ) -> tuple[ServedDirectory, Log]:
        """The log in the emptiest directory that takes it; StorageError when none does."""
        failure: ApiError = StorageError("no data directory is left: all have failed")
        for directory in self._directories.emptiest_first(planned):
            if directory.room.is_short:
                failure = directory.room.refusal(f"{entry.name}-{index}")
                continue
            try:
                return directory, self._open_log(directory.data, entry, index, config)
            except ApiError as error:
                _log.error("%s-%d could not be made in %s: %s", entry.name, index, directory.path, error)
                failure = error
                self._clear_leftover(directory, entry, index)
                self._loop.call_soon_threadsafe(directory.suspect)
        raise failure

    def _clear_leftover(self, directory: ServedDirectory, entry: TopicCreated, index: int) -> None:
        """In a thread: takes away what was begun in a directory. What cannot be taken away now is by the next start."""
        key = TopicPartition(entry.name, index)
        path = directory.data.partition_path(key)
        try:
            if path.is_dir() and is_leftover(path, UUID(bytes=entry.topic_id)):
                self._loop.call_soon_threadsafe(self._on_deleted, [take_away(path, key)], 0)
        except OSError as error:
            _log.error("%s is left over, and cannot be taken away before the next start: %s", path, error)

    async def _remove(self, deleted: TopicDeleted, partitions: Sequence[Partition], delay_ms: int) -> None:
        """Renames the directories. What cannot be renamed now is renamed at the next start."""
        try:
            renamed = await asyncio.get_running_loop().run_in_executor(
                self._threads, _rename_all, [each.path for each in self._directories.live], deleted, partitions
            )
        except (OSError, StorageError) as error:
            _log.error("topic %r is deleted, but directories of it are still there: %s", deleted.name, error)
            return
        self._on_deleted(renamed.paths, delay_ms)
        if renamed.is_finished and self._directories.are_all_live:
            self._metadata.note_removed(deleted.topic_id)
        _log.info("topic %r deleted", deleted.name)


def _epoch_in_force(entry: TopicCreated, log: Log | None) -> int:
    """The topic's leader epoch, which no log may have gone beyond."""
    return entry.leader_epoch if log is None else max(entry.leader_epoch, log.epochs.latest_epoch)


def _tell_loaded(watcher: PartitionWatcher, topic: Topic) -> None:
    for partition in topic.partitions:
        if partition.allows.append:
            watcher.loaded(partition)


def _rename_all(paths: Sequence[Path], deleted: TopicDeleted, partitions: Sequence[Partition]) -> Renamed:
    """In a thread: nobody else uses these logs any more. Closes those that are open; the rest goes by its topic id."""
    closed = [path for partition in partitions if (path := partition.delete_log()) is not None]
    renamed = rename_deleted(paths, deleted)
    return Renamed(closed + renamed.paths, renamed.is_finished)
