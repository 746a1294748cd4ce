"""Carries out on one broker what the cluster has decided about topics: those that other brokers created, changed or
deleted, and partitions that come to this broker or leave it; and about the settings of all brokers."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.cluster.store import EtcdStore
from warmlog_broker.cluster.view import Applied
from warmlog_broker.topics.broker_changes import BrokerChanges
from warmlog_broker.topics.partition_creation import keys_of
from warmlog_broker.topics.topic_changes import TopicChanges
from warmlog_broker.topics.topics import Topics
from warmlog_protocol.errors import WarmlogError

RETRY_S = 1.0
"""After an error of the disk."""
SETTINGS = ""
"""Those of all brokers, among what is due."""

_log = logging.getLogger(__name__)


class TopicSync:
    """Brings the topics of this broker to what the view has, one at a time."""

    def __init__(
        self,
        store: EtcdStore,
        topics: Topics,
        changes: TopicChanges,
        broker_changes: BrokerChanges,
        is_member: Callable[[PartitionKey], bool],
    ) -> None:
        """`is_member`: whether the latest record that the replica here knows of a partition names this broker."""
        self._store = store
        self._is_member = is_member
        self._topics = topics
        self._changes = changes
        self._broker_changes = broker_changes
        self._due: set[str] = {SETTINGS, *store.state.topics, *(topic.name for topic in topics)}
        self._is_due = asyncio.Event()
        self._is_due.set()
        self._announce(store.state.topics)

    def note(self, applied: Applied) -> None:
        """Take in what a revision has changed."""
        self._due |= applied.topics | ({SETTINGS} if applied.are_settings else set())
        self._announce(applied.topics)
        for key, seen in applied.records.items():
            topic = self._topics.find_by_id(key.topic_id)
            if topic is not None and seen is not None:
                is_here = self._store.view.node in seen.record.replicas
                # What is being changed may be brought to what the record said before.
                is_due = self._topics.changing.locked() or is_here != (key.number in topic.local)
                if is_due and key.number < topic.count:
                    self._due.add(topic.name)
        if self._due:
            self._is_due.set()

    def _announce(self, names: Iterable[str]) -> None:
        """Let clients know new topics at once, and ask again for partitions that are not created here yet."""
        for name in names:
            if (entry := self._store.state.topics.get(name)) is not None and self._topics.find(name) is None:
                self._topics.add(entry, {})

    async def run(self) -> None:
        """Carry out changes for as long as the broker runs."""
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            failed = set()
            while self._due:
                name = self._due.pop()
                try:
                    async with self._topics.changing:
                        await (self._bring(name) if name else self._broker_changes.follow())
                except Exception as error:
                    is_known = isinstance(error, (WarmlogError, OSError))
                    what = f"topic {name!r} is" if name else "settings are"
                    _log.error("%s not as the cluster has it, trying again: %s", what, error, exc_info=not is_known)
                    failed.add(name)
            if failed:
                await asyncio.sleep(RETRY_S)
                self._due |= failed
                self._is_due.set()

    async def _bring(self, name: str) -> None:
        """Bring one topic to what the view has."""
        entry, topic = self._store.state.topics.get(name), self._topics.find(name)
        if topic is not None and (entry is None or entry.topic_id != topic.topic_id):
            await self._topics.drop(topic)
            topic = None
        if entry is None:
            return
        if topic is not None and entry.settings != topic.entry.settings:
            await self._changes.put_in_force([replace(topic.entry, settings=entry.settings)])
        here, local = self._store.here(entry), {} if topic is None else topic.local
        missing = [number for number in here if number not in local]
        if topic is None or missing or entry.partitions != topic.count:
            await self._topics.creator.forget(keys_of(name, missing))
            await self._topics.assigned(entry, missing)
            _log.info("topic %r is as the cluster has it, partitions of this broker: %d", name, len(here))
        # A replica may know a later record than the view, which names it again.
        leaving = [n for n in local if n not in here and not self._is_member(PartitionKey(entry.topic_id, n))]
        if leaving:
            await self._topics.leave(name, leaving)
