"""In which data directory each partition lies, as a start finds it.

What the directories hold is compared with what the metadata log says (PartitionsPlaced):

=====================  ==================  =============================================================================
metadata log says      found in            outcome
=====================  ==================  =============================================================================
nothing                one directory       it lies there
nothing                none                the broker stopped before it was made: it is made now
this directory         this one            it lies there
this directory         another one only    somebody has moved it while the broker was down: it lies there
this directory         none                lost: offline, and never made anew in silence
a directory not there  anything            offline until the directory is back: what lies elsewhere is older
anything               several             offline, unless the metadata log says which one a move was about to remove
=====================  ==================  =============================================================================

A move between directories (`moves`) is decided by the entry PartitionMoved. What a crash has left of it is finished
here: from that entry on the copy is the partition, and the old directory goes; before it the copy is a copy.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from warmlog_broker.log.checkpoints import read_partition_metadata, sync_directory
from warmlog_broker.log.directory import DataDirectory
from warmlog_broker.log.loading import METADATA_NAME
from warmlog_broker.log.topic_partition import TopicPartition, deleted_directory_name
from warmlog_broker.metadata_log import AnyEntry, MetadataState, PartitionsPlaced, TopicCreated
from warmlog_broker.opening import DirectorySet
from warmlog_protocol.errors import StorageError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """The directory in which a partition lies, or is to be made."""

    directory: DataDirectory


@dataclass(frozen=True, slots=True)
class Lost:
    """A partition that cannot be served. `directory` is one that is there and knows its offsets, if any."""

    reason: str
    directory: DataDirectory | None = None


@dataclass(slots=True)
class Places:
    """Where everything lies."""

    by_key: dict[TopicPartition, Place | Lost] = field(default_factory=dict)
    known: dict[TopicPartition, bytes] = field(default_factory=dict)
    """What the metadata log said."""
    futures: list[tuple[TopicPartition, DataDirectory, Path]] = field(default_factory=list)
    changes: list[AnyEntry] = field(default_factory=list)
    """What was finished of moves: to be committed."""

    def is_news(self, key: TopicPartition) -> bool:
        """Whether the metadata log did not say that `key` lies where it was found."""
        place = self.by_key[key]
        return isinstance(place, Place) and self.known.get(key) != place.directory.directory_id.bytes


class _Found:
    """The partitions' directories in all data directories."""

    def __init__(self, directories: DirectorySet, state: MetadataState) -> None:
        self.current: dict[TopicPartition, list[DataDirectory]] = {}
        self.futures: dict[TopicPartition, list[tuple[DataDirectory, Path]]] = {}
        self.counts = dict.fromkeys((directory.path for directory in directories.live), 0)
        for directory in directories.live:
            for key in directory.partitions():
                self.current.setdefault(key, []).append(directory)
                self.counts[directory.path] += 1
            for key, path in _copies(directory, state):
                self.futures.setdefault(key, []).append((directory, path))


def find_places(directories: DirectorySet, state: MetadataState) -> Places:
    """The place of every partition of every topic. Finishes moves that were decided; makes nothing."""
    found = _Found(directories, state)
    _warn_of_strangers(found, state.topics)
    places = Places()
    for name, entry in state.topics.items():
        known = state.places.get(entry.topic_id, {})
        for index in range(entry.partitions):
            key = TopicPartition(name, index)
            if index in known:
                places.known[key] = known[index]
            if (entry.topic_id, index) in state.leaving:
                _finish_move(key, entry, directories, state, found, places)
            places.by_key[key] = _find(key, known.get(index), directories, state, found)
            for directory, path in found.futures.get(key, ()):
                places.futures.append((key, directory, path))
    return places


def _find(
    key: TopicPartition, known: bytes | None, directories: DirectorySet, state: MetadataState, found: _Found
) -> Place | Lost:
    current = found.current.get(key, [])
    if len(current) > 1:
        names = " and ".join(str(directory.partition_path(key)) for directory in current)
        return Lost(f"it is there more than once: {names}. Move all but one of them away; nothing was changed")
    if known is not None and directories.get(known) is None:
        reason = directories.why_offline(known, state)
        if current:
            reason = f"{current[0].partition_path(key)} is not the latest, that one is away: {reason}"
        return Lost(reason)
    if current:
        return Place(current[0])
    knower = next((each for each in directories.live if each.stored_state(key).offsets.recovery_point), None)
    if known is None and knower is None:
        return _new_place(key, directories, found)
    directory = knower or directories.get(known or b"") or directories.first
    path = directory.partition_path(key)
    held = directory.stored_state(key).offsets.recovery_point
    what = f"it held records up to offset {held}" if held else "it was made, and may have held records"
    return Lost(f"{path} is missing, although {what}: put it back, or delete the topic", directory)


def _new_place(key: TopicPartition, directories: DirectorySet, found: _Found) -> Place:
    """Where a partition is made of which nothing is there, as the broker stopped before it was."""
    directory = min(directories.live, key=lambda each: found.counts[each.path])
    found.counts[directory.path] += 1
    if directories.offline:
        _log.warning("%s may have been made in a directory that is offline", key.directory_name)
    _log.warning("%s is made: the broker stopped before it was", directory.partition_path(key))
    return Place(directory)


def _finish_move(
    key: TopicPartition,
    entry: TopicCreated,
    directories: DirectorySet,
    state: MetadataState,
    found: _Found,
    places: Places,
) -> None:
    """The metadata log says that the copy is the partition now: gives it its name, and takes the old one's away."""
    to_id, from_id = state.places[entry.topic_id][key.partition], state.leaving[entry.topic_id, key.partition]
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
        old.partition_path(key).rename(old.path / deleted_directory_name(key))
        sync_directory(old.path)
        current.remove(old)
    places.changes.append(PartitionsPlaced(entry.topic_id, to_id, [key.partition]))


def _copies(directory: DataDirectory, state: MetadataState) -> Iterator[tuple[TopicPartition, Path]]:
    """The copies of partitions of our topics. They go by the topic's id: their names may be cut."""
    names = {topic.topic_id: name for name, topic in state.topics.items()}
    for key, path in directory.future_partitions():
        try:
            topic_id = read_partition_metadata(path / METADATA_NAME).bytes
        except FileNotFoundError:
            topic_id = state.topics[key.topic].topic_id if key.topic in state.topics else b""
        except (OSError, StorageError) as error:
            _log.warning("%s is left alone: %s", path, error)
            continue
        if topic_id in names and key.partition < state.topics[names[topic_id]].partitions:
            yield TopicPartition(names[topic_id], key.partition), path
        else:
            _log.warning("%s is the copy of no partition of this broker and is left alone", path)


def _warn_of_strangers(found: _Found, topics: Mapping[str, TopicCreated]) -> None:
    """Nothing is done to a directory that belongs to nobody we know."""
    for key, directories in found.current.items():
        topic = topics.get(key.topic)
        if topic is None or key.partition >= topic.partitions:
            for directory in directories:
                _log.warning("%s belongs to no topic of this broker and is left alone", directory.partition_path(key))
