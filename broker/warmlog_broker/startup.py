"""From a data directory to topics that can be served.

In this order: the directory is locked and its marker of a clean stop taken away, the metadata log is read, deletions
that a crash interrupted are finished, every partition is opened and, after an unclean stop, checked. A partition that
cannot be opened is offline; it does not keep the others from being served.
"""

import fcntl
import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from warmlog_broker.config import BrokerConfig
from warmlog_broker.deletion import rename_deleted
from warmlog_broker.log.config import LogConfig
from warmlog_broker.log.directory import FORMAT_NAME, LOCK_NAME, DataDirectory, DataDirectoryError
from warmlog_broker.log.log import Log
from warmlog_broker.log.open_files import OpenFiles
from warmlog_broker.log.topic_partition import TopicPartition
from warmlog_broker.metadata_log import (
    FILE_NAME,
    AnyEntry,
    ClusterCreated,
    MetadataLog,
    ProducerIdsReserved,
    TopicCreated,
    TopicRemoved,
    UncleanStart,
)
from warmlog_protocol.errors import ApiError, StorageError

PROGRESS_INTERVAL_S = 1.0

_log = logging.getLogger(__name__)


def now_ms() -> int:
    """The time of day."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Stored:
    """What a data directory holds, opened."""

    directory: DataDirectory
    metadata_log: MetadataLog
    topics: list[tuple[TopicCreated, list[Log | None]]]
    deleted_paths: list[Path]
    """Directories of deleted topics that are to be removed."""


class LogOpener:
    """Opens and creates the logs of one data directory."""

    def __init__(self, directory: DataDirectory, open_files: OpenFiles) -> None:
        self._directory = directory
        self._open_files = open_files

    def create(self, entry: TopicCreated, index: int, config: LogConfig) -> Log:
        """The log of a new topic's partition, empty, and ready to be appended to."""
        key = TopicPartition(entry.name, index)
        log = Log.open(
            self._directory.partition_path(key),
            key=key,
            topic_id=UUID(bytes=entry.topic_id),
            config=config,
            open_files=self._open_files,
            now_ms=now_ms(),
        )
        log.begin_epoch(entry.leader_epoch)
        return log

    def load(self, entry: TopicCreated, index: int, config: LogConfig) -> Log:
        """The log of a partition that may hold data. On return all that it holds is durable, and may be read.

        StorageError when it cannot be opened, or when its directory has gone although there was data in it.
        """
        key = TopicPartition(entry.name, index)
        path = self._directory.partition_path(key)
        stored = self._directory.stored_state(key)
        if not path.is_dir():
            if stored.offsets.recovery_point:
                raise StorageError(
                    f"{path} is missing, although it held records up to offset {stored.offsets.recovery_point}: "
                    f"put it back, or delete the topic"
                )
            _log.info("%s is made: the broker stopped before it was", path)
        log = Log.open(
            path,
            key=key,
            topic_id=UUID(bytes=entry.topic_id),
            config=config,
            open_files=self._open_files,
            now_ms=now_ms(),
            stored=stored,
            max_leader_epoch=entry.leader_epoch,
        )
        log.update_high_watermark(log.log_end_offset)
        if entry.leader_epoch > log.latest_epoch:
            log.begin_epoch(entry.leader_epoch)
        return log


class Progress:
    """Tells how far loading has come, now and then."""

    def __init__(self, report: Callable[[int, int], None]) -> None:
        self._report = report
        self._reported_s = time.monotonic()

    def note(self, done: int, total: int) -> None:
        """So many of so many partitions are done."""
        now_s = time.monotonic()
        if now_s - self._reported_s >= PROGRESS_INTERVAL_S:
            self._reported_s = now_s
            self._report(done, total)


def refuse_if_locked(data_dir: Path) -> None:
    """DirectoryLocked when another broker holds `data_dir`. Changes nothing."""
    try:
        with open(data_dir / LOCK_NAME, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        DataDirectory.open(data_dir).close()
    except OSError:
        return


def lock_and_read(config: BrokerConfig) -> tuple[DataDirectory, MetadataLog]:
    """Locks the data directory and reads its metadata log, which is made when the directory is new.

    Raises DataDirectoryError or StorageError, which say what is wrong and what to do.
    """
    path = Path(config.data_dir)
    was_used = (path / FORMAT_NAME).exists()
    directory = DataDirectory.open(path)
    try:
        if was_used and _is_missing_or_empty(path / FILE_NAME) and directory.partitions():
            raise DataDirectoryError(
                f"{path / FILE_NAME} is missing or empty, although the directory was used before: without it nobody "
                f"knows which topics there are. Restore the file from a backup; nothing was changed"
            )
        metadata_log, cut_bytes = MetadataLog.open(path)
        if cut_bytes:
            _log.warning("%s: %d bytes of a torn write were cut from its end", metadata_log.path, cut_bytes)
        try:
            _begin_metadata(directory, metadata_log, config)
        except BaseException:
            metadata_log.close()
            raise
    except BaseException:
        directory.close()
        raise
    return directory, metadata_log


def _is_missing_or_empty(path: Path) -> bool:
    return not path.exists() or path.stat().st_size == 0


def _begin_metadata(directory: DataDirectory, metadata_log: MetadataLog, config: BrokerConfig) -> None:
    """Makes a new directory a cluster; notes an unclean start; finishes deletions."""
    state = metadata_log.state
    entries: list[AnyEntry] = []
    if state.cluster is None:
        entries.append(ClusterCreated(str(uuid4()), config.node_id, now_ms()))
    elif state.cluster.node_id != config.node_id:
        raise DataDirectoryError(
            f"{directory.path} belongs to node {state.cluster.node_id}, but node.id is {config.node_id}"
        )
    elif not directory.was_clean:
        entries.append(UncleanStart(now_ms()))
    for deleted in state.deleted.values():
        rename_deleted(directory.path, deleted)
        entries.append(TopicRemoved(deleted.topic_id))
    commit(metadata_log, entries)


def commit(metadata_log: MetadataLog, entries: Iterable[AnyEntry]) -> None:
    """Makes `entries` durable at once, while nobody else uses the log."""
    entries = list(entries)
    if entries:
        metadata_log.append(entries)
        metadata_log.flush()
        for entry in entries:
            metadata_log.state.apply(entry)


def load_partitions(
    directory: DataDirectory,
    metadata_log: MetadataLog,
    opener: LogOpener,
    config: BrokerConfig,
    progress: Progress,
) -> Stored:
    """Opens every partition, in threads."""
    state = metadata_log.state
    _warn_of_strangers(directory, state.topics)
    defaults = config.topic_defaults
    logs: dict[str, list[Log | None]] = {name: [None] * entry.partitions for name, entry in state.topics.items()}
    total = sum(map(len, logs.values()))
    with ThreadPoolExecutor(config.num_recovery_threads, "recovery") as threads, _without_collector():
        futures = {}
        for name, entry in state.topics.items():
            log_config = LogConfig.from_settings(entry.settings, base=defaults)
            for index in range(entry.partitions):
                futures[threads.submit(opener.load, entry, index, log_config)] = (name, index)
        for done, future in enumerate(as_completed(futures), 1):
            name, index = futures[future]
            try:
                logs[name][index] = future.result()
            except ApiError as error:
                _log.critical("%s-%d IS OFFLINE: %s", name, index, error)
            progress.note(done, total)
    _reserve_adopted_producers(metadata_log, logs.values())
    topics = [(entry, logs[name]) for name, entry in state.topics.items()]
    return Stored(directory, metadata_log, topics, directory.deleted_partitions())


@contextmanager
def _without_collector() -> Iterator[None]:
    """Nothing that is made within is garbage: looking for some takes a third of the time of a clean start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _warn_of_strangers(directory: DataDirectory, topics: dict[str, TopicCreated]) -> None:
    for key, path in directory.partitions().items():
        topic = topics.get(key.topic)
        if topic is None or key.partition >= topic.partitions:
            _log.warning("%s belongs to no topic of this broker and is left alone", path)


def _reserve_adopted_producers(metadata_log: MetadataLog, logs: Iterable[list[Log | None]]) -> None:
    """Ids that some log knows are never given out, whoever wrote them."""
    largest = max((log.producers.max_producer_id for group in logs for log in group if log is not None), default=-1)
    if largest >= metadata_log.state.next_producer_id:
        _log.info("producer ids up to %d are in use by logs from elsewhere", largest)
        commit(metadata_log, [ProducerIdsReserved(largest + 1)])
