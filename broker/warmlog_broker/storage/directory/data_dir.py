"""A data directory: who may use it, how it was left, and the checkpoints of its partitions.

::

    .lock                              held by flock while a broker runs; its content is the holder's pid
    warmlog.properties                 format version, cluster id, directory id         (format: `directory_format`)
    .warmlog_cleanshutdown             there only between a clean stop and the next start
    recovery-point-offset-checkpoint   up to where each log is known to be on disk     (format: `checkpoints`)
    log-start-offset-checkpoint        from where each log may be read
    replication-offset-checkpoint      each log's high watermark
    cleaner-offset-checkpoint          up to where each log has been compacted
    flights-0/ flights-1/ …            a directory for each partition                  (names: `topic_partition`)

The clean-shutdown marker is JSON, `{"version": 0, "logs": {"flights-0": [14000, 256702]}}`: each log's end offset and
the size of its last segment, which must still be the same. Kafka's marker is called `.kafka_cleanshutdown` and says
nothing of that kind: it is neither read nor written, so a directory that Kafka stopped cleanly is checked from its
recovery points on. The marker is deleted, durably, as soon as it has been read: a crash during the start is a crash.

What is not in this list is left alone. In particular a directory that nothing refers to is never removed, and not
renamed either (Kafka moves it to `-stray`): it may be somebody's backup, and its name tells whose it was.

A broker may have several data directories, each with all of these files of its own: what one disk loses concerns its
own partitions only.
"""

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import ENOSPC, EROFS, ESTALE
from pathlib import Path
from typing import NamedTuple, Self
from uuid import UUID, uuid4

from warmlog_broker.storage.directory.offset_checkpoint import read_offsets, write_offsets
from warmlog_broker.storage.directory.properties import (
    FORMAT_NAME,
    DataDirectoryError,
    DirectoryFormat,
    ForeignDirectory,
    UnsupportedFormat,
    read_format,
    write_format,
)
from warmlog_broker.storage.directory.topic_partition import (
    PartitionDirectoryName,
    TopicPartition,
    parse_directory_name,
)
from warmlog_broker.storage.io.durable_files import make_directories, replace_file, sync_directory, write_file
from warmlog_broker.storage.io.os_errors import is_shortage
from warmlog_protocol.errors import StorageError

__all__ = [
    "FORMAT_NAME",
    "CleanEnd",
    "DataDirectory",
    "DataDirectoryError",
    "DirectoryLocked",
    "ForeignDirectory",
    "LogOffsets",
    "StoredState",
    "UnsupportedFormat",
]

logger = logging.getLogger(__name__)

LOCK_NAME = ".lock"
CLEAN_MARKER_NAME = ".warmlog_cleanshutdown"
RECOVERY_POINTS_NAME = "recovery-point-offset-checkpoint"
LOG_STARTS_NAME = "log-start-offset-checkpoint"
HIGH_WATERMARKS_NAME = "replication-offset-checkpoint"
CLEANER_OFFSETS_NAME = "cleaner-offset-checkpoint"

PROBE_NAME = ".probe"
KAFKA_PROPERTIES_NAME = "meta.properties"
_MARKER_VERSION = 0


class DirectoryLocked(DataDirectoryError):
    """Another process uses it."""


class LogOffsets(NamedTuple):
    """The offsets of one log that checkpoints keep."""

    recovery_point: int
    log_start_offset: int
    high_watermark: int
    first_dirty_offset: int = 0
    """Up to where it has been compacted, whatever its cleanup.policy says now; 0 for one that never was."""


class CleanEnd(NamedTuple):
    """How a log was left by a clean stop."""

    end_offset: int
    active_segment_bytes: int


class StoredState(NamedTuple):
    """What the directory knows of one log before it is opened."""

    offsets: LogOffsets
    clean_end: CleanEnd | None
    """None when the log was not closed cleanly: it must be checked above its recovery point."""


NEVER_STORED = StoredState(LogOffsets(0, 0, 0), None)
"""What is known of a log that no checkpoint names."""


class DataDirectory:
    """A locked data directory. `open` locks it and reads how it was left; `close` gives it back."""

    def __init__(self, path: Path, lock_descriptor: int) -> None:
        self.path = path
        self.directory_id = UUID(int=0)
        """From `take_over` on."""
        self.is_new = False
        """Whether no broker has used it before."""
        self._lock_descriptor = lock_descriptor
        self._format: DirectoryFormat | None = None
        self._clean_ends: dict[TopicPartition, CleanEnd] | None = None
        self._recovery_points: dict[TopicPartition, int] = {}
        self._log_starts: dict[TopicPartition, int] = {}
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._cleaner_offsets: dict[TopicPartition, int] = {}
        self.last_written_ms: int | None = None
        """When a broker last wrote a checkpoint, or stopped cleanly, by the clock of that time; None if none did."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """`lock` and `take_over` in one, for a directory that stands alone."""
        directory = cls.lock(path)
        try:
            directory.take_over(None)
        except BaseException:
            directory.close()
            raise
        return directory

    @classmethod
    def lock(cls, path: Path, *, must_exist: bool = False) -> Self:
        """Creates the directory if need be, locks it and reads its format. Nothing that was there is changed.

        Raises DirectoryLocked, UnsupportedFormat, ForeignDirectory for one of Kafka's or, when it cannot be created or
        written, DataDirectoryError.
        """
        with _in_words(path):
            if not must_exist:
                make_directories(path)
            _refuse_kafka(path)
            directory = cls(path, _lock(path / LOCK_NAME))
            try:
                directory._format = read_format(path)
                directory.is_new = directory._format is None
            except BaseException:
                directory.close()
                raise
        return directory

    @property
    def format(self) -> DirectoryFormat:
        """What the format file said when the directory was locked."""
        return self._format or DirectoryFormat()

    def take_over(self, cluster_id: str | None, known_id: UUID | None = None) -> None:
        """Makes the directory this cluster's (None: as it is), and reads how it was left; the marker is gone then.

        One without an id gets `known_id`, if there is one.

        Raises ForeignDirectory when it is another cluster's, and DataDirectoryError from the disk.
        """
        found = self.format
        if cluster_id is not None and found.cluster_id not in (None, cluster_id):
            raise ForeignDirectory(
                f"{self.path} belongs to the cluster {found.cluster_id}, and this broker to the cluster {cluster_id}: "
                f"is it the right disk? Nothing was changed"
            )
        with _in_words(self.path):
            wanted = DirectoryFormat(cluster_id or found.cluster_id, found.directory_id or known_id or uuid4())
            if self._format != wanted:
                write_format(self.path, wanted)
                self._format = wanted
            assert wanted.directory_id is not None
            self.directory_id = wanted.directory_id
            self._read_state()

    def require_room(self, size_bytes: int) -> None:
        """OSError when the file system has no room for so much more."""
        found = os.statvfs(self.path)
        free_bytes = found.f_bavail * found.f_frsize
        if free_bytes < size_bytes:
            raise OSError(ENOSPC, f"{size_bytes} bytes are needed, {free_bytes} are free", str(self.path))

    def check(self) -> None:
        """Passes while the directory is what it was when it was locked; OSError when the disk was taken away, covered
        by another one, or made read-only. Waits for no disk as a rule."""
        lock_path = self.path / LOCK_NAME
        mine, there = os.fstat(self._lock_descriptor), lock_path.stat()
        if (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino):
            raise OSError(ESTALE, "not the file that this broker has locked: another disk is there", str(lock_path))
        if os.fstatvfs(self._lock_descriptor).f_flag & os.ST_RDONLY:
            raise OSError(EROFS, "the file system has become read-only", str(self.path))

    def free_bytes(self) -> int:
        """What this user may still write to the disk. Waits for no disk as a rule."""
        found = os.fstatvfs(self._lock_descriptor)
        return found.f_bavail * found.f_frsize

    def probe(self) -> None:
        """As `check`, and writes and syncs a small file too: OSError when the disk does not do it. Full is no error."""
        self.check()
        path = self.path / PROBE_NAME
        try:
            write_file(path, b"probe\n", sync=True)
        except OSError as error:
            if not is_shortage(error):
                raise
        path.unlink(missing_ok=True)

    @property
    def was_clean(self) -> bool:
        """Whether the last stop was a clean one."""
        return self._clean_ends is not None

    def was_closed(self, key: TopicPartition) -> bool:
        """Whether the last stop was a clean one that closed this log."""
        return key in (self._clean_ends or {})

    def stored_state(self, key: TopicPartition) -> StoredState:
        """What the checkpoints and the marker, as they were when the directory was opened, say of one log."""
        offsets = LogOffsets(
            self._recovery_points.get(key, 0),
            self._log_starts.get(key, 0),
            self._high_watermarks.get(key, 0),
            self._cleaner_offsets.get(key, 0),
        )
        clean_end = (self._clean_ends or {}).get(key)
        if clean_end is not None and clean_end.end_offset != offsets.recovery_point:
            logger.warning("%s: marker and recovery point differ, the log is checked: %s, %s", key, clean_end, offsets)
            clean_end = None
        return StoredState(offsets, clean_end)

    def knows_start(self, key: TopicPartition) -> bool:
        """Whether a checkpoint names the log start: a first segment above it means that earlier ones are lost."""
        return key in self._log_starts

    def stored_offsets(self) -> dict[TopicPartition, LogOffsets]:
        """What the checkpoints said of the partitions whose directories are there."""
        known = self._recovery_points.keys() | self._log_starts.keys() | self._high_watermarks.keys()
        if not known:
            return {}
        return {key: self.stored_state(key).offsets for key in self.partitions() if key in known}

    def partition_path(self, key: TopicPartition) -> Path:
        return self.path / key.directory_name

    def partitions(self) -> dict[TopicPartition, Path]:
        """The directories of partitions in use."""
        return {name.topic_partition: path for name, path in self._named_directories() if not name.mark}

    def deleted_partitions(self) -> list[Path]:
        """The directories of deleted partitions that wait to be removed."""
        return [path for name, path in self._named_directories() if name.mark == "delete"]

    def future_partitions(self) -> list[tuple[TopicPartition, Path]]:
        """The directories of partitions that are on their way into this data directory. Topics may be cut."""
        return [(name.topic_partition, path) for name, path in self._named_directories() if name.mark == "future"]

    def write_checkpoints(self, logs: Mapping[TopicPartition, LogOffsets]) -> None:
        """Replaces the checkpoint files; returns when they are durable.

        `logs` must name every log that there is, failed ones included: what it does not name is forgotten, and would be
        checked from its beginning. One thread at a time. Data must be flushed before its recovery point comes here.
        OSError when the disk refuses, or is another one now.
        """
        self.check()
        write_offsets(self.path / RECOVERY_POINTS_NAME, {key: log.recovery_point for key, log in logs.items()})
        write_offsets(self.path / LOG_STARTS_NAME, {key: log.log_start_offset for key, log in logs.items()})
        write_offsets(self.path / HIGH_WATERMARKS_NAME, {key: log.high_watermark for key, log in logs.items()})
        cleaned = {key: log.first_dirty_offset for key, log in logs.items() if log.first_dirty_offset}
        if cleaned != self._cleaner_offsets:
            write_offsets(self.path / CLEANER_OFFSETS_NAME, cleaned)
            self._cleaner_offsets = cleaned

    def mark_clean(self, ends: Mapping[TopicPartition, CleanEnd]) -> None:
        """Writes the clean-shutdown marker: the last thing of a clean stop, after `write_checkpoints`.

        `ends` names the logs that were closed without an error; the others are checked at the next start. OSError when
        the disk refuses, or is another one now.
        """
        self.check()
        logs = {key.directory_name: list(end) for key, end in ends.items()}
        marker = json.dumps({"version": _MARKER_VERSION, "logs": logs})
        replace_file(self.path / CLEAN_MARKER_NAME, marker.encode())

    def close(self) -> None:
        """Releases the lock. The directory may be used by another process from here on."""
        descriptor, self._lock_descriptor = self._lock_descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _named_directories(self) -> Iterator[tuple[PartitionDirectoryName, Path]]:
        for path in sorted(self.path.iterdir()):
            if not path.is_dir():
                continue
            name = parse_directory_name(path.name)
            if name is None:
                logger.warning("%s is not a partition's directory and is left alone", path)
            else:
                yield name, path

    def _read_state(self) -> None:
        self.last_written_ms = self._find_last_written()
        self._clean_ends = self._take_clean_marker()
        self._recovery_points = self._read_checkpoint(RECOVERY_POINTS_NAME, "every log is checked from its beginning")
        self._log_starts = self._read_checkpoint(LOG_STARTS_NAME, "logs begin with their first segment")
        self._high_watermarks = self._read_checkpoint(HIGH_WATERMARKS_NAME, "high watermarks begin at the log start")
        self._cleaner_offsets = self._read_checkpoint(CLEANER_OFFSETS_NAME, "compaction begins at the log starts")

    def _find_last_written(self) -> int | None:
        times_ms = []
        for name in (CLEAN_MARKER_NAME, RECOVERY_POINTS_NAME):
            try:
                times_ms.append((self.path / name).stat().st_mtime_ns // 1_000_000)
            except FileNotFoundError:
                continue
        return max(times_ms, default=None)

    def _read_checkpoint(self, name: str, consequence: str) -> dict[TopicPartition, int]:
        try:
            return read_offsets(self.path / name)
        except StorageError as error:
            logger.warning("checkpoint damaged, %s: %s", consequence, error)
            return {}

    def _take_clean_marker(self) -> dict[TopicPartition, CleanEnd] | None:
        """What the marker says, after it has been deleted; None when there is none or it says nothing of use."""
        path = self.path / CLEAN_MARKER_NAME
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        path.unlink()
        sync_directory(self.path)
        try:
            return _parse_marker(content)
        except (ValueError, TypeError, AttributeError) as error:
            logger.warning("%s is damaged, logs are checked as after a crash: %s", path, error)
            return None


def remove_deleted_partition(path: Path) -> None:
    """Removes the directory of a deleted partition for good; ValueError for any other directory."""
    name = parse_directory_name(path.name)
    if name is None or name.mark != "delete":
        raise ValueError(f"{path} is not the directory of a deleted partition")
    shutil.rmtree(path)


def _parse_marker(content: bytes) -> dict[TopicPartition, CleanEnd]:
    marker = json.loads(content)
    if marker.get("version") != _MARKER_VERSION:
        raise ValueError(f"expected version {_MARKER_VERSION}, found {marker.get('version')!r}")
    ends = {}
    for directory_name, (end_offset, active_segment_bytes) in marker.get("logs", {}).items():
        name = parse_directory_name(directory_name)
        if name is None:
            raise ValueError(f"{directory_name!r} is not the name of a partition's directory")
        ends[name.topic_partition] = CleanEnd(int(end_offset), int(active_segment_bytes))
    return ends


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    """Turns what the disk says into something that a user can act upon."""
    try:
        yield
    except OSError as error:
        raise DataDirectoryError(
            f"data directory {path} cannot be used: {error.strerror or error} ({error.filename}). It must be a "
            f"directory that the user running the broker (uid {os.geteuid()}) may write to"
        ) from error


def _refuse_kafka(path: Path) -> None:
    """ForeignDirectory for a data directory of Kafka: its checkpoints, which have the names of ours, would be lost."""
    if (path / KAFKA_PROPERTIES_NAME).exists() and not (path / FORMAT_NAME).exists():
        raise ForeignDirectory(
            f"{path} holds {KAFKA_PROPERTIES_NAME}: it is a data directory of Kafka. Take a new one, and its topics "
            f"over with `warmlog log adopt {path} --data-dir DIR`. Nothing was changed"
        )


def _write_pid(descriptor: int) -> None:
    """For whoever is refused. A full disk does not stop the broker."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        if not is_shortage(error):
            raise


def _lock(path: Path) -> int:
    """A descriptor that holds the lock; DirectoryLocked, with the holder's pid, when another process does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write_pid(descriptor)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise DirectoryLocked(
            f"data directory {path.parent} is in use by another broker: process {holder} holds the lock {path}"
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
