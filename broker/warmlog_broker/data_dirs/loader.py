"""Loads the topics in the data directories.

In this order: the directories are locked, their markers of a clean stop removed, the metadata log is read, interrupted
deletions are finished (all in `directory_set`); every partition is found (`assignment`), opened and, after an unclean
stop, checked. A partition that cannot be opened is offline; the others are served.
"""

import asyncio
import gc
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.assignment import Assigned, Assignments, Lost, find_assignments
from warmlog_broker.data_dirs.directory_set import DirectorySet
from warmlog_broker.metadata.metadata_log import (
    ClusterState,
    PartitionsAssigned,
    ProducerIdsReserved,
    TopicCreated,
    partitions_assigned,
)
from warmlog_broker.metadata.store import ClusterStore, NodeStore
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.data_dir import NEVER_STORED, DataDirectory
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.recovery.latest_epoch import latest_epoch
from warmlog_protocol.batch.header import NO_LEADER_EPOCH
from warmlog_protocol.errors import ApiError, WarmlogError

PROGRESS_INTERVAL_S = 1.0
BYTES_A_THREAD = 8 * 1024 * 1024
"""A directory in which less is to be checked is loaded by one thread, as several wait for the interpreter lock, not the
disk. Measured, 10,000 segments: 0.94 s with one thread, 1.25 s with four; 1.33 s and 1.46 s with cold caches."""
MANY_NAMES = 10
"""The most partitions that one log line names."""

_log = logging.getLogger(__name__)


class LoadedPartition(NamedTuple):
    """A partition that is served, or offline. `directory` is None if it is unknown or missing."""

    directory: DataDirectory | None
    log: Log | None
    failure: str = ""
    """Why there is no log."""


class Stored(Struct, frozen=True):
    """The opened content of the data directories."""

    directories: DirectorySet
    node: NodeStore
    cluster: ClusterStore
    topics: list[tuple[TopicCreated, dict[int, LoadedPartition]]]
    """Each with its partitions here, by their numbers."""
    deleted_paths: list[Path]
    """Directories of deleted topics that are to be removed."""
    futures: list[tuple[TopicPartition, DataDirectory, Path]]
    """Copies of partitions that were being moved into a directory."""


class StartGivenUp(WarmlogError):
    """The broker was told to stop before it served."""

    def __init__(self) -> None:
        super().__init__("the broker was told to stop before it served")


class StartRefused(WarmlogError):
    """The broker may not start as it is; the message says what to do."""


class LogOpener:
    """Opens and creates logs."""

    def __init__(
        self,
        open_files: OpenFiles,
        *,
        max_producers: int = sys.maxsize,
        is_given_up: Callable[[], bool] = lambda: False,
        after_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Each log remembers at most `max_producers`. Once `is_given_up`, `load` opens no further logs. `after_bytes`
        is called, in the thread that checks a log, with the size of what was checked."""
        self._open_files = open_files
        self._max_producers = max_producers
        self._is_given_up = is_given_up
        self._after_bytes = after_bytes

    def create(self, directory: DataDirectory, entry: TopicCreated, index: int, config: LogConfig) -> Log:
        """Create the empty log of a new topic's partition."""
        return self.load(directory, entry, index, config, entry.leader_epoch, is_new=True)

    def load(
        self,
        directory: DataDirectory,
        entry: TopicCreated,
        index: int,
        config: LogConfig,
        leader_epoch: int,
        *,
        is_new: bool = False,
    ) -> Log:
        """Open the log of a partition, which may hold data unless it is new. On return all of it is durable.

        StorageError if it cannot be opened, StartGivenUp if the broker was told to stop meanwhile.
        """
        if self._is_given_up() and not is_new:
            raise StartGivenUp
        key = TopicPartition(entry.name, index)
        log = Log.open(
            directory.partition_path(key),
            key=key,
            topic_id=UUID(bytes=entry.topic_id),
            config=config,
            open_files=self._open_files,
            now_ms=now_ms(),
            stored=NEVER_STORED if is_new else directory.stored_state(key),
            is_start_known=not is_new and directory.knows_start(key),
            max_leader_epoch=leader_epoch,
            after_bytes=self._after_bytes,
        )
        log.producers.limit = self._max_producers
        return log


class LoadingProgress:
    """Reports the progress of loading every PROGRESS_INTERVAL_S."""

    def __init__(self, report: Callable[[int, int, int], None]) -> None:
        """`report` is called with how many logs are open, how many there are, and the bytes that were checked."""
        self._report = report
        self._checked_bytes = 0
        self._reported_s = time.monotonic()

    def add_checked(self, size_bytes: int) -> None:
        """Note that so many bytes were checked, in the thread that did. A count that is a little off does no harm."""
        self._checked_bytes += size_bytes

    def wait(self, futures: Collection[Future[Log]]) -> Iterator[Future[Log]]:
        """Yield each of `futures` when it is done, and report as long as one is not."""
        waiting, count = set(futures), 0
        while waiting:
            try:
                for future in as_completed(waiting, PROGRESS_INTERVAL_S):
                    yield future
                    waiting.remove(future)
                    count += 1
                    self._note(count, len(futures))
            except TimeoutError:
                self._note(count, len(futures))

    def _note(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s - self._reported_s >= PROGRESS_INTERVAL_S:
            self._reported_s = now_s
            self._report(done, total, self._checked_bytes)


async def load_partitions(
    directories: DirectorySet,
    node: NodeStore,
    cluster: ClusterStore,
    opener: LogOpener,
    config: BrokerConfig,
    progress: LoadingProgress,
    threads: Executor,
) -> Stored:
    """Find and open every partition, in threads of each directory's own; `threads` wait for them.

    The cluster is asked for leader epochs before the first log is opened.
    """
    loop, topics = asyncio.get_running_loop(), cluster.state.topics
    assignments = await loop.run_in_executor(threads, find_assignments, directories, cluster, node.state)
    await node.commit(assignments.changes)
    latest, to_check = await loop.run_in_executor(threads, _to_begin, assignments, directories, cluster.state)
    await cluster.begin_epochs(latest)
    opening = partial(_open_logs, assignments, to_check, cluster.state, opener, config, progress)
    loaded = await loop.run_in_executor(threads, opening)
    await _reserve_adopted_producers(cluster, loaded.values())
    await node.commit(new_assignments(assignments, loaded, topics))
    return Stored(
        directories,
        node,
        cluster,
        [(entry, loaded[name]) for name, entry in topics.items()],
        [path for directory in directories.live for path in directory.deleted_partitions()],
        assignments.futures,
    )


def _open_logs(
    assignments: Assignments,
    to_check: Counter[Path],
    state: ClusterState,
    opener: LogOpener,
    config: BrokerConfig,
    progress: LoadingProgress,
) -> dict[str, dict[int, LoadedPartition]]:
    loaded: dict[str, dict[int, LoadedPartition]] = {name: {} for name in state.topics}
    configs = {
        name: LogConfig.from_settings(entry.settings, base=config.topic_defaults)
        for name, entry in state.topics.items()
    }
    waiting: dict[Future[Log], tuple[TopicPartition, DataDirectory]] = {}
    with _without_collector(), ExitStack() as threads:
        pools: dict[Path, ThreadPoolExecutor] = {}
        for key, assigned in assignments.by_key.items():
            loaded[key.topic][key.partition] = _not_loaded(key, assigned)
            if isinstance(assigned, Assigned):
                directory, entry = assigned.directory, state.topics[key.topic]
                if directory.path not in pools:
                    count = min(config.num_recovery_threads, 1 + to_check[directory.path] // BYTES_A_THREAD)
                    pools[directory.path] = ThreadPoolExecutor(count, "recovery")
                    threads.callback(pools[directory.path].shutdown, cancel_futures=True)
                epoch = state.leader_epoch(entry, key.partition)
                future = pools[directory.path].submit(
                    opener.load, directory, entry, key.partition, configs[key.topic], epoch
                )
                waiting[future] = key, directory
        for future in progress.wait(waiting):
            key, directory = waiting[future]
            loaded[key.topic][key.partition] = _outcome(key, directory, future)
    return loaded


def _to_begin(
    assignments: Assignments, directories: DirectorySet, state: ClusterState
) -> tuple[dict[TopicPartition, int], Counter[Path]]:
    """Return the latest leader epoch in the log of each partition that needs a new one (see `begin_epochs`), and how
    many bytes last segments have after their restart points, by directory: about what is to be checked."""
    found = dict.fromkeys(_left_open(assignments, directories), NO_LEADER_EPOCH)
    to_check: Counter[Path] = Counter()
    later = []
    for key, assigned in assignments.by_key.items():
        if isinstance(assigned, Assigned) and not assigned.is_new:
            known = state.leader_epoch(state.topics[key.topic], key.partition)
            path = assigned.directory.partition_path(key)
            latest, size_bytes = latest_epoch(path, known, was_closed=key not in found)
            to_check[assigned.directory.path] += size_bytes
            if latest > known:
                later.append(f"{key.directory_name} ({latest}, not {known})")
            if latest > known or key in found:
                found[key] = latest
    if later:
        _log.warning("logs have later leader epochs than the metadata log, which is an earlier copy: %s", _some(later))
    return found, to_check


def _left_open(assignments: Assignments, directories: DirectorySet) -> list[TopicPartition]:
    """Return the partitions whose logs the last stop did not close."""
    found, left_open = [], []
    unclean = {}
    for key in assignments.by_key:
        directory = assignments.last_served_from(key, directories)
        if directory is None or directory.is_new or directory.was_closed(key):
            continue
        if not directory.was_clean:
            unclean[directory.path] = True
        elif key in assignments.known:
            left_open.append(key.directory_name)
        else:
            continue
        found.append(key)
    if unclean:
        _log.info("not stopped cleanly, its logs are checked: %s", ", ".join(map(str, unclean)))
    if left_open:
        _log.info("not closed by the last clean stop, %d logs are checked: %s", len(left_open), _some(left_open))
    return found


def _some(names: list[str]) -> str:
    return ", ".join(names[:MANY_NAMES]) + ", …" * (len(names) > MANY_NAMES)


def _not_loaded(key: TopicPartition, assigned: Assigned | Lost) -> LoadedPartition:
    """Return the partition before its log is opened, or without one."""
    if isinstance(assigned, Assigned):
        return LoadedPartition(assigned.directory, None)
    _log.critical("%s IS OFFLINE: %s", key.directory_name, assigned.reason)
    return LoadedPartition(assigned.directory, None, assigned.reason)


def _outcome(key: TopicPartition, directory: DataDirectory, future: "Future[Log]") -> LoadedPartition:
    try:
        return LoadedPartition(directory, future.result())
    except ApiError as error:
        _log.critical("%s IS OFFLINE: %s", key.directory_name, error)
        return LoadedPartition(directory, None, str(error))


def new_assignments(
    assignments: Assignments, loaded: dict[str, dict[int, LoadedPartition]], topics: dict[str, TopicCreated]
) -> Iterator[PartitionsAssigned]:
    """Return the entries for opened partitions that the metadata log does not assign to where they were found."""
    for name, entry in topics.items():
        found = {
            index: partition.directory.directory_id.bytes
            for index, partition in loaded[name].items()
            if partition.directory is not None
            and partition.log is not None
            and assignments.is_unrecorded(TopicPartition(name, index))
        }
        yield from partitions_assigned(entry.topic_id, found)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Suspend the garbage collector: a clean start creates no garbage, and collections take a third of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def _reserve_adopted_producers(cluster: ClusterStore, groups: Iterable[dict[int, LoadedPartition]]) -> None:
    """Never assign producer ids that a log from elsewhere contains."""
    logs = [partition.log for group in groups for partition in group.values() if partition.log is not None]
    largest = max((log.producers.max_producer_id for log in logs), default=-1)
    if largest >= cluster.state.next_producer_id:
        _log.info("producer ids up to %d are in use by logs from elsewhere", largest)
        await cluster.commit([ProducerIdsReserved(largest + 1)])
