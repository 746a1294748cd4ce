"""What must be synced for a log to be durable up to an offset.

`LogFlusher.prepare` makes a plan in the thread that owns the log; `run` carries it out in any thread, while appends go
on; `LogFlusher.mark_flushed` takes note. A plan that raised must never be run again: after a failed sync the kernel has
marked the pages clean, so a second one would report success for data that is lost. The log is failed instead. The one
exception is SyncNotBegun: there was no descriptor to sync with, so `LogFlusher.put_back` has the next plan do it.

`run_plans` carries out those of one group commit: in several threads, or, from a number of files on, by one `syncfs(2)`
in place of the syncs of all plans, after `stage_side_files` of each; if there are side files,
`place_side_files` of each and another `syncfs` follow. `syncfs` does not say which file failed: then each file is
synced by itself, which reports an error that the kernel still holds for it; if no file reports one, every plan of the
flush has failed.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from warmlog_broker.storage.directory.leader_epochs import EPOCHS_NAME, EpochStart, pack_epochs
from warmlog_broker.storage.directory.partition_files import RESTART_POINT_NAME, RestartPoint, pack_restart_point
from warmlog_broker.storage.io.durable_files import commit_file, open_to_sync, replace_file, stage_file, sync_directory
from warmlog_broker.storage.io.os_errors import SyncNotBegun, is_resource_exhaustion
from warmlog_broker.storage.segment.segment import LogSegment, Unflushed
from warmlog_broker.storage.segment.segments import LogOffsetMetadata

Outcome = OSError | None
"""Of a plan: None, or the error because of which it is not durable."""


class FlushPlan(Struct):
    """Everything that was written to one log and not synced, when the plan was made."""

    directory: Path
    end: LogOffsetMetadata
    """The log end offset that is durable once the plan has run."""
    segments: tuple[tuple[LogSegment, Unflushed], ...]
    snapshots: tuple[Path, ...] = ()
    """Producer snapshots written at rolls."""
    directories: tuple[Path, ...] = ()
    """Where files were created or renamed."""
    epochs: tuple[EpochStart, ...] | None = None
    """The leader epochs to write to their file; None if they have not changed."""
    truncations: int = 0
    """`LocalLog.truncations` when the plan was made."""
    epochs_error: str = ""
    """Why the leader epochs could not be written (out of space or descriptors); the next flush writes them."""
    restart_point: RestartPoint | None = None
    """To be written once everything else is on disk; None after that if the disk was too full for it."""

    @property
    def file_count(self) -> int:
        """How many files are to be synced, without the side files."""
        count = len(self.snapshots)
        for _, unflushed in self.segments:
            count += len(unflushed.files)
        return count

    def run(self) -> None:
        """Make everything durable; OSError from the disk. Takes from 0.2 ms to what the disk needs."""
        for _, unflushed in self.segments:
            for file in unflushed.files:
                os.fdatasync(file.fd)
        for path in self.snapshots:
            sync_file_if_there(path)
        self._write(replace_file)
        for directory in self.directories:
            sync_directory_if_there(directory)

    @property
    def has_side_files(self) -> bool:
        return self.epochs is not None or self.restart_point is not None

    def stage_side_files(self) -> None:
        """Write the new side files under temporary names; durable after a sync, `place_side_files`, and a sync."""
        self._write(partial(stage_file, sync=False))

    def place_side_files(self) -> None:
        """Rename what was staged, and synced since, into place."""
        self._write(lambda path, _: commit_file(path))

    def _write(self, write: Callable[[Path, bytes], None]) -> None:
        """Write the files of the leader epochs and of the restart point, if they have changed.

        A disk that is too full for it does not fail the flush: the batches carry their epochs too.
        """
        if self.epochs is not None and not self.epochs_error:
            self.epochs_error = self._attempt(write, EPOCHS_NAME, pack_epochs(self.epochs))
        if self.restart_point is not None:
            point = pack_restart_point(self.restart_point)
            if self._attempt(write, RESTART_POINT_NAME, point):
                self.restart_point = None

    def _attempt(self, write: Callable[[Path, bytes], None], name: str, content: bytes) -> str:
        """Write a file; return why space or descriptors do not suffice for it."""
        try:
            write(self.directory / name, content)
        except FileNotFoundError:
            if self.directory.exists():
                raise  # otherwise the log was deleted, or has moved away
        except OSError as error:
            if not is_resource_exhaustion(error):
                raise
            return str(error) or repr(error)
        return ""


class Unsynced:
    """What a log has written and not synced: rolled segments, snapshots, names in directories."""

    def __init__(self, segments: Iterable[LogSegment] = ()) -> None:
        self._segments = list(segments)
        self._snapshots: list[Path] = []
        self._directories: set[Path] = set()

    @property
    def is_empty(self) -> bool:
        return not (self._snapshots or self._directories or any(each.unflushed() for each in self._segments))

    def add_segment(self, segment: LogSegment) -> None:
        """Add a segment that is, or will be, no longer the active one."""
        self._segments.append(segment)

    def forget_segment(self, segment: LogSegment) -> None:
        """Note that the segment is removed from the log and need not be durable."""
        if segment in self._segments:
            self._segments.remove(segment)

    def add_snapshot(self, path: Path) -> None:
        self._snapshots.append(path)

    def add_directory(self, directory: Path) -> None:
        """Note that files were created, renamed or removed in it."""
        self._directories.add(directory)

    def plan(
        self,
        directory: Path,
        active: LogSegment,
        epochs: tuple[EpochStart, ...] | None,
        end: LogOffsetMetadata,
        truncations: int = 0,
    ) -> FlushPlan | None:
        """The plan that syncs all of it and the active segment; None if there is nothing to sync."""
        segments: tuple[tuple[LogSegment, Unflushed], ...] = ()
        for segment in (*self._segments, active) if self._segments else (active,):
            unflushed = segment.unflushed()
            if unflushed is not None:
                segments += ((segment, unflushed),)
                if unflushed.is_directory_dirty:
                    self._directories.add(directory)
        if not (self._directories or self._snapshots):  # as in most flushes
            if not segments and epochs is None:
                return None
            return FlushPlan(directory, end, segments, (), (), epochs, truncations)
        snapshots, directories = tuple(self._snapshots), tuple(self._directories)
        self._snapshots.clear()
        self._directories.clear()
        return FlushPlan(directory, end, segments, snapshots, directories, epochs, truncations)

    def put_back(self, plan: FlushPlan) -> None:
        """Merge the work of a plan that did not complete (out of descriptors or memory) into the next one."""
        self._snapshots.extend(plan.snapshots)
        self._directories.update(plan.directories)

    def mark_synced(self, plan: FlushPlan) -> None:
        """Note that `plan` has run without an error."""
        for segment, unflushed in plan.segments:
            segment.mark_flushed(unflushed)
        if self._segments:
            self._segments = [segment for segment in self._segments if segment.unflushed() is not None]


def sync_directory_if_there(directory: Path) -> None:
    """Sync a directory, unless it was renamed or removed meanwhile."""
    try:
        sync_directory(directory)
    except FileNotFoundError:
        if directory.exists():
            raise


def sync_file_if_there(path: Path) -> None:
    """Sync a file, unless it was renamed or removed meanwhile, as retention does."""
    with suppress(FileNotFoundError), open_to_sync(path) as descriptor:
        os.fdatasync(descriptor)


def is_synced_at_once(file_count: int, syncfs_files: int) -> bool:
    """Whether so many files are best synced with the whole file system: from `syncfs_files` on, never with 0.

    Fewer are synced in threads: syncs that run at once share a commit of the file system's journal, for which each of
    them waits (`make bench-flush`).
    """
    return 0 < syncfs_files <= file_count


def run_plans(
    plans: Sequence[FlushPlan], *, data_dir: Path, syncfs_files: int, threads: Executor, thread_count: int
) -> list[Outcome]:
    """Make `plans` durable, in this thread and in `threads`; return the outcome of each, in order."""
    if len(plans) == 1:
        return [_attempt(plans[0].run)]
    if is_synced_at_once(sum([plan.file_count for plan in plans]), syncfs_files):
        return _run_by_file_system(plans, data_dir)
    step = -(-len(plans) // thread_count)
    shares = [plans[start : start + step] for start in range(0, len(plans), step)]
    others = [threads.submit(_run_all, share) for share in shares[1:]]
    outcomes = _run_all(shares[0])
    for other in others:
        outcomes += other.result()
    return outcomes


def sync_file_system(path: Path) -> None:
    """Make everything written to the file system of `path` durable."""
    with open_to_sync(path, os.O_DIRECTORY) as descriptor:
        while _libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            if number != errno.EINTR:  # PEP 475 covers Python's own calls only
                raise OSError(number, os.strerror(number), str(path))


def _run_by_file_system(plans: Sequence[FlushPlan], data_dir: Path) -> list[Outcome]:
    outcomes = [_attempt(plan.stage_side_files) for plan in plans]
    try:
        sync_file_system(data_dir)
        if any(plan.has_side_files for plan in plans):
            renamed = [_attempt(plan.place_side_files) for plan in plans]
            outcomes = [outcome or error for outcome, error in zip(outcomes, renamed, strict=True)]
            sync_file_system(data_dir)
    except OSError as error:
        outcomes = [outcome or _attempt(plan.run) for plan, outcome in zip(plans, outcomes, strict=True)]
        is_told = any(outcome is not None and not isinstance(outcome, SyncNotBegun) for outcome in outcomes)
        if not is_told and not isinstance(error, SyncNotBegun):
            return [error] * len(plans)
    return outcomes


def _run_all(plans: Sequence[FlushPlan]) -> list[Outcome]:
    return [_attempt(plan.run) for plan in plans]


def _attempt(step: Callable[[], None]) -> Outcome:
    try:
        step()
    except OSError as error:
        return error
    return None


_libc = ctypes.CDLL(None, use_errno=True)
