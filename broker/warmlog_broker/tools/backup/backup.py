"""Makes a backup of all data directories of a broker, which may be running: it is neither asked nor disturbed.

The order makes it consistent::

    metadata.log → for each partition: checkpoints, then its files → metadata.log again, which is the one that is kept

A partition whose topic id and directory are the same in both is one partition all the time; the others are copied
again, and with them all that comes later, until nothing has changed. So leader epochs and producer ids in the backup
are never above those in its metadata log, and checkpoints never above the ends of the logs. Internal topics come first:
a group's committed offset is at most the end of the partition that it is for. The coordinator of transactions comes
last: no partition has a newer epoch of a producer than it has, and a broker that starts with the backup ends what is
open (`coordinator/transaction/decisions/state`).

Everything that was acknowledged with acks=all before the backup began is in it. Partitions are copied one after the
other, so the backup is not of one moment.

Of a broker of a cluster it has the replicas that are there, and the broker's copy of etcd: `tools/cluster/recover`
makes a cluster again of backups of its brokers.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from warmlog_broker.cluster.copy_of_etcd import FILE_NAME as COPY_NAME
from warmlog_broker.cluster.copy_of_etcd import KEPT_S, read_copy
from warmlog_broker.coordinator.transaction.coordinator import TOPIC as TRANSACTIONS
from warmlog_broker.metadata.log_file import FILE_NAME, PRIVATE, read_records
from warmlog_broker.metadata.metadata_log import MetadataState, TopicCreated
from warmlog_broker.storage.directory.data_dir import (
    CHECKPOINTS,
    CLEANER_OFFSETS_NAME,
    LOG_STARTS_NAME,
    RECOVERY_POINTS_NAME,
)
from warmlog_broker.storage.directory.dir_lock import exclusive_lock
from warmlog_broker.storage.directory.offset_checkpoint import pack_offsets, read_offsets
from warmlog_broker.storage.directory.properties import FORMAT_NAME, read_format
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.durable_files import make_directories, naming_full_disk, replace_file, sync_directory
from warmlog_broker.tools.backup.manifest import (
    MANIFEST_NAME,
    NAME,
    PARTIAL_SUFFIX,
    VERSION,
    BackupError,
    Manifest,
    complete_backups,
)
from warmlog_broker.tools.backup.partition import PAUSE_S, back_up_partition
from warmlog_broker.tools.backup.storing import BackupFiles

ROUNDS = 20
"""How often partitions that were created, deleted or moved meanwhile are copied again."""


class Backup(NamedTuple):
    path: Path
    partitions: int
    files: int
    size_bytes: int
    copied_bytes: int
    linked_bytes: int
    removed: tuple[Path, ...]
    """Older backups that were removed."""


class _Place(NamedTuple):
    """Where a partition is, and of which topic."""

    topic_id: bytes
    source: Path
    name: str
    """Of its directory in the backup."""
    turn: int
    """Partitions of a higher turn are taken after all those of a lower one."""


def back_up(
    data_dir: Path,
    directory: Path,
    *,
    now_ms: int,
    keep: int | None = None,
    on_copied: Callable[[str, int], None] = lambda _name, _count: None,
) -> Backup:
    """Make a backup in `directory` of the data directories of a broker whose first one is `data_dir`.

    It is durable on return. Then all but the newest `keep` backups are removed. BackupError, DirectoryLocked if another
    backup is being made there, StorageError for a damaged metadata log, or OSError from a disk; nothing is left then.
    """
    data_dir = data_dir.absolute()
    read_metadata(data_dir)
    make_directories(directory)
    with exclusive_lock(directory):
        for path in directory.glob(f"*{PARTIAL_SUFFIX}"):
            if NAME.fullmatch(path.name.removesuffix(PARTIAL_SUFFIX)):
                _remove(path)
        older = complete_backups(directory)
        name = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S.") + f"{now_ms % 1000:03d}Z"
        path = directory / name
        if older and older[-1] >= path:
            raise BackupError(f"{older[-1]} is not older than {path}: is the clock of this machine right?")
        previous = older[-1] if older else None
        partial = directory / f"{name}{PARTIAL_SUFFIX}"
        partial.mkdir(mode=0o700)
        try:
            files = BackupFiles(partial, previous, on_copied)
            with naming_full_disk(partial):
                partitions = _Run(data_dir, files).run(now_ms)
            partial.replace(path)
            sync_directory(directory)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        removed = [*older, path][:-keep] if keep else []
        for old in removed:
            _remove(old.rename(directory / f"{old.name}{PARTIAL_SUFFIX}"))
    size_bytes = sum(entry.size_bytes for entry in files.entries.values())
    counts = (partitions, len(files.entries), size_bytes, files.copied_bytes, files.linked_bytes)
    return Backup(path, *counts, tuple(removed))


def _remove(backup: Path) -> None:
    """Remove a backup; of one that was moved elsewhere and left as a symbolic link, only the link."""
    if backup.is_symlink():
        backup.unlink()
    else:
        shutil.rmtree(backup)


class _Run:
    """One backup under way."""

    def __init__(self, data_dir: Path, files: BackupFiles) -> None:
        self._data_dir = data_dir
        self._files = files
        self._data_dirs: list[str] = []
        """The paths of the data directories, in the order of their numbers."""
        self._taken: dict[TopicPartition, tuple[_Place, dict[str, int]]] = {}
        """The place of each partition that was taken, and its offsets, by the name of the checkpoint."""

    def run(self, now_ms: int) -> int:
        """Take everything and write the manifest; return the number of partitions."""
        if (self._data_dir / COPY_NAME).exists():
            time.sleep(2 * KEPT_S)  # a topic that was created before is in the copy then
        content, state = self._read()
        assert state.cluster is not None
        if self._files.previous_cluster_id not in (None, state.cluster.cluster_id):
            raise BackupError(
                f"the last backup in {self._files.root.parent} is of another cluster: give each broker a directory of "
                "its own, and a broker with a new data directory a new one"
            )
        places = self._places(state)
        for _ in range(ROUNDS):
            self._take_partitions(places)
            content, state = self._read()
            places = self._places(state)
            for key, (place, _) in list(self._taken.items()):
                if places.get(key) != place:
                    self._files.forget(place.name)
                    del self._taken[key]
            if len(self._taken) == len(places):
                break
            time.sleep(PAUSE_S)
        else:
            missing = next(place.source for key, place in places.items() if key not in self._taken)
            raise BackupError(
                f"{missing} is missing, or topics change all the time. If the partition is offline, restart the "
                f"broker, which says what is wrong with it"
            )
        self._write_checkpoints()
        for number, path in enumerate(self._data_dirs):
            self._files.take_growing(Path(path) / FORMAT_NAME, f"data-{number}/{FORMAT_NAME}")
        mode = (self._data_dir / FILE_NAME).stat().st_mode & 0o777
        self._files.write(f"data-0/{FILE_NAME}", content, mode)
        if (self._data_dir / COPY_NAME).exists():
            self._files.write(f"data-0/{COPY_NAME}", (self._data_dir / COPY_NAME).read_bytes(), PRIVATE)
        assert state.cluster is not None
        manifest = Manifest(VERSION, now_ms, state.cluster.cluster_id, tuple(self._data_dirs), self._files.entries)
        self._files.sync()
        replace_file(self._files.root / MANIFEST_NAME, msgspec.json.encode(manifest))
        return len(self._taken)

    def _read(self) -> tuple[bytes, MetadataState]:
        """Return the metadata log and the state in it, and give new data directories a number."""
        content = read_metadata(self._data_dir)
        state = read_records(content, self._data_dir / FILE_NAME).state()
        if state.marks is not None:
            if (copy := read_copy(self._data_dir)) is None:
                raise BackupError(f"{self._data_dir} has no {COPY_NAME}: start the broker with this version first")
            state.topics = copy.view().state.topics
        own_format = read_format(self._data_dir)
        own_id = own_format.directory_id if own_format is not None else None
        if own_id is not None:
            known = state.directories.get(own_id.bytes)
            if len(state.directories) > 1 and known is not None and Path(known).resolve() != self._data_dir.resolve():
                raise BackupError(
                    f"{self._data_dir} is restored, copied or moved: a broker last used it as {known}, and where its "
                    f"other data directories are now is not known. Start a broker on all of them first"
                )
            state.directories[own_id.bytes] = str(self._data_dir)
        for path in (str(self._data_dir), *state.directories.values()):
            if path not in self._data_dirs:
                if read_format(Path(path)) is None:
                    raise BackupError(f"the data directory {path} cannot be read, or is empty: is its disk mounted?")
                self._data_dirs.append(path)
        return content, state

    def _places(self, state: MetadataState) -> dict[TopicPartition, _Place]:
        """Return where each partition is, in the order in which they are taken."""
        places = {}
        for topic in sorted(state.topics.values(), key=_turn):
            assigned = state.assignments.get(topic.topic_id, {})
            for index in range(topic.partitions):
                key, home = TopicPartition(topic.name, index), str(self._data_dir)
                if index in assigned:
                    home = state.directories[assigned[index]]
                elif not (self._data_dir / key.directory_name).is_dir():
                    continue
                name = f"data-{self._data_dirs.index(home)}/{key.directory_name}"
                places[key] = _Place(topic.topic_id, Path(home) / key.directory_name, name, _turn(topic))
        return places

    def _take_partitions(self, places: Mapping[TopicPartition, _Place]) -> None:
        """Take all that were not taken yet and whose directories exist, and again all whose turn is after theirs."""
        checkpoints = {
            Path(path): {name: read_offsets(Path(path) / name) for name in CHECKPOINTS} for path in self._data_dirs
        }
        first_turn = min((place.turn for key, place in places.items() if key not in self._taken), default=2)
        for key, place in places.items():
            if key in self._taken and place.turn <= first_turn:
                continue
            data_dir = place.source.parent
            offsets = {name: found[key] for name, found in checkpoints[data_dir].items() if key in found}
            recovery_point = offsets.get(RECOVERY_POINTS_NAME, 0)
            try:
                first_offset = back_up_partition(place.source, place.name, recovery_point, self._files)
            except FileNotFoundError:
                if place.source.is_dir():
                    raise
                self._files.forget(place.name)
                self._taken.pop(key, None)
                continue
            if first_offset > offsets.get(LOG_STARTS_NAME, first_offset):
                start = read_offsets(data_dir / LOG_STARTS_NAME).get(key, 0)
                offsets[LOG_STARTS_NAME] = max(offsets[LOG_STARTS_NAME], min(first_offset, start))
            self._taken[key] = place, offsets

    def _write_checkpoints(self) -> None:
        for number, path in enumerate(self._data_dirs):
            for name in CHECKPOINTS:
                known = {
                    key: offsets[name]
                    for key, (place, offsets) in self._taken.items()
                    if name in offsets and place.source.parent == Path(path)
                }
                if known or name != CLEANER_OFFSETS_NAME:
                    self._files.write(f"data-{number}/{name}", pack_offsets(known))


def _turn(topic: TopicCreated) -> int:
    if topic.name == TRANSACTIONS:
        return 2
    return 0 if topic.is_internal else 1


def read_metadata(data_dir: Path) -> bytes:
    """Return the content of the metadata log; BackupError if there is none."""
    try:
        return (data_dir / FILE_NAME).read_bytes()
    except FileNotFoundError:
        raise BackupError(f"{data_dir} has no {FILE_NAME}: give the first data directory of the broker") from None
