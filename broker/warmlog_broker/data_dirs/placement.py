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
this directory         this and others     it lies there, and the others go, if they are what a creation left: no record
nothing                several             it lies in the one that has records, or else in any; the others go as above
anything               several, records    offline, unless the metadata log says which one a move was about to remove
=====================  ==================  =============================================================================

The creation of a partition leaves a directory where its disk refused something half-way and the next directory took the
partition (`leftovers`).

A move between directories (`moves`) is decided by the entry PartitionMoved. What a crash has left of it is finished
here: from that entry on the copy is the partition, and the old directory goes; before it the copy is a copy.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from warmlog_broker.data_dirs.directory_set import DirectorySet
from warmlog_broker.data_dirs.leftovers import is_leftover, take_away
from warmlog_broker.metadata.metadata_log import AnyEntry, MetadataState, PartitionsPlaced, TopicCreated
from warmlog_broker.storage.directory.data_dir import NEVER_STORED, DataDirectory
from warmlog_broker.storage.directory.partition_metadata import METADATA_NAME, stored_topic_id
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.durable_files import sync_directory

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """The directory in which a partition lies, or is to be made."""

    directory: DataDirectory
    is_new: bool = False
    """Whether it is to be made."""


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

    def last_served_from(self, key: TopicPartition, directories: DirectorySet) -> DataDirectory | None:
        """The directory from which the last broker served the log that is opened now; None if there is no such log."""
        place = self.by_key[key]
        if isinstance(place, Lost) or place.is_new:
            return None
        known = self.known.get(key)
        return place.directory if known is None else directories.get(known)

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
            _clear_leftovers(key, entry, known.get(index), found)
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
        decided = directories.get(known) if known is not None else None
        says = (
            f"the metadata log says {decided.path}" if decided else "the metadata log does not say which is the latest"
        )
        return Lost(
            f"it is there more than once: {names}; {says}. Move all but the right one out of the data directories and "
            f"start again; nothing was changed"
        )
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


def _clear_leftovers(key: TopicPartition, entry: TopicCreated, known: bytes | None, found: _Found) -> None:
    """Of several directories of one partition only that stays in which it lies, if the others never held a record."""
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
            _log.warning("%s lies in %s: %s holds nothing and is removed", key.directory_name, right.path, path)
            try:
                take_away(path, key)
            except OSError as error:
                _log.error("%s cannot be removed, and is left alone: %s", path, error)
            current.remove(directory)


def _new_place(key: TopicPartition, directories: DirectorySet, found: _Found) -> Place:
    """Where a partition is made of which nothing is there, as the broker stopped before it was."""
    directory = min(directories.live, key=lambda each: found.counts[each.path])
    found.counts[directory.path] += 1
    if directories.offline:
        _log.warning("%s may have been made in a directory that is offline", key.directory_name)
    _log.warning("%s is made: the broker stopped before it was", directory.partition_path(key))
    return Place(directory, is_new=True)


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
        take_away(old.partition_path(key), key)
        current.remove(old)
    places.changes.append(PartitionsPlaced(entry.topic_id, to_id, [key.partition]))


def _copies(directory: DataDirectory, state: MetadataState) -> Iterator[tuple[TopicPartition, Path]]:
    """The copies of partitions of our topics.

    They go by the topic's id, since their names may be cut; a copy without an id goes by its name.
    """
    names = {topic.topic_id: name for name, topic in state.topics.items()}
    for key, path in directory.future_partitions():
        try:
            topic_id = stored_topic_id(path / METADATA_NAME)
        except OSError as error:
            _log.warning("%s is left alone: %s", path, error)
            continue
        name = key.topic if topic_id is None else names.get(topic_id.bytes, "")
        if name in state.topics and key.partition < state.topics[name].partitions:
            yield TopicPartition(name, key.partition), path
        else:
            _log.warning("%s is the copy of no partition of this broker and is left alone", path)


def _warn_of_strangers(found: _Found, topics: Mapping[str, TopicCreated]) -> None:
    """Nothing is done to a directory that belongs to nobody we know."""
    for key, directories in found.current.items():
        topic = topics.get(key.topic)
        if topic is None or key.partition >= topic.partitions:
            for directory in directories:
                _log.warning("%s belongs to no topic of this broker and is left alone", directory.partition_path(key))
