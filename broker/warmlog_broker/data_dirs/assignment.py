"""Finds the data directory of each partition at a start.

The content of the directories is compared with the metadata log (PartitionsAssigned):

=====================  ==================  =============================================================================
metadata log says      found in            outcome
=====================  ==================  =============================================================================
nothing                one directory       it is there
nothing                none                the broker stopped before it was created: it is created now
this directory         this one            it is there
this directory         another one only    it was moved there by hand while the broker was down: it is there
this directory         none                lost: offline, and never recreated silently
a directory not there  anything            offline until the directory is back: what is elsewhere is older
this directory         this and others     it is there; the others are removed if a creation left them, without a record
nothing                several             it is in the one with records, or else in any; the others as above
anything               several, records    offline, unless the metadata log says which one a move was about to remove
=====================  ==================  =============================================================================

The entry PartitionMoved commits a move between directories (`replica_mover`). A move interrupted by a crash is finished
here: once the entry is written, the copy is the partition, and the old directory is removed.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import UUID

from msgspec import Struct, field

from warmlog_broker.data_dirs.deletion import is_leftover, rename_to_deleted
from warmlog_broker.data_dirs.directory_set import DirectorySet
from warmlog_broker.metadata.metadata_log import Entry, NodeState, PartitionsAssigned, TopicCreated
from warmlog_broker.metadata.store import ClusterStore
from warmlog_broker.storage.directory.data_dir import NEVER_STORED, DataDirectory
from warmlog_broker.storage.directory.partition_files import METADATA_NAME, stored_topic_id
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.durable_files import sync_directory

_log = logging.getLogger(__name__)


class Assigned(Struct, frozen=True):
    """The directory in which a partition is, or is to be created."""

    directory: DataDirectory
    is_new: bool = False
    """Whether it is to be created."""


class Lost(Struct, frozen=True):
    """A partition that cannot be served. `directory`, if any, has its offsets in its checkpoints."""

    reason: str
    directory: DataDirectory | None = None


class Assignments(Struct):
    """The directories of all partitions."""

    by_key: dict[TopicPartition, Assigned | Lost] = field(default_factory=dict)
    known: dict[TopicPartition, bytes] = field(default_factory=dict)
    """The assignments in the metadata log."""
    futures: list[tuple[TopicPartition, DataDirectory, Path]] = field(default_factory=list)
    changes: list[Entry] = field(default_factory=list)
    """Entries for finished moves, to be committed."""

    def last_served_from(self, key: TopicPartition, directories: DirectorySet) -> DataDirectory | None:
        """The directory from which the log was last served; None if there is no log or no directory."""
        assigned = self.by_key[key]
        if isinstance(assigned, Lost) or assigned.is_new:
            return None
        known = self.known.get(key)
        return assigned.directory if known is None else directories.get(known)

    def is_unrecorded(self, key: TopicPartition) -> bool:
        """Whether the metadata log has no entry, or another one, for where `key` was found."""
        assigned = self.by_key[key]
        return isinstance(assigned, Assigned) and self.known.get(key) != assigned.directory.directory_id.bytes


class _Found:
    """The partitions' directories in all data directories."""

    def __init__(self, directories: DirectorySet, topics: Mapping[str, TopicCreated]) -> None:
        self.current: dict[TopicPartition, list[DataDirectory]] = {}
        self.futures: dict[TopicPartition, list[tuple[DataDirectory, Path]]] = {}
        self.counts = dict.fromkeys((directory.path for directory in directories.live), 0)
        for directory in directories.live:
            for key in directory.partitions():
                self.current.setdefault(key, []).append(directory)
                self.counts[directory.path] += 1
            for key, path in _copies(directory, topics):
                self.futures.setdefault(key, []).append((directory, path))


def find_assignments(directories: DirectorySet, cluster: ClusterStore, state: NodeState) -> Assignments:
    """Assign every partition that this broker has by `cluster`. Finishes moves that were decided; creates nothing."""
    topics = cluster.state.topics
    found = _Found(directories, topics)
    _warn_of_unknown(found, topics)
    assignments = Assignments()
    for name, entry in topics.items():
        known = state.assignments.get(entry.topic_id, {})
        for index in cluster.here(entry):
            key = TopicPartition(name, index)
            if index in known:
                assignments.known[key] = known[index]
            if (entry.topic_id, index) in state.leaving:
                _finish_move(key, entry, directories, state, found, assignments)
            _clear_leftovers(key, entry, known.get(index), found)
            assignments.by_key[key] = _find(key, known.get(index), directories, state, found)
            for directory, path in found.futures.get(key, ()):
                assignments.futures.append((key, directory, path))
    return assignments


def _find(
    key: TopicPartition, known: bytes | None, directories: DirectorySet, state: NodeState, found: _Found
) -> Assigned | Lost:
    current = found.current.get(key, [])
    home = None if known is None else directories.get(known)
    if len(current) > 1:
        names = " and ".join(str(directory.partition_path(key)) for directory in current)
        says = f"says {home.path}" if home else "does not say which is the latest"
        return Lost(
            f"it exists more than once: {names}; the metadata log {says}. Move all but the right one out of the data "
            f"directories and start again; nothing was changed"
        )
    if known is not None and home is None:
        reason = directories.why_offline(known, state)
        if current:
            reason = f"{current[0].partition_path(key)} is not the latest, that one is away: {reason}"
        return Lost(reason)
    if current:
        return Assigned(current[0])
    holder = next((each for each in directories.live if each.stored_state(key).offsets.recovery_point), None)
    directory = holder or home
    if directory is None:
        return _assign(key, directories, found)
    path = directory.partition_path(key)
    held = directory.stored_state(key).offsets.recovery_point
    what = f"it held records up to offset {held}" if held else "it was created, and may have held records"
    return Lost(f"{path} is missing, although {what}: put it back, or delete the topic", directory)


def _clear_leftovers(key: TopicPartition, entry: TopicCreated, known: bytes | None, found: _Found) -> None:
    """Remove directories of a partition that never held a record, if another one is its directory."""
    current = found.current.get(key, [])
    if len(current) < 2:
        return
    topic_id = UUID(bytes=entry.topic_id)
    leftovers = [
        directory
        for directory in current
        if is_leftover(directory.partition_path(key), topic_id) and directory.stored_state(key) == NEVER_STORED
    ]
    others = [directory for directory in current if directory not in leftovers]
    right = next((directory for directory in current if directory.directory_id.bytes == known), None)
    if right is None and len(others) == 1:
        right = others[0]
    elif right is None and known is None and not others:
        right = current[0]
    if right is None:
        return
    for directory in leftovers:
        if directory is not right:
            path = directory.partition_path(key)
            _log.warning("%s is in %s: %s holds nothing and is removed", key.directory_name, right.path, path)
            try:
                rename_to_deleted(path, key)
            except OSError as error:
                _log.error("%s cannot be removed, and is left alone: %s", path, error)
            current.remove(directory)


def _assign(key: TopicPartition, directories: DirectorySet, found: _Found) -> Assigned:
    directory = min(directories.live, key=lambda each: found.counts[each.path])
    found.counts[directory.path] += 1
    if directories.offline:
        _log.warning("%s may have been created in a directory that is offline", key.directory_name)
    _log.warning("%s is created: the broker stopped before it was", directory.partition_path(key))
    return Assigned(directory, is_new=True)


def _finish_move(
    key: TopicPartition,
    entry: TopicCreated,
    directories: DirectorySet,
    state: NodeState,
    found: _Found,
    assignments: Assignments,
) -> None:
    """Give the copy, which is the partition now, its name, and remove the old directory."""
    to_id, from_id = state.assignments[entry.topic_id][key.partition], state.leaving[entry.topic_id, key.partition]
    new, old = directories.get(to_id), directories.get(from_id)
    current = found.current.setdefault(key, [])
    if new is not None and new not in current:
        for directory, path in found.futures.pop(key, ()):
            if directory is new:
                _log.warning("%s: a move that a crash has interrupted is finished", new.partition_path(key))
                path.rename(new.partition_path(key))
                sync_directory(new.path)
                current.append(new)
    if old is None or (old in current and new not in current):
        return
    if old in current:
        _log.warning("%s has moved to %s: what is left of it is removed", old.partition_path(key), current)
        rename_to_deleted(old.partition_path(key), key)
        current.remove(old)
    assignments.changes.append(PartitionsAssigned(entry.topic_id, to_id, [key.partition]))


def _copies(directory: DataDirectory, topics: Mapping[str, TopicCreated]) -> Iterator[tuple[TopicPartition, Path]]:
    """Return the copies of partitions by the topic's id, since their names may be cut; without an id by name."""
    names = {topic.topic_id: name for name, topic in topics.items()}
    for key, path in directory.future_partitions():
        try:
            topic_id = stored_topic_id(path / METADATA_NAME)
        except OSError as error:
            _log.warning("%s is left alone: %s", path, error)
            continue
        name = key.topic if topic_id is None else names.get(topic_id.bytes, "")
        if name in topics and key.partition < topics[name].partitions:
            yield TopicPartition(name, key.partition), path
        else:
            _log.warning("%s is the copy of no partition of this broker and is left alone", path)


def _warn_of_unknown(found: _Found, topics: Mapping[str, TopicCreated]) -> None:
    for key, directories in found.current.items():
        topic = topics.get(key.topic)
        if topic is None or key.partition >= topic.partitions:
            for directory in directories:
                _log.warning("%s belongs to no topic of this broker and is left alone", directory.partition_path(key))
