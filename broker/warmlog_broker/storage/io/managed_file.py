"""Common parts of a segment's files: open on demand, count changes, rename, delete.

A file is opened when it is first needed and registered with OpenFiles, which may close it at any time that it is not
needed. Using a closed object raises ClosedFile, because its descriptor may belong to another file by then.
"""

import errno
import os
from abc import ABC, abstractmethod
from pathlib import Path

from warmlog_broker.storage.io.open_files import ClosedFile, OpenFile, OpenFiles
from warmlog_broker.storage.io.os_errors import is_read_only


class HasPath:
    """Has a `path`, kept as text until it is used: building Path objects took a third of a broker's start."""

    __slots__ = ("_path",)

    def __init__(self, path: Path | str) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        path = self._path
        if isinstance(path, str):
            path = self._path = Path(path)
        return path


class ManagedFile(HasPath, ABC):
    """A file that one thread uses and that OpenFiles may close at any time."""

    __slots__ = ("_file", "_open_files", "_synced_writes", "is_closed", "is_writable", "writes")

    def __init__(self, path: Path | str, open_files: OpenFiles, *, is_writable: bool) -> None:
        super().__init__(path)
        self.is_writable = is_writable
        self._open_files = open_files
        self._file: OpenFile | None = None
        self.is_closed = False
        self.writes = 0
        """Number of changes of the file: what `mark_synced` takes."""
        self._synced_writes = 0

    def mark_synced(self, writes: int) -> None:
        """Note that a sync, which began when `writes` was read, has succeeded."""
        if writes > self._synced_writes:
            self._synced_writes = writes

    @property
    def has_unsynced_writes(self) -> bool:
        """Whether the file has changed since the last sync that was marked."""
        return self.writes != self._synced_writes

    def open_file(self) -> OpenFile:
        """The open file. Its holder can go on using it, whatever happens to this object."""
        file = self._file
        if file is None:
            return self._opened()
        self._open_files.touch(self)
        return file

    def has_unflushed_writes(self) -> bool:
        """Whether the descriptor must stay open now. False for indexes: they can be rebuilt."""
        return False

    def let_go(self) -> None:
        """Drop the references to what is open; it is reopened on demand."""
        self._file = None

    @abstractmethod
    def close(self) -> None:
        """Give the file its final size and close it."""

    def rename_to(self, path: Path) -> None:
        self.path.replace(path)
        self._path = path

    def moved_to(self, path: Path) -> None:
        """Note that the file has been moved along with its directory."""
        self._path = path

    def delete(self) -> bool:
        """Close and unlink the file; False if it did not exist. Holders of the open file can still read it."""
        self.close_handles()
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        return True

    def close_handles(self) -> None:
        """Close without changing the file; closing again is harmless. Any later use raises ClosedFile."""
        self.is_closed = True
        self.let_go()
        self._open_files.discard(self)

    def _opened(self, more_flags: int = 0) -> OpenFile:
        self._check_open()
        try:
            file = OpenFile(str(self.path), (os.O_RDWR if self.is_writable else os.O_RDONLY) | more_flags)
        except OSError as error:
            if more_flags or not is_read_only(error):
                raise
            file = OpenFile(str(self.path), os.O_RDONLY)  # it can still be read
        self._file = file
        self._open_files.add(self, self._open_count())
        return file

    def _open_count(self) -> int:
        return 1

    def _check_open(self) -> None:
        if self.is_closed:
            raise ClosedFile(f"{self.path} was closed or deleted")

    def _check_writable(self) -> None:
        self._check_open()
        if not self.is_writable:
            raise PermissionError(errno.EACCES, "opened for reading only", str(self.path))
