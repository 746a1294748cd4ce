"""What a broker serves, without the network: directories, topics, coordinators, and the work on their logs."""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.coordinator.on_demand import Coordinators
from warmlog_broker.coordinator.surroundings import Holdings, Surroundings
from warmlog_broker.data_dirs.deletion import DirectoryRemover
from warmlog_broker.data_dirs.loader import LogOpener, Stored
from warmlog_broker.handlers.context import Services
from warmlog_broker.maintenance.housekeeping import Housekeeping
from warmlog_broker.metadata.store import ProducerIds
from warmlog_broker.network.body_threads import BodyThreads
from warmlog_broker.network.connections import Connections
from warmlog_broker.network.memory_pool import MemoryPool, ResponseMemory
from warmlog_broker.replica.cluster_view import ClusterView, LoneClusterView
from warmlog_broker.replica.delayed_fetch import DelayedFetches
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.served_directories import DataDirectories, ServedDirectory
from warmlog_broker.runtime.clock import now_ms, start_clock
from warmlog_broker.runtime.counters import Counters
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.runtime.threads import ThreadPools
from warmlog_broker.runtime.timer_wheel import TimerWheel
from warmlog_broker.security.authorizer import Authorizer
from warmlog_broker.security.quotas import Quotas
from warmlog_broker.security.users import Users
from warmlog_broker.storage.directory.data_dir import CleanEnd
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.log.flush_plan import is_synced_at_once, sync_file_system
from warmlog_broker.topics.broker_changes import BrokerChanges
from warmlog_broker.topics.replica_mover import Moves
from warmlog_broker.topics.topic_changes import TopicChanges
from warmlog_broker.topics.topics import Topics, lead_alone
from warmlog_protocol.errors import StorageError

if TYPE_CHECKING:
    from warmlog_broker.cluster.member import Member
    from warmlog_broker.maintenance.log_check import LogCheck
    from warmlog_broker.maintenance.log_cleaner import LogCleaner

_log = logging.getLogger(__name__)


class Runtime(Struct, frozen=True):
    """What the parts of one broker share."""

    loop: asyncio.AbstractEventLoop
    config: BrokerConfig
    started: BrokerConfig
    """The same without the settings that were altered while a broker ran."""
    threads: ThreadPools
    timers: TimerWheel
    lines: RepeatedLines
    counters: Counters
    memory: MemoryPool
    response_memory: ResponseMemory
    connections: Connections


class Engine:
    """The parts of one broker that requests work on; `undo` of the constructor ends the threads that they start."""

    log_cleaner: "LogCleaner"
    log_check: "LogCheck"

    def __init__(
        self, runtime: Runtime, stored: Stored, opener: LogOpener, undo: ExitStack, member: "Member | None" = None
    ) -> None:
        """`member` is this broker in its cluster; None if it is alone."""
        config, threads = runtime.config, runtime.threads
        self._member = member
        self._runtime = runtime
        self._node, self._cluster = stored.node, stored.cluster
        served = []
        for data in stored.directories.live:
            served.append(ServedDirectory(data, config, threads=threads.disk, trying=threads.trying))
            undo.callback(served[-1].flusher.close)
        self.directories = DataDirectories(served, stored.directories.offline)
        remover = DirectoryRemover(threads.disk)
        remover.add(stored.deleted_paths, 0)
        if member is not None:
            member.replicating.prepare(threads, self.directories)
        self.topics = Topics(
            self._cluster,
            self._node,
            config=config,
            directories=self.directories,
            open_log=opener.create,
            threads=threads.disk,
            on_deleted=remover.add,
            take_role=partial(lead_alone, self._cluster) if member is None else member.replicating.take_role,
        )
        for entry, loaded in stored.topics:
            self.topics.add(entry, loaded)
        self.topics.on_changed.append(self._topic_changed)
        last_written = [data.last_written_ms for data in stored.directories.live]
        self._retention_now_ms = start_clock(
            max((each for each in last_written if each is not None), default=None), config.log_retention_clock_settle_ms
        )
        self.moves = Moves(
            config,
            topics=self.topics,
            directories=self.directories,
            node=self._node,
            threads=threads.disk,
            on_deleted=remover.add,
        )
        self.housekeeping = Housekeeping(
            config=config,
            topics=self.topics,
            directories=self.directories,
            remover=remover,
            threads=threads.disk,
            now_ms=self._retention_now_ms,
        )
        self.services = self._make_services()
        coordinators = self.services.coordinators
        if member is not None:
            requests = member.replicating.requests(self.topics, self._cluster, coordinators)
            self.services.between_brokers = requests
        undo.callback(coordinators.close)
        coordinators.start()

    def add_log_duties(self, undo: ExitStack) -> None:
        """Create what compacts and checks logs, once the broker accepts connections: it takes a while to import."""
        from warmlog_broker.maintenance.log_check import LogCheck
        from warmlog_broker.maintenance.log_cleaner import LogCleaner

        self.log_cleaner = LogCleaner(
            config=self._runtime.config,
            topics=self.topics,
            on_replaced=self.housekeeping.segments_changed,
            now_ms=self._retention_now_ms,
        )
        undo.callback(self.log_cleaner.close)
        self.log_check = LogCheck(self.topics)
        undo.callback(self.log_check.cancel)

    def _topic_changed(self, name: str) -> None:
        if self.topics.find(name) is None:
            self._runtime.counters.forget_topic(name)

    def _make_services(self) -> Services:
        runtime, config = self._runtime, self._runtime.config
        known = self._cluster.state.cluster
        assert known is not None
        cluster: ClusterView = LoneClusterView(known.cluster_id, config.node_id, config.all_listeners)
        if self._member is not None:
            cluster = self._member.cluster_view
        authorizer = Authorizer(self._cluster, config)
        producer_ids = ProducerIds(self._cluster)
        topic_changes = TopicChanges(
            self.topics,
            self._cluster,
            config=config,
            directories=self.directories,
            on_altered=self.housekeeping.keep_retention_soon,
        )
        return Services(
            loop=runtime.loop,
            config=config,
            cluster=cluster,
            topics=self.topics,
            topic_changes=topic_changes,
            broker_changes=BrokerChanges(
                config,
                runtime.started,
                topics=self.topics,
                topic_changes=topic_changes,
                cluster=self._cluster,
                node=self._node,
            ),
            directories=self.directories,
            moves=self.moves,
            delayed_fetches=DelayedFetches(),
            producer_ids=producer_ids,
            coordinators=Coordinators(
                Surroundings(
                    topics=self.topics,
                    cluster=self._cluster,
                    config=config,
                    producer_ids=producer_ids,
                    authorizer=authorizer,
                    timers=runtime.timers,
                    lines=runtime.lines,
                    threads=runtime.threads.cold_readers,
                    retention_now_ms=self._retention_now_ms,
                    holdings=Holdings(config),
                )
            ),
            users=Users(self._cluster, now_ms),
            quotas=Quotas(self._cluster, runtime.loop.time, config.quota_max_throttle_ms),
            authorizer=authorizer,
            cold_readers=runtime.threads.cold_readers,
            bodies=BodyThreads(runtime.threads.preparers, runtime.memory),
            response_memory=runtime.response_memory,
            counters=runtime.counters,
            connections=runtime.connections,
            lines=runtime.lines,
        )

    async def close_logs(self) -> bool:
        """Close the logs of each directory, and store their ends there; return whether all were closed in order."""
        closed = await asyncio.gather(*(self._close_directory(directory) for directory in self.directories))
        try:
            await self._node.close()
        except StorageError as error:
            _log.error("the metadata log could not be closed; the next start will check it: %s", error)
            return False
        return all(closed) and self.directories.are_all_live

    async def _close_directory(self, directory: ServedDirectory) -> bool:
        """Return whether all its logs were closed without an error, and a marker for the next start was written."""
        await directory.wait_for_probe()
        partitions = list(directory.partitions)
        loop, disk = self._runtime.loop, self._runtime.threads.disk
        try:
            closing = partial(close_logs, directory.path, partitions, self._runtime.config)
            ends = await loop.run_in_executor(disk, closing)
            directory.checkpoints.note(partitions)
            if not directory.is_live:
                return False
            await directory.checkpoints.write()
            await loop.run_in_executor(disk, directory.data.mark_clean, ends)
        except OSError as error:
            _log.error("the next start will check all logs in %s: %s", directory.path, error)
            return False
        return len(ends) == len(partitions)


def close_logs(
    directory: Path, partitions: Sequence[Partition], config: BrokerConfig
) -> dict[TopicPartition, CleanEnd]:
    """Sync and close every log of a data directory; return the ends of those that could be closed.

    Blocks on the disk: call it in a thread, once the logs are no longer in use. Raises OSError if the file system
    cannot be synced as a whole: then no end of a log may be stored.
    """
    at_once = is_synced_at_once(len(partitions), config.flush_syncfs_files)
    with ThreadPoolExecutor(config.num_recovery_threads, "close") as threads:
        found = threads.map(lambda partition: _close(partition, sync=not at_once), partitions)
        ends = {partition.key: end for partition, end in zip(partitions, found, strict=True) if end is not None}
    if at_once and ends:
        sync_file_system(directory)
    return ends


def _close(partition: Partition, *, sync: bool) -> CleanEnd | None:
    try:
        return partition.close(sync=sync)
    except (OSError, StorageError) as error:
        _log.critical("%s could not be closed: %s", partition.key.directory_name, error)
        return None
