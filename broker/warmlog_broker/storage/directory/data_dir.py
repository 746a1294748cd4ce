"""A data directory: its lock, its state after the last stop, and the checkpoints of its partitions.

::

    .lock                              locked while a broker runs; its content is the holder's pid  (`dir_lock`)
    warmlog.properties                 format version, cluster id, directory id                   (`properties`)
    .warmlog_cleanshutdown             exists only between a clean stop and the next start
    recovery-point-offset-checkpoint   up to where each log is known to be on disk                (`offset_checkpoint`)
    log-start-offset-checkpoint        each log's start offset
    replication-offset-checkpoint      each log's high watermark
    cleaner-offset-checkpoint          up to where each log has been compacted
    flights-0/ flights-1/ …            a directory for each partition                             (`topic_partition`)

The clean-shutdown marker is JSON, `{"version": 0, "logs": {"flights-0": [14000, 256702]}}`: each log's end offset and
the size of its last segment, which must still be the same. Kafka's marker, `.kafka_cleanshutdown`, has no such content:
it is neither read nor written, so a directory that Kafka stopped cleanly is checked above its recovery points. The
marker is deleted, durably, as soon as it has been read: a crash during the start is a crash.

Anything else is left alone. In particular a directory that no topic owns is never removed or renamed (Kafka moves it to
`-stray`): it may be a backup, and its name says of which partition.

A broker may have several data directories, each with its own set of these files: the failure of one disk affects only
the partitions on it.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import ENOSPC, EROFS, ESTALE
from pathlib import Path
from typing import NamedTuple, Self
from uuid import UUID, uuid4

import msgspec

from warmlog_broker.storage.directory.dir_lock import LOCK_NAME, lock_for_broker
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets, write_offsets
from warmlog_broker.storage.directory.properties import (
    FORMAT_NAME,
    DataDirectoryError,
    DirectoryFormat,
    ForeignDirectory,
    read_format,
    write_format,
)
from warmlog_broker.storage.directory.topic_partition import (
    PartitionDirectoryName,
    TopicPartition,
    parse_directory_name,
)
from warmlog_broker.storage.io.durable_files import make_directories, replace_file, sync_directory, write_file
from warmlog_broker.storage.io.os_errors import is_resource_exhaustion
from warmlog_protocol.errors import StorageError

logger = logging.getLogger(__name__)

CLEAN_MARKER_NAME = ".warmlog_cleanshutdown"
RECOVERY_POINTS_NAME = "recovery-point-offset-checkpoint"
LOG_STARTS_NAME = "log-start-offset-checkpoint"
HIGH_WATERMARKS_NAME = "replication-offset-checkpoint"
CLEANER_OFFSETS_NAME = "cleaner-offset-checkpoint"
CHECKPOINTS = {
    RECOVERY_POINTS_NAME: "every log is checked from its beginning",
    LOG_STARTS_NAME: "logs begin with their first segment",
    HIGH_WATERMARKS_NAME: "high watermarks begin at the log start",
    CLEANER_OFFSETS_NAME: "compaction begins at the log starts",
}
"""The file of each of `LogOffsets`, and what follows if it is damaged."""

PROBE_NAME = ".probe"
KAFKA_PROPERTIES_NAME = "meta.properties"
_MARKER_VERSION = 0


class LogOffsets(NamedTuple):
    recovery_point: int
    log_start_offset: int
    high_watermark: int
    first_dirty_offset: int = 0
    """Up to where the log has been compacted, whatever its cleanup.policy says now; 0 if it never was."""


class CleanEnd(NamedTuple):
    end_offset: int
    active_segment_bytes: int


class _CleanMarker(msgspec.Struct):
    version: int
    logs: dict[str, CleanEnd]


class StoredState(NamedTuple):
    """What checkpoints and marker say of one log before it is opened."""

    offsets: LogOffsets
    clean_end: CleanEnd | None
    """None if the log was not closed cleanly: it must be checked above its recovery point."""


NEVER_STORED = StoredState(LogOffsets(0, 0, 0), None)
"""The state of a log that no checkpoint names."""


class DataDirectory:
    """A locked data directory. `lock` returns one, `take_over` reads its state, `close` releases it."""

    def __init__(self, path: Path, lock_descriptor: int) -> None:
        self.path = path
        self.directory_id = UUID(int=0)
        """Set by `take_over`."""
        self.is_new = False
        """Whether no broker has used it before."""
        self._lock_descriptor = lock_descriptor
        self._format: DirectoryFormat | None = None
        self._clean_ends: dict[TopicPartition, CleanEnd] | None = None
        self._stored: list[dict[TopicPartition, int]] = [{} for _ in CHECKPOINTS]
        """The content of each checkpoint."""
        self.last_written_ms: int | None = None
        """Wall-clock time of the last checkpoint or clean stop; None without any."""

    @classmethod
    def lock(cls, path: Path, *, must_exist: bool = False) -> Self:
        """Create the directory if necessary, lock it and read its format. Existing files are not changed.

        Raises DirectoryLocked, UnsupportedFormat, ForeignDirectory for one of Kafka's, or DataDirectoryError if it
        cannot be created or written.
        """
        with _as_directory_error(path):
            if not must_exist:
                make_directories(path)
            if (path / KAFKA_PROPERTIES_NAME).exists() and not (path / FORMAT_NAME).exists():
                raise ForeignDirectory(  # checkpoints of the same names would be overwritten
                    f"{path} holds {KAFKA_PROPERTIES_NAME}: it is a data directory of Kafka. Use a new directory, and "
                    f"take its topics over with `warmlog log adopt {path} --data-dir DIR`. Nothing was changed"
                )
            directory = cls(path, lock_for_broker(path))
            try:
                directory._format = read_format(path)
                directory.is_new = directory._format is None
            except BaseException:
                directory.close()
                raise
        return directory

    @property
    def format(self) -> DirectoryFormat:
        """The format file's content."""
        return self._format or DirectoryFormat()

    def take_over(self, cluster_id: str | None, known_id: UUID | None = None) -> None:
        """Assign the directory to the cluster (None: leave it), read its state and delete the clean-shutdown marker.

        The caller has checked that it belongs to no other one. A directory without an id gets `known_id`, or a new one.
        DataDirectoryError from the disk.
        """
        found = self.format
        with _as_directory_error(self.path):
            wanted = DirectoryFormat(cluster_id or found.cluster_id, found.directory_id or known_id or uuid4())
            if wanted != found:
                write_format(self.path, wanted)
                self._format = wanted
            assert wanted.directory_id is not None
            self.directory_id = wanted.directory_id
            self._read_state()

    def require_room(self, size_bytes: int) -> None:
        """OSError if the file system has less free space than `size_bytes`."""
        free_bytes = self.free_bytes()
        if free_bytes < size_bytes:
            raise OSError(ENOSPC, f"{size_bytes} bytes are needed, {free_bytes} are free", str(self.path))

    def check(self) -> None:
        """OSError if the disk was removed, hidden by another mount, or made read-only. Rarely waits for the disk."""
        lock_path = self.path / LOCK_NAME
        mine, there = os.fstat(self._lock_descriptor), lock_path.stat()
        if (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino):
            raise OSError(ESTALE, "not the file that this broker has locked: the disk was replaced", str(lock_path))
        if os.fstatvfs(self._lock_descriptor).f_flag & os.ST_RDONLY:
            raise OSError(EROFS, "the file system has become read-only", str(self.path))

    def free_bytes(self) -> int:
        """The bytes that this user may still write. Rarely waits for the disk."""
        found = os.fstatvfs(self._lock_descriptor)
        return found.f_bavail * found.f_frsize

    def disk_bytes(self) -> int:
        """The size of its file system. Rarely waits for the disk."""
        found = os.fstatvfs(self._lock_descriptor)
        return found.f_blocks * found.f_frsize

    def probe(self) -> None:
        """Check the directory, and write and sync a small file there; a full disk is no error."""
        self.check()
        path = self.path / PROBE_NAME
        try:
            write_file(path, b"probe\n", sync=True)
        except OSError as error:
            if not is_resource_exhaustion(error):
                raise
        path.unlink(missing_ok=True)

    @property
    def was_clean(self) -> bool:
        return self._clean_ends is not None

    def was_closed(self, key: TopicPartition) -> bool:
        """Whether the last stop was a clean one that closed this log."""
        return key in (self._clean_ends or {})

    def stored_state(self, key: TopicPartition) -> StoredState:
        """The state of one log by the checkpoints and the marker that `take_over` has read."""
        offsets = LogOffsets(*(stored.get(key, 0) for stored in self._stored))
        clean_end = (self._clean_ends or {}).get(key)
        if clean_end is not None and clean_end.end_offset != offsets.recovery_point:
            logger.warning(
                "%s: the log is checked, as marker and recovery point differ: %s, %s", key, clean_end, offsets
            )
            clean_end = None
        return StoredState(offsets, clean_end)

    def knows_start(self, key: TopicPartition) -> bool:
        """Whether a checkpoint has the log start: a first segment above it means that earlier ones are lost."""
        return key in self._stored[1]

    def stored_offsets(self) -> dict[TopicPartition, LogOffsets]:
        """The checkpointed offsets of the partitions whose directories exist."""
        known = set[TopicPartition]().union(*self._stored[:3])
        if not known:
            return {}
        return {key: self.stored_state(key).offsets for key in self.partitions() if key in known}

    def partition_path(self, key: TopicPartition) -> Path:
        return self.path / key.directory_name

    def partitions(self) -> dict[TopicPartition, Path]:
        return {name.topic_partition: path for name, path in self._named_directories() if not name.mark}

    def deleted_partitions(self) -> list[Path]:
        """The directories of deleted partitions that are still to be removed."""
        return [path for name, path in self._named_directories() if name.mark == "delete"]

    def future_partitions(self) -> list[tuple[TopicPartition, Path]]:
        """The directories of partitions that are being moved into this data directory. Topic names may be cut."""
        return [(name.topic_partition, path) for name, path in self._named_directories() if name.mark == "future"]

    def write_checkpoints(self, logs: Mapping[TopicPartition, LogOffsets]) -> None:
        """Replace the checkpoint files, durably.

        `logs` must name every log, failed ones included: a log that is missing would be checked from its beginning. One
        thread at a time. Data must be flushed before its recovery point is written here. OSError if the disk refuses,
        or is another one now.
        """
        self.check()
        for number, name in enumerate([RECOVERY_POINTS_NAME, LOG_STARTS_NAME, HIGH_WATERMARKS_NAME]):
            write_offsets(self.path / name, {key: log[number] for key, log in logs.items()})
        cleaned = {key: log.first_dirty_offset for key, log in logs.items() if log.first_dirty_offset}
        if cleaned != self._stored[3]:
            write_offsets(self.path / CLEANER_OFFSETS_NAME, cleaned)
            self._stored[3] = cleaned

    def mark_clean(self, ends: Mapping[TopicPartition, CleanEnd]) -> None:
        """Write the clean-shutdown marker: the last step of a clean stop, after `write_checkpoints`.

        `ends` names the logs that were closed without an error; the others are checked at the next start. OSError if
        the disk refuses, or is another one now.
        """
        self.check()
        marker = _CleanMarker(_MARKER_VERSION, {key.directory_name: end for key, end in ends.items()})
        replace_file(self.path / CLEAN_MARKER_NAME, msgspec.json.encode(marker))

    def close(self) -> None:
        """Release the lock. Another process may use the directory afterwards."""
        descriptor, self._lock_descriptor = self._lock_descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _named_directories(self) -> Iterator[tuple[PartitionDirectoryName, Path]]:
        with os.scandir(self.path) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        for text in names:
            name = parse_directory_name(text)
            if name is None:
                logger.warning("%s is not a partition's directory and is left alone", self.path / text)
            else:
                yield name, self.path / text

    def _read_state(self) -> None:
        files = [path for name in (CLEAN_MARKER_NAME, RECOVERY_POINTS_NAME) if (path := self.path / name).exists()]
        self.last_written_ms = max((path.stat().st_mtime_ns // 1_000_000 for path in files), default=None)
        self._clean_ends = self._take_clean_marker()
        for number, (name, consequence) in enumerate(CHECKPOINTS.items()):
            try:
                self._stored[number] = read_offsets(self.path / name)
            except StorageError as error:
                logger.warning("checkpoint damaged, %s: %s", consequence, error)

    def _take_clean_marker(self) -> dict[TopicPartition, CleanEnd] | None:
        """Read the marker, then delete it; None if there is none or it is damaged."""
        path = self.path / CLEAN_MARKER_NAME
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        path.unlink()
        sync_directory(self.path)
        ends = {}
        try:
            marker = msgspec.json.decode(content, type=_CleanMarker)
            if marker.version != _MARKER_VERSION:
                raise ValueError(f"expected version {_MARKER_VERSION}, found {marker.version!r}")
            for directory_name, end in marker.logs.items():
                name = parse_directory_name(directory_name)
                if name is None:
                    raise ValueError(f"{directory_name!r} is not the name of a partition's directory")
                ends[name.topic_partition] = end
        except (ValueError, msgspec.MsgspecError) as error:
            logger.warning("%s is damaged, logs are checked as after a crash: %s", path, error)
            return None
        return ends


def remove_deleted_partition(path: Path) -> None:
    """Remove the directory of a deleted partition; ValueError for any other directory."""
    name = parse_directory_name(path.name)
    if name is None or name.mark != "delete":
        raise ValueError(f"{path} is not the directory of a deleted partition")
    import shutil  # slow to import

    shutil.rmtree(path)


@contextmanager
def _as_directory_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataDirectoryError(
            f"data directory {path} cannot be used: {error.strerror or error} ({error.filename}). It must be a "
            f"directory that the user running the broker (uid {os.geteuid()}) may write to"
        ) from error
