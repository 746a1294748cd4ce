"""What every file of a segment has in common: it is opened on demand, counted, renamed, deleted.

The file is opened when it is first needed and registered with OpenFiles, which may close it again at any time that it
is not needed. Once the object is closed, any use raises ClosedFile, for the descriptor might be another file's by then.

A file's path that is text until somebody asks for it.

A start names four files for each segment and looks at one; making Path objects of the others took a third of its time.
"""

import errno
import os
from abc import ABC, abstractmethod
from pathlib import Path

from warmlog_broker.storage.io.open_files import ClosedFile, OpenFile, OpenFiles
from warmlog_broker.storage.io.os_errors import is_read_only


class HasPath:
    """Has a `path`, given as text or as a Path."""

    __slots__ = ("_path",)

    def __init__(self, path: Path | str) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        """Where the file is, or is to be."""
        path = self._path
        if isinstance(path, str):
            path = self._path = Path(path)
        return path


class ManagedFile(HasPath, ABC):
    """A file that one thread uses, and that OpenFiles may make let go at any time."""

    __slots__ = ("_file", "_is_closed", "_open_files", "_synced_writes", "_writes", "is_writable")

    def __init__(self, path: Path | str, open_files: OpenFiles, *, is_writable: bool) -> None:
        """Opens nothing."""
        super().__init__(path)
        self.is_writable = is_writable
        self._open_files = open_files
        self._file: OpenFile | None = None
        self._is_closed = False
        self._writes = self._synced_writes = 0

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def writes(self) -> int:
        """Counts changes of the file: what `mark_synced` takes."""
        return self._writes

    def mark_synced(self, writes: int) -> None:
        """Notes that a sync, which began when `writes` was read, has succeeded."""
        if writes > self._synced_writes:
            self._synced_writes = writes

    @property
    def has_unsynced_writes(self) -> bool:
        """Whether the file was changed since the last sync that was marked."""
        return self._writes != self._synced_writes

    def open_file(self) -> OpenFile:
        """The open file: whoever holds it may go on using it, whatever happens to this object."""
        file = self._file
        if file is None:
            return self._opened()
        self._open_files.touch(self)
        return file

    @abstractmethod
    def has_unflushed_writes(self) -> bool:
        """Whether its descriptor must stay open now."""

    @abstractmethod
    def let_go(self) -> None:
        """Drops the references to what is open; it is opened again when it is needed."""

    @abstractmethod
    def close(self) -> None:
        """Puts the file into its final shape and closes it."""

    def rename_to(self, path: Path) -> None:
        """Moves the file; the directory is not synced."""
        self.path.replace(path)
        self._path = path

    def moved_to(self, path: Path) -> None:
        """The file has been moved along with its directory."""
        self._path = path

    def delete(self) -> bool:
        """Closes and unlinks the file; False when it was not there. Who holds it open can go on reading."""
        self.close_handles()
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        return True

    def close_handles(self) -> None:
        """Closes without touching the file; harmless when it was done before. Any use after that raises ClosedFile."""
        self._is_closed = True
        self.let_go()
        self._open_files.discard(self)

    def _opened(self, more_flags: int = 0) -> OpenFile:
        self._check_open()
        try:
            file = OpenFile(str(self.path), (os.O_RDWR if self.is_writable else os.O_RDONLY) | more_flags)
        except OSError as error:
            if more_flags or not is_read_only(error):
                raise
            file = OpenFile(str(self.path), os.O_RDONLY)  # what is there can be read all the same
        self._file = file
        self._open_files.add(self, self._open_count())
        return file

    def _open_count(self) -> int:
        """How many descriptors and maps it holds."""
        return 1

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedFile(f"{self.path} was closed or deleted")

    def _check_writable(self) -> None:
        self._check_open()
        if not self.is_writable:
            raise PermissionError(errno.EACCES, "opened for reading only", str(self.path))
