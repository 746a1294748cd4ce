"""What an export has copied: the directory `_warmlog` below its path, which Spark ignores when it reads the rest.

::

    _warmlog/lock                                held by the running export: a second one is refused
    _warmlog/commits/00000000000000000007.json   one for each commit, numbered from 0; see Commit
    _warmlog/staging/7/…                         files of the next commit, as tasks write them
    date=2026-11-21/part-….parquet               committed files

The rename of its JSON file commits, after all files that it lists are on disk. Then these move from staging to where
readers see them, and the rest of staging, files of failed attempts, is removed. After a crash before the rename, the
next export removes the staged files, which no commit lists; after a later crash it moves the listed files that are
still staged. So each record comes once, and readers see it after the next start at the latest.

All files are in a file system that the driver and all executors share.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from warmlog.errors import ClientError
from warmlog.ranges.resolve import Loss

DIRECTORY = "_warmlog"
VERSION = 1


class ExportRefused(ClientError):
    """The export cannot continue at its path; the message says why."""


@dataclass(frozen=True)
class ExportedFile:
    """One Parquet file: its path relative to the export's, and what it holds."""

    path: str
    records: int
    size_bytes: int


class Exported(NamedTuple):
    """What one task has copied."""

    files: list[ExportedFile]
    losses: list[Loss]
    """Lost offsets that the task skipped."""


@dataclass(frozen=True)
class Commit:
    """What is copied as of this commit, and the files that it adds.

    `positions` are the first offsets that are not copied, by partition. `topic_id` is hexadecimal. `has_headers` says
    whether the files of all commits have the column; None if unknown. `epochs` are the known leader epochs of the
    partitions when the positions were planned.
    """

    topic: str
    topic_id: str
    positions: dict[int, int]
    files: tuple[ExportedFile, ...] = ()
    losses: tuple[str, ...] = ()
    has_headers: bool | None = None
    epochs: dict[int, int] = field(default_factory=dict)
    version: int = field(default=VERSION)

    def to_json(self) -> str:
        """Return the content of the commit's file."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def of_json(cls, path: Path) -> Self:
        """Read a commit from a file. ExportRefused for a malformed one."""
        try:
            document: dict[str, Any] = json.loads(path.read_text())
            if document["version"] != VERSION:
                raise ExportRefused(
                    f"{path} has version {document['version']}, expected {VERSION}: was it written by a newer warmlog?"
                )
            return cls(
                topic=document["topic"],
                topic_id=document["topic_id"],
                positions={int(partition): int(offset) for partition, offset in document["positions"].items()},
                files=tuple(ExportedFile(**each) for each in document["files"]),
                losses=tuple(document["losses"]),
                has_headers=document.get("has_headers"),
                epochs={int(partition): int(epoch) for partition, epoch in document.get("epochs", {}).items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExportRefused(f"{path} is not a commit of an export ({error!r}): restore it from a backup") from None


class Manifest:
    """The commits of one export. Only the holder of the lock may change anything."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._directory = path / DIRECTORY
        self._commits = self._directory / "commits"
        self._staging = self._directory / "staging"
        self._next_number = 0
        self.last: Commit | None = None
        """The newest commit; None before the first."""

    @contextmanager
    def locked(self) -> "Iterator[Manifest]":
        """Hold the lock, and clean up after a crash. ExportRefused if another export holds the lock."""
        self._commits.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 100).decode(errors="replace").strip()
                raise ExportRefused(f"{self.path}: another export ({holder}) is writing there: wait for it") from None
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode())
            numbers = sorted(int(path.stem) for path in self._commits.glob("*.json"))
            if numbers != list(range(len(numbers))):
                raise ExportRefused(
                    f"{self._commits}: commits are missing, there are {len(numbers)} up to {numbers[-1]}: restore them "
                    "from a backup"
                )
            self._next_number = len(numbers)
            if numbers:
                self.last = Commit.of_json(self._commit_path(numbers[-1]))
                self._move(self.last.files, self._staging / str(numbers[-1]))
            if self._staging.exists():
                shutil.rmtree(self._staging)
            yield self
        finally:
            os.close(descriptor)

    @property
    def staging(self) -> Path:
        """Where tasks write the files of the next commit."""
        return self._staging / str(self._next_number)

    def commit(self, commit: Commit) -> None:
        """Make `commit` the newest; its files are below `staging`, and on disk. Return when readers see them.

        All other staged files are removed.
        """
        staged = {(self.staging / each.path).parent for each in commit.files}
        for directory in sorted({above for each in staged for above in (each, *each.parents)} - set(self.path.parents)):
            _sync_directory(directory)
        target = self._commit_path(self._next_number)
        unfinished = target.with_suffix(".unfinished")
        with unfinished.open("w") as file:
            file.write(commit.to_json())
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            raise ExportRefused(f"{target} already exists: another export has written to {self.path}")
        unfinished.rename(target)
        _sync_directory(self._commits)
        self._move(commit.files, self.staging)
        shutil.rmtree(self._staging, ignore_errors=True)
        self.last = commit
        self._next_number += 1

    def _move(self, files: Sequence[ExportedFile], staged: Path) -> None:
        """Move files from `staged` to where readers see them, unless they are there; then all are on disk."""
        directories = set()
        for each in files:
            source, target = staged / each.path, self.path / each.path
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                source.rename(target)
            elif not target.exists():
                raise ExportRefused(f"{target} is gone, though it was committed: restore it from a backup")
            directories.add(target.parent)
        for directory in sorted(directories):
            _sync_directory(directory)
        _sync_directory(self.path)

    def _commit_path(self, number: int) -> Path:
        return self._commits / f"{number:020}.json"


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
