"""Copying a log to another data directory while it is appended to, and opening the copy in its place.

The files are copied as they are: segments keep their boundaries, batches their bytes and positions, and damage stays
where it is. Closed segments are copied with their indexes, transaction index and producer snapshot, so that nothing has
to be rebuilt. Changes by appends, retention and truncation are followed: a segment that has grown is continued, one
that was replaced or cut is copied again, one that is gone is removed at the end. (Kafka fetches from itself as a
follower does, and computes indexes and producer state again.)

The copy's directory is `topic-N.<32 hex>-future`, which a start treats as an unfinished copy. Everything in it is
synced as it is copied, except what `finish` adds, which `sync` makes durable. Files that recovery has set aside are
copied too.

`finish` returns a Log on the copy that knows all that the original knows, producers, epochs and offsets, and can be
appended to at once. The original must not be appended to any more. The caller records which of both counts after a
crash; see `replica_mover` in the broker.
"""

import os
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from warmlog_broker.storage.directory.leader_epochs import EPOCHS_NAME, pack_epochs
from warmlog_broker.storage.directory.partition_files import METADATA_NAME, STATE_NAMES, pack_partition_metadata
from warmlog_broker.storage.directory.topic_partition import marked_directory_name
from warmlog_broker.storage.index.time_index import TimeIndex
from warmlog_broker.storage.io.copy_bytes import copy_bytes, copy_file
from warmlog_broker.storage.io.durable_files import replace_file, sync_directory, write_file
from warmlog_broker.storage.io.open_files import OpenFile, OpenFiles
from warmlog_broker.storage.log.flush_plan import sync_file_if_there
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.producer.snapshots import ProducerSnapshots
from warmlog_broker.storage.recovery.recovery import CUT_SUFFIX
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_files import KINDS, LOG_KIND, TIME_INDEX_KIND, segment_file_name, split_name

_EVERYTHING = 1 << 62


class CopyStep(Struct, frozen=True):
    """Bytes of one log file to copy, and its side files. `run` may be called in any thread."""

    source: OpenFile
    target: Path
    position: int
    size_bytes: int
    side_files: tuple[tuple[Path, Path], ...] = ()

    def run(self, *, sync: bool = True) -> None:
        """Copy; with `sync` durably, except the name. OSError from either disk."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (0 if self.position else os.O_TRUNC)
        descriptor = os.open(self.target, flags, 0o644)
        try:
            copy_bytes(self.source.fd, descriptor, self.size_bytes, position=self.position)
            if sync:
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        for path, target in self.side_files:
            _copy_small(path, target, sync=sync)


class _CopiedSegment(NamedTuple):
    """How far one segment has been copied."""

    segment: LogSegment
    size_bytes: int
    has_side_files: bool
    """They are copied last, once the log file will not grow any more."""


def make_directory(source: Log, data_directory: Path) -> Path:
    """Create the directory of a copy of `source` in `data_directory`, durably, and return its path. In any thread.

    OSError from the disk: then the directory is removed again, if possible.
    """
    directory = data_directory / marked_directory_name(source.key, "future")
    assert source.topic_id is not None
    directory.mkdir()
    try:
        replace_file(directory / METADATA_NAME, pack_partition_metadata(source.topic_id))
        sync_directory(data_directory)
    except OSError:
        import shutil  # slow to import

        shutil.rmtree(directory, ignore_errors=True)
        raise
    return directory


class LogCopy(Struct):
    """A copy under way. `run` of the steps apart, everything belongs to the thread that owns the original."""

    source: Log
    directory: Path
    _truncations: int = 0
    _copied: dict[int, _CopiedSegment] = field(default_factory=dict)
    _unsynced: list[Path] = field(default_factory=list)

    @classmethod
    def begin(cls, source: Log, directory: Path) -> "LogCopy":
        """Begin a copy of `source` in `directory`, which `make_directory` has made. `source` must not be compacted."""
        source.compaction.stop()
        source.local.finish_replacement()
        return cls(source, directory, source.local.truncations)

    def copy_kept_aside(self) -> None:
        """Copy what recovery has cut and kept for inspection. In any thread; OSError from either disk."""
        for path in sorted(self.source.local.directory.iterdir()):
            if CUT_SUFFIX in path.name:
                with path.open("rb") as file:
                    copy_file(file.fileno(), self.directory / path.name, os.fstat(file.fileno()))

    @property
    def size_bytes(self) -> int:
        """How much of the .log files has been copied."""
        return sum(copied.size_bytes for copied in self._copied.values())

    @property
    def missing_bytes(self) -> int:
        """How much of the .log files must still be copied."""
        self._follow()
        return sum(
            segment.size_bytes - (known.size_bytes if (known := self._copied.get(segment.base_offset)) else 0)
            for segment in self.source.local.segments
        )

    @property
    def offset_lag(self) -> int:
        """How many offsets the copy lacks, counted from the first segment that is not complete."""
        for segment in self.source.local.segments:
            known = self._copied.get(segment.base_offset)
            if known is None or known.size_bytes < segment.size_bytes:
                return self.source.log_end_offset - segment.base_offset
        return 0

    def next_steps(self, max_bytes: int = _EVERYTHING) -> list[CopyStep]:
        """Return what to copy next, oldest first, about `max_bytes`; empty if there is nothing to do.

        The steps count as copied from now on: if one fails, the whole copy must be given up.
        """
        self._follow()
        local = self.source.local
        steps = []
        for segment in local.segments:
            known = self._copied.get(segment.base_offset)
            position = known.size_bytes if known is not None else 0
            end = min(segment.size_bytes, position + max_bytes)
            takes_side_files = end == segment.size_bytes and segment is not local.active
            if known is None or end > position or (takes_side_files and not known.has_side_files):
                side_files = self._side_files(segment) if takes_side_files else ()
                path = self._path(segment.base_offset, LOG_KIND)
                steps.append(CopyStep(segment.records.open_file(), path, position, end - position, tuple(side_files)))
                self._copied[segment.base_offset] = _CopiedSegment(segment, end, takes_side_files)
                max_bytes -= end - position
            if max_bytes <= 0:
                break
        return steps

    def finish(self, now_ms: int) -> Log:
        """Copy what is left, in this thread, and return the log on the copy. The original must not be used again.

        What this adds is not durable before `sync`. OSError from the disk: then the original is unchanged.
        """
        source, local = self.source, self.source.local
        local.finish_replacement()
        for step in self.next_steps():
            step.run(sync=False)
            self._unsynced += [step.target, *(target for _, target in step.side_files)]
        active = local.active
        for index in (active.indexes.offset, active.indexes.time):
            target = self.directory / index.path.name
            size_bytes = None
            if index.loaded is not None:
                index.loaded.write_out()
                size_bytes = index.loaded.size_bytes
            if not _copy_small(index.path, target, sync=False, size_bytes=size_bytes):
                target.touch()  # it has no entry yet
            self._unsynced.append(target)
        if active.size_bytes:
            self._finish_time_index(active)
        for path, target in self._side_files(active):
            if path.suffix == ".txnindex" and _copy_small(path, target, sync=False):
                self._unsynced.append(target)
        self._remove_stale_files()
        for name in STATE_NAMES:
            if _copy_small(local.directory / name, self.directory / name, sync=False):
                self._unsynced.append(self.directory / name)
        source.producers.end_offset = source.log_end_offset
        snapshots = ProducerSnapshots(self.directory, ())
        self._unsynced.append(snapshots.take(source.producers))
        write_file(self.directory / EPOCHS_NAME, pack_epochs(source.epochs.entries), sync=False)
        self._unsynced.append(self.directory / EPOCHS_NAME)
        return Log.take_over(source, self.directory, now_ms)

    def sync(self) -> None:
        """In any thread, after `finish`: on return the copy is durable as it was then."""
        for path in self._unsynced:
            sync_file_if_there(path)  # an old snapshot, or an index that was rebuilt, has been removed since
        sync_directory(self.directory)

    def _follow(self) -> None:
        """Forget what was copied of segments that were replaced or cut."""
        local = self.source.local
        if local.truncations != self._truncations:
            self._truncations = local.truncations
            self._copied.clear()
        for segment in local.segments:
            known = self._copied.get(segment.base_offset)
            if known is not None and (known.segment is not segment or known.size_bytes > segment.size_bytes):
                del self._copied[segment.base_offset]

    def _side_files(self, segment: LogSegment) -> list[tuple[Path, Path]]:
        pairs = [(segment.path_of(kind), self._path(segment.base_offset, kind)) for kind in KINDS if kind != LOG_KIND]
        snapshot = self.source.local.snapshots.path(segment.base_offset)
        return [*pairs, (snapshot, self.directory / snapshot.name)]

    def _finish_time_index(self, active: LogSegment) -> None:
        """The last entry of the active segment's time index, as when it is closed: without it, it counts as stale."""
        base_offset, largest = active.base_offset, active.max_timestamp
        with TimeIndex(self._path(base_offset, TIME_INDEX_KIND), base_offset, open_files=OpenFiles()) as index:
            index.resize(index.file_bytes + index.entry_bytes)
            index.maybe_append(largest.timestamp_ms, largest.offset, is_last=True)

    def _remove_stale_files(self) -> None:
        """Unlink files that no longer belong to a segment of the original."""
        bases = {segment.base_offset for segment in self.source.local.segments}
        names = {segment_file_name(base, kind) for base in bases for kind in KINDS}
        names |= {self.source.local.snapshots.path(base).name for base in bases}
        for path in self.directory.iterdir():
            if split_name(path.name)[1] and path.name not in names and CUT_SUFFIX not in path.name:
                path.unlink()

    def _path(self, base_offset: int, kind: str) -> Path:
        return self.directory / segment_file_name(base_offset, kind)


def _copy_small(path: Path, target: Path, *, sync: bool, size_bytes: int | None = None) -> bool:
    """Copy a file, or its first `size_bytes`; False if there is none: what is missing can be rebuilt."""
    try:
        with path.open("rb") as file:  # a preallocated index is mostly unused
            content = file.read(-1 if size_bytes is None else size_bytes)
    except FileNotFoundError:
        target.unlink(missing_ok=True)
        return False
    write_file(target, content, sync=sync)
    return True
