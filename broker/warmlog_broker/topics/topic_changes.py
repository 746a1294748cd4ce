"""Changes topics that exist: their settings, and the number of their partitions.

A change is in the metadata log before it takes effect. Settings are in force when the response is sent, without a
restart: `Topics.alter` hands them to every log. Where write.caching was turned off, all that was acknowledged under it
is on disk by then, too.

The number of partitions is written first, then the directories are created, as for a new topic. After a crash in
between the next start creates them; if the disk refuses, the addition is undone.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.metadata.metadata_log import PartitionsAdded, TopicAltered, TopicCreated
from warmlog_broker.metadata.store import ClusterStore, Version, retried
from warmlog_broker.replica.served_directories import DataDirectories
from warmlog_broker.runtime.tasks import in_turns
from warmlog_broker.storage.config import LogConfig, normalized, setting_named
from warmlog_broker.topics.partition_creation import keys_of
from warmlog_broker.topics.topics import (
    CHECKED_A_TURN,
    MAX_NEW_TOPICS,
    Topic,
    Topics,
    check_partition_count,
    check_replicas,
)
from warmlog_protocol import errors
from warmlog_protocol.messages import AlteredTopic, NewPartitions

_log = logging.getLogger(__name__)


def changed_settings(own: Mapping[str, str], change: AlteredTopic, *, defaults: LogConfig) -> dict[str, str]:
    """Return a topic's `own` settings after `change`. InvalidConfig, or InvalidRequest for a contradiction."""
    for name in change.unset:
        setting_named(name)
        if name in change.set:
            raise errors.InvalidRequest(f"{name} of topic {change.name!r} is both set and unset: give it once")
    settings = {name: text for name, text in own.items() if name not in change.unset} | normalized(change.set)
    LogConfig.from_settings(settings, base=defaults)
    return settings


class TopicChanges:
    def __init__(
        self,
        topics: Topics,
        cluster: ClusterStore,
        *,
        config: BrokerConfig,
        directories: DataDirectories,
        on_altered: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_altered` is called after settings have changed, by which retention may be due."""
        self._topics = topics
        self._cluster = cluster
        self._config = config
        self._directories = directories
        self._on_altered = on_altered

    async def alter(self, wanted: Sequence[AlteredTopic], *, validate_only: bool) -> list[errors.ApiError | None]:
        """Change settings durably, of each topic independently; return the error of each, or None."""
        _check_request([change.name for change in wanted])
        async with self._topics.changing:
            return await retried(self._cluster, partial(self._alter, wanted, validate_only))

    async def _alter(
        self, wanted: Sequence[AlteredTopic], validate_only: bool, version: Version
    ) -> list[errors.ApiError | None]:
        results: list[errors.ApiError | None] = []
        entries: list[TopicCreated] = []
        async for change in in_turns(wanted, CHECKED_A_TURN):
            try:
                own = self._changeable(change.name).entry
                settings = changed_settings(own.settings, change, defaults=self._config.topic_defaults)
                entries.append(replace(own, settings=settings))
                results.append(None)
            except errors.ApiError as error:
                results.append(error)
        changed = [entry for entry in entries if entry != self._topics.get(entry.name).entry]
        if changed and not validate_only:
            altered = [TopicAltered(each.topic_id, each.name, each.settings) for each in changed]
            await self._cluster.commit(altered, expected=version)
            await self.put_in_force(changed)
            for entry in changed:
                _log.info("topic %r altered, its own settings are now: %s", entry.name, entry.settings or "none")
        return results

    async def check_defaults(self, defaults: LogConfig) -> None:
        """Raise InvalidConfig if a topic's own settings contradict other defaults. `Topics.changing` must be held."""
        async for topic in in_turns(list(self._topics), CHECKED_A_TURN):
            try:
                LogConfig.from_settings(topic.entry.settings, base=defaults)
            except errors.InvalidConfig as error:
                raise errors.InvalidConfig(f"with the own settings of topic {topic.name!r}: {error}") from None

    async def put_in_force(self, entries: Sequence[TopicCreated]) -> None:
        """Use the settings of `entries` for the topics of their names. `Topics.changing` must be held."""
        must_flush = False
        async for entry in in_turns(entries, CHECKED_A_TURN):
            was_cached = self._topics.get(entry.name).config.write_caching
            topic = self._topics.alter(entry)
            must_flush = must_flush or (was_cached and not topic.config.write_caching)
        if must_flush:
            await self._directories.flush_all()
        self._on_altered()

    async def add_partitions(
        self, wanted: Sequence[NewPartitions], *, validate_only: bool
    ) -> list[errors.ApiError | None]:
        """Add partitions durably, to each topic independently; return the error of each, or None."""
        _check_request([new.name for new in wanted])
        async with self._topics.changing:
            results: list[errors.ApiError | None] = []
            existing = self._topics.partition_count
            async for new in in_turns(wanted, CHECKED_A_TURN):
                try:
                    existing += await retried(self._cluster, partial(self._add, new, existing, validate_only))
                    results.append(None)
                except errors.ApiError as error:
                    results.append(error)
            return results

    def _check_addition(self, new: NewPartitions, existing: int) -> Topic:
        topic = self._changeable(new.name)
        present = topic.count
        if self._cluster.state.topics[new.name].partitions != present:
            raise errors.StorageError(
                f"an earlier addition of partitions to topic {new.name!r} could neither be finished nor undone: the "
                f"next start finishes it"
            )
        if new.count <= present:
            raise errors.InvalidPartitions(
                f"topic {new.name!r} has {present} partitions, {new.count} were asked for: the new total must be "
                f"greater, and partitions cannot be removed"
            )
        check_partition_count(new.count, new.count - present, existing, self._config)
        if new.replicas:
            if len(new.replicas) != new.count - present:
                raise errors.InvalidReplicaAssignment(
                    f"replicas of {len(new.replicas)} partitions, {new.count - present} are added: give those of each"
                )
            check_replicas(new.replicas, self._cluster.replication_factor(topic.entry), self._cluster.ready)
        self._topics.creator.refuse_remains(keys_of(new.name, range(present, new.count)))
        return topic

    async def _add(self, new: NewPartitions, existing: int, validate_only: bool, version: Version) -> int:
        """Add partitions to one topic, and return how many."""
        topic, total = self._check_addition(new, existing), new.count
        added = range(topic.count, total)
        if validate_only:
            return len(added)
        entry = replace(topic.entry, partitions=total)
        await self._topics.creator.forget(keys_of(topic.name, added))
        added_now = PartitionsAdded(entry.topic_id, entry.name, total)
        await self._cluster.commit([added_now], expected=version, chosen={new.name: new.replicas})
        try:
            await self._topics.assigned(entry, [number for number in self._cluster.here(entry) if number in added])
        except errors.ApiError as error:
            _log.error("partitions could not be added to topic %r: %s", entry.name, error)
            if self._cluster.is_alone:
                # The directories go before the number is written: a start in between creates them again
                try:
                    await self._topics.creator.remove(topic.entry, list(added))
                    await self._cluster.commit([PartitionsAdded(topic.topic_id, topic.name, topic.count)])
                except (OSError, errors.StorageError) as error:
                    _log.error(
                        "the addition of partitions to topic %r cannot be undone, the next start finishes it: %s",
                        topic.name,
                        error,
                    )
            raise
        _log.info("topic %r has %d partitions now, %d more", entry.name, total, len(added))
        return len(added)

    def _changeable(self, name: str) -> Topic:
        """Return the topic. UnknownTopicOrPartition; InvalidTopic for an internal one."""
        topic = self._topics.get(name)
        if topic.is_internal:
            raise errors.InvalidTopic(f"topic {name!r} is internal: only the broker changes it")
        return topic


def _check_request(names: Sequence[str]) -> None:
    if len(names) > MAX_NEW_TOPICS:
        raise errors.InvalidRequest(f"{len(names)} topics to change in one request, {MAX_NEW_TOPICS} are allowed")
    for name, times in Counter(names).items():
        if times > 1:
            raise errors.InvalidRequest(f"topic {name!r} is in the request more than once")
