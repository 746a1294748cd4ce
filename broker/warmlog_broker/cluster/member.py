"""One broker of a cluster: what it has beside the parts of a broker that is alone, in the order of its start."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from warmlog_broker.cluster.copy_of_etcd import keep_copy, read_copy, store_copy
from warmlog_broker.cluster.keys import Keys, Registration
from warmlog_broker.cluster.replicating import Replicating
from warmlog_broker.cluster.session import Session
from warmlog_broker.cluster.start import (
    are_disks_old,
    change_records,
    forget_missing,
    read_cluster,
    replicas_of,
    wait_for_former,
)
from warmlog_broker.cluster.store import EtcdStore
from warmlog_broker.cluster.topic_sync import TopicSync
from warmlog_broker.cluster.view import Applied, EtcdClusterView, View
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.directory_set import DirectorySet, finish_deletions
from warmlog_broker.data_dirs.loader import Stored
from warmlog_broker.etcd.client import EtcdClient
from warmlog_broker.etcd.connection import EtcdOptions
from warmlog_broker.metadata.store import NodeStore
from warmlog_broker.runtime.tasks import Tasks
from warmlog_broker.topics.broker_changes import BrokerChanges
from warmlog_broker.topics.topic_changes import TopicChanges
from warmlog_broker.topics.topics import Topics

_log = logging.getLogger(__name__)


class Member:
    """This broker in its cluster."""

    def __init__(self, config: BrokerConfig, node: NodeStore, directories: DirectorySet, ports: dict[str, int]) -> None:
        """`ports` are those at which its listeners are bound. InvalidConfig for files that cannot be read."""
        self._etcd = EtcdClient(
            EtcdOptions.given(
                config.cluster_etcd,
                config.cluster_etcd_user,
                config.cluster_etcd_password_file,
                config.cluster_etcd_ca_file,
                config.cluster_etcd_cert_file,
                config.cluster_etcd_key_file,
            )
        )
        self._config = config
        self._node = node
        self._directories = directories
        self.view = View(self._etcd, Keys(config.cluster_id), config.node_id)
        self.store = EtcdStore(self._etcd, self.view, config)
        described = Registration(
            endpoints={each.name: each.advertised or (each.host, ports[each.name]) for each in config.all_listeners},
            peer_listener=config.peer_listener.name,
            directories=sorted(each.directory_id.hex for each in directories.live),
            rack=config.rack,
        )
        self.cluster_view = EtcdClusterView(self.view, described)
        self.session = Session(self._etcd, self.view, node, described, config.broker_session_timeout_ms)
        self.replicating = Replicating(config, self._etcd, self.view, self.session, node)
        self._are_disks_old = False
        self._threads: Executor
        self._tasks = Tasks()

    async def read(self, threads: Executor, is_given_up: Callable[[], bool]) -> None:
        """Read the cluster from etcd, before any log is opened. Raises StartRefused, StartGivenUp."""
        self._threads = threads
        await read_cluster(self.view, is_given_up)
        timeout_s = 2 * self._config.broker_session_timeout_ms / 1000
        await wait_for_former(self.view, self.session.described.directories, timeout_s)
        copy = read_copy(self._directories.first.path)
        self._are_disks_old = are_disks_old(self.view, self.session, self._node.state, copy)
        # Remove what is left here of topics that were deleted while this broker was away.
        names = {topic.topic_id: topic.name for topic in self.view.state.topics.values()}
        gone = self.store.deleted_of(self._node.state.assignments.keys() - names.keys())
        if gone:
            await self._node.commit(gone)
            loop, present = asyncio.get_running_loop(), self.view.state.topics
            is_complete = not self._directories.offline
            removed = await loop.run_in_executor(
                threads, lambda: finish_deletions(self._directories, gone, present, is_complete=is_complete)
            )
            await self._node.commit(removed)

    async def enter(self, stored: Stored) -> None:
        """Say in the records what the start has found in the logs, and register.

        Raises NodeInUse if another broker has this one's node id, and Refused.
        """
        self._tasks.start(self.view.follow(), name="follow etcd")
        found = replicas_of(
            self.view, stored, self.store.left_open, self._config.topic_defaults, are_old=self._are_disks_old
        )
        if any(replica.reason is not None for replica in found):
            await self.session.unregister()
        await change_records(self._etcd, self.view, found)
        forget_missing(stored)
        await self.session.begin_incarnation()
        await self.session.register(was_clean=all(each.was_clean for each in stored.directories.live))
        self.session.begin()
        _log.info(
            "node %d of the cluster %s: incarnation %d, broker epoch %d, brokers: %s",
            self.view.node,
            self._config.cluster_id,
            self.session.incarnation,
            self.session.broker_epoch,
            ", ".join(map(str, sorted(self.view.brokers))),
        )

    def begin(
        self, topics: Topics, changes: TopicChanges, broker_changes: BrokerChanges, on_access: Callable[[], None]
    ) -> None:
        """Carry out what the cluster decides, from now on; `on_access`: after users, rules or quotas."""
        sync = TopicSync(self.store, topics, changes, broker_changes, self.replicating.replicas.is_member)

        def applied(what: Applied) -> None:
            sync.note(what)
            if what.is_access:
                on_access()

        self.view.on_applied.append(applied)
        self._tasks.start(sync.run(), name="sync topics")
        keeping = keep_copy(self.view, self._directories.first.path, self._threads)
        self._tasks.start(keeping, name="keep a copy of etcd")
        self._etcd.endpoints.on_call = self.replicating.figures.called
        self.replicating.begin()

    async def leave(self) -> None:
        """End the registration, after the logs are closed."""
        await self.session.end()
        self._tasks.cancel()
        await self._tasks.finish(1.0)
        await store_copy(self.view, self._directories.first.path, self._threads)
        await self._etcd.close()

    def abandon(self) -> None:
        """End all that runs, and tell the other brokers nothing: as a crash."""
        self.session.abandon()
        self._tasks.cancel()
