"""Locks and identifies the data directories at a start, and compares them with the metadata log.

The first of `data.dirs` holds `metadata.log`, which names the topics: a broker that cannot use it does not start. Any
other directory that cannot be used (not mounted, not readable, not the same one as before) is offline until the next
start, with the partitions that the metadata log assigns to it; the rest is served.

What an operator must decide is refused with an error, before anything is changed: a directory of another cluster, one
that another broker has locked, one that is given twice under different names, one that a newer version wrote, and a
directory of other files (a home directory, a source tree).
"""

import fcntl
import logging
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID, uuid4

from msgspec import Struct

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.deletion import rename_deleted
from warmlog_broker.metadata.log_file import FILE_NAME, MetadataLog
from warmlog_broker.metadata.metadata_log import (
    ClusterCreated,
    DirectoryForgotten,
    DirectoryKnown,
    Entry,
    NodeState,
    TopicDeleted,
    TopicRemoved,
)
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.storage.directory.data_dir import KAFKA_PROPERTIES_NAME, DataDirectory
from warmlog_broker.storage.directory.dir_lock import LOCK_NAME, DirectoryLocked
from warmlog_broker.storage.directory.properties import (
    FORMAT_NAME,
    DataDirectoryError,
    ForeignDirectory,
    UnsupportedFormat,
    read_format,
)
from warmlog_broker.storage.directory.topic_partition import parse_directory_name

KNOWN_FILES = frozenset({FILE_NAME, FORMAT_NAME, KAFKA_PROPERTIES_NAME})
"""One of these marks a data directory, of warmlog or of Kafka; the latter is refused with another message."""
HARMLESS_NAMES = frozenset({LOCK_NAME, "lost+found", ".snapshot"})
"""What a start that was cut short leaves, and what a file system itself has in an empty volume."""
MAX_NAMED = 5

_log = logging.getLogger(__name__)


class OfflineDirectory(Struct, frozen=True):
    """A data directory that belongs to the cluster and cannot be used."""

    path: Path
    directory_id: UUID | None
    """None if it could not be read."""
    reason: str


class DirectorySet(Struct, frozen=True):
    """All data directories of a broker, as found at its start."""

    live: list[DataDirectory]
    """At least one; the first one holds the metadata log."""
    offline: list[OfflineDirectory]

    @property
    def first(self) -> DataDirectory:
        return self.live[0]

    def get(self, directory_id: bytes) -> DataDirectory | None:
        return next((directory for directory in self.live if directory.directory_id.bytes == directory_id), None)

    def why_offline(self, directory_id: bytes, state: NodeState) -> str:
        """Return why `get` does not find a directory."""
        for directory in self.offline:
            if directory.directory_id is not None and directory.directory_id.bytes == directory_id:
                return directory.reason
        path = state.directories.get(directory_id, "an unknown path")
        return f"the data directory with the id {UUID(bytes=directory_id)}, last seen at {path}, is not in data.dirs"

    def close(self) -> None:
        """Release all locks."""
        for directory in self.live:
            directory.close()


def refuse_other_files(path: Path) -> None:
    """Raise ForeignDirectory if `path` is not a data directory and holds files of others. Changes nothing."""
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError:
        return  # missing, or the error of the lock says why it cannot be used
    if KNOWN_FILES.intersection(names):
        return
    others = [name for name in names if name not in HARMLESS_NAMES and parse_directory_name(name) is None]
    if others:
        listed = ", ".join(others[:MAX_NAMED]) + (f" and {len(others) - MAX_NAMED} more" if others[MAX_NAMED:] else "")
        raise ForeignDirectory(
            f"{path} is not a data directory of warmlog and is not empty, it holds {listed}: give an empty directory "
            f"or a new one. Nothing was changed"
        )


def refuse_if_locked(data_paths: Iterable[Path]) -> None:
    """Raise DirectoryLocked if another broker holds one of `data_paths`. Changes nothing."""
    for path in data_paths:
        try:
            with open(path / LOCK_NAME, "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            DataDirectory.lock(path).close()
        except OSError:
            continue


def lock_and_read(config: BrokerConfig) -> tuple[DirectorySet, MetadataLog]:
    """Lock the data directories and read the metadata log, which is created if the first directory is new.

    Raises DataDirectoryError or StorageError, which say what is wrong and what to do.
    """
    paths = [path.absolute() for path in config.data_paths]
    refuse_other_files(paths[0])
    first = DataDirectory.lock(paths[0])
    directories = DirectorySet([first], [])
    with ExitStack() as undo:
        undo.callback(directories.close)
        _refuse_lost_metadata(first, paths[1:])
        metadata_log, cut_bytes = MetadataLog.open(first.path)
        undo.callback(metadata_log.close)
        if cut_bytes:
            _log.warning("%s: %d bytes of a torn write were cut from its end", metadata_log.path, cut_bytes)
        _join_directories(directories, paths, metadata_log, config)
        state = metadata_log.state
        entries: list[Entry] = [
            DirectoryKnown(directory.directory_id.bytes, str(directory.path))
            for directory in directories.live
            if state.directories.get(directory.directory_id.bytes) != str(directory.path)
        ]
        entries += _forget_directories(directories, state)
        live_ids = {directory.directory_id.bytes for directory in directories.live}
        is_complete = not directories.offline and live_ids.issuperset(state.directories)
        entries += finish_deletions(directories, state.deleted.values(), state.topics, is_complete=is_complete)
        commit(metadata_log, entries)
        undo.pop_all()
    return directories, metadata_log


def commit(metadata_log: MetadataLog, entries: Iterable[Entry]) -> None:
    """Make `entries` durable at once, while nothing else uses the log."""
    entries = list(entries)
    if entries:
        metadata_log.append(entries)
        metadata_log.flush()
        for entry in entries:
            metadata_log.state.apply(entry)


def _refuse_lost_metadata(first: DataDirectory, others: list[Path]) -> None:
    """Raise DataDirectoryError if the metadata log is missing although there was one, or is in another directory."""
    path = first.path / FILE_NAME
    if path.exists() and path.stat().st_size:
        return
    for other in others:
        if (other / FILE_NAME).exists():
            raise DataDirectoryError(
                f"{path} is missing, but there is one in {other}: the directory that holds the metadata log must be "
                f"the first of data.dirs. Nothing was changed"
            )
        if _is_used(other):
            raise DataDirectoryError(
                f"{path} is missing, although {other} was used before: is {first.path} the directory that was first "
                f"in data.dirs, and is its disk mounted? Nothing was changed"
            )
    if not first.is_new and first.partitions():
        raise DataDirectoryError(
            f"{path} is missing or empty, although the directory was used before, and it is the only list of the "
            f"topics. Restore the file from a backup; nothing was changed"
        )


def _is_used(path: Path) -> bool:
    try:
        return (path / FORMAT_NAME).exists()
    except OSError:
        return False


def _join_directories(
    directories: DirectorySet, paths: list[Path], metadata_log: MetadataLog, config: BrokerConfig
) -> None:
    """Assign all directories to the cluster, after checking that none has to be refused."""
    state = metadata_log.state
    first = directories.first
    cluster = state.cluster or ClusterCreated(config.cluster_id or str(uuid4()), config.node_id, now_ms())
    if config.cluster_etcd and cluster.cluster_id != config.cluster_id:
        raise DataDirectoryError(
            f"{first.path} belongs to the cluster {cluster.cluster_id}, but cluster.id is {config.cluster_id}: is it "
            f"the right disk? (A broker that was alone joins with cluster.id={cluster.cluster_id}, after `warmlog "
            f"cluster init`.) Nothing was changed"
        )
    if state.marks is not None and not config.cluster_etcd:
        raise DataDirectoryError(
            f"{first.path} belongs to a broker of the cluster {cluster.cluster_id}, but cluster.etcd is not set: what "
            f"is in the directory is not all of a cluster. Nothing was changed"
        )
    if cluster.node_id != config.node_id:
        raise DataDirectoryError(
            f"{first.path} belongs to node {cluster.node_id}, but node.id is {config.node_id}: is it the right disk? "
            "Nothing was changed"
        )
    _refuse_foreign(first, cluster.cluster_id)
    for path in paths[1:]:
        found = _lock_another(path, cluster.cluster_id, state)
        if isinstance(found, DataDirectory):
            directories.live.append(found)
        else:
            directories.offline.append(found)
    _refuse_copies(directories.live)
    if state.cluster is None:
        commit(metadata_log, [cluster])
    for directory in list(directories.live):
        try:
            directory.take_over(cluster.cluster_id, _known_id(directory.path, state))
        except DataDirectoryError as error:
            if directory is first:
                raise
            directories.live.remove(directory)
            directories.offline.append(OfflineDirectory(directory.path, directory.format.directory_id, str(error)))
            directory.close()
    for offline in directories.offline:
        _log.critical("DATA DIRECTORY %s IS OFFLINE: %s", offline.path, offline.reason)


def _lock_another(path: Path, cluster_id: str, state: NodeState) -> DataDirectory | OfflineDirectory:
    """Lock and read a directory that is not the first; if it cannot be used, it is offline."""
    known_id = _known_id(path, state)
    try:
        if known_id is not None and not _is_used(path):
            # Locking it would create files where the disk is mounted when it comes back.
            raise DataDirectoryError(
                f"data directory {path} was used before, and is empty now: is its disk mounted? "
                f"(A new disk needs a new path.)"
            )
        read_format(path)
        refuse_other_files(path)
        directory = DataDirectory.lock(path, must_exist=known_id is not None)
    except (DirectoryLocked, ForeignDirectory, UnsupportedFormat):
        raise
    except (DataDirectoryError, OSError) as error:
        return OfflineDirectory(path, known_id, str(error))
    try:
        _refuse_foreign(directory, cluster_id)
        if (path / FILE_NAME).exists():
            raise ForeignDirectory(
                f"{path} holds a {FILE_NAME} of its own: it was the first or only data directory of a broker, and "
                f"cannot be another one here. Nothing was changed"
            )
    except BaseException:
        directory.close()
        raise
    return directory


def _known_id(path: Path, state: NodeState) -> UUID | None:
    """Return the id of the directory that was last seen at `path`."""
    ids = [UUID(bytes=directory_id) for directory_id, known in state.directories.items() if known == str(path)]
    return ids[-1] if ids else None


def _refuse_foreign(directory: DataDirectory, cluster_id: str) -> None:
    found = directory.format.cluster_id
    if found not in (None, cluster_id):
        raise ForeignDirectory(
            f"{directory.path} belongs to the cluster {found}, and this broker to the cluster {cluster_id}: is it the "
            f"right disk? Nothing was changed"
        )


def _refuse_copies(live: list[DataDirectory]) -> None:
    paths: dict[UUID, Path] = {}
    for directory in live:
        directory_id = directory.format.directory_id
        if directory_id is None:
            continue
        if directory_id in paths:
            raise ForeignDirectory(
                f"{paths[directory_id]} and {directory.path} have the same id {directory_id}: one is a copy of the "
                f"other, and only one of them may be in data.dirs. Nothing was changed"
            )
        paths[directory_id] = directory.path


def finish_deletions(
    directories: DirectorySet, deleted: Iterable[TopicDeleted], names: Collection[str], *, is_complete: bool
) -> list[Entry]:
    """Rename what is left of deleted topics; return the entries for those of which nothing is left.

    `names` are those of other topics. If not `is_complete`, some directories are missing, where more may be left.
    """
    live_paths = [directory.path for directory in directories.live]
    renamed = {each.topic_id: rename_deleted(live_paths, each, is_name_taken=each.name in names) for each in deleted}
    return [TopicRemoved(topic_id) for topic_id, each in renamed.items() if is_complete and each.is_finished]


def _forget_directories(directories: DirectorySet, state: NodeState) -> list[Entry]:
    """Return the entries for directories that are no longer in data.dirs and hold no partition."""
    used = {each for by_partition in state.assignments.values() for each in by_partition.values()}
    used |= set(state.leaving.values())
    named = {directory.directory_id.bytes for directory in directories.live}
    named |= {each.directory_id.bytes for each in directories.offline if each.directory_id is not None}
    return [DirectoryForgotten(known) for known in state.directories if known not in used | named]
