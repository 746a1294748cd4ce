"""Descriptors and maps of the storage engine: ownership, and a bound on how many are open.

An `OpenFile` owns one descriptor and closes it when the last reference to it goes. A user of the file holds the
`OpenFile`: a slice of a log that is being sent, or a flush in a thread, is safe from eviction and deletion.

`OpenFiles` is a least-recently-used list of the resources that hold descriptors. Past the bound it makes the least
recently used one let go, except while that has unflushed writes: a descriptor closed before its fsync could lose the
report of a failed write. If all have unflushed writes the bound is exceeded until a flush ends. Those found with
unflushed writes are in a list of their own, and each eviction checks a few of them, so thousands cost no more than a
few.

Several threads and logs may share one `OpenFiles`: letting go means dropping a reference, so a thread in the middle of
a read keeps its file.

A `ManagedFile`, one of a segment's files, is opened when it is first needed and registered with OpenFiles, which may
close it at any time that it is not needed. Using a closed one raises ClosedFile, because its descriptor may belong to
another file by then.
"""

import errno
import logging
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from warmlog_broker.storage.io.os_errors import is_read_only
from warmlog_protocol.errors import WarmlogError

DEFAULT_LIMIT = 8192
"""Descriptors and maps. A broker derives it from its RLIMIT_NOFILE, of which sockets need a share."""
BUSY_ASKED = 4
"""An eviction checks busy resources until this many were still busy."""

_log = logging.getLogger(__name__)


class ClosedFile(WarmlogError):
    """A log file or an index was used after it was closed or deleted: a bug of warmlog."""


class OpenFile:
    """A descriptor that is closed with the last reference to this object. Keep a reference while a call uses `fd`."""

    __slots__ = ("__weakref__", "cut_at_bytes", "fd", "path")

    def __init__(self, path: str, flags: int) -> None:
        """Open `path` with os.open's `flags` and errors. New files get mode 0o644."""
        self.fd = -1
        self.path = path
        self.cut_at_bytes = sys.maxsize
        """Where the file was cut since it was opened: the bytes after that are not the original ones."""
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def fileno(self) -> int:
        return self.fd

    @property
    def size_bytes(self) -> int:
        return os.fstat(self.fd).st_size

    def __del__(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            try:
                os.close(fd)
            except OSError as error:  # the descriptor is gone, and all acknowledged data was synced before
                _log.warning("%s: closing it failed: %s", self.path, error)

    def __repr__(self) -> str:
        return f"OpenFile({self.path!r}, fd={self.fd})"


class Evictable(Protocol):
    """Something that holds descriptors or maps and can reopen them on demand."""

    def has_unflushed_writes(self) -> bool:
        """Whether it must not let go now."""
        ...

    def let_go(self) -> None:
        """Drop the references to open files and maps; must not fail and must not call OpenFiles."""
        ...


class OpenFiles:
    """The open descriptors and maps, of which the least recently used are closed above a limit."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        if limit < 1:
            raise ValueError(f"limit {limit}: at least one file must be allowed to be open")
        self.limit = limit
        self.open_count = 0
        self._lock = threading.Lock()
        self._resources: OrderedDict[Evictable, int] = OrderedDict()
        """What can let go, as far as is known, and its number of descriptors; most recently used last."""
        self._busy: OrderedDict[Evictable, int] = OrderedDict()
        """What had unflushed writes when it should have let go."""

    def add(self, resource: Evictable, count: int) -> None:
        """Note that `resource` now holds `count` descriptors and maps, and was used just now.

        Evicts others while more than `limit` are open. Adding a resource again replaces its count.
        """
        with self._lock:
            self.open_count += count - self._forget(resource)
            if self.open_count > self.limit:
                self._evict()
            self._resources[resource] = count

    def touch(self, resource: Evictable) -> None:
        """Note that `resource` was used; no effect if it is not open. One dictionary operation, no lock."""
        try:
            self._resources.move_to_end(resource)
        except KeyError:
            return  # not open, or busy and safe from eviction

    def discard(self, resource: Evictable) -> None:
        with self._lock:
            self.open_count -= self._forget(resource)

    def close_all(self) -> None:
        """Make all let go, those with unflushed writes too: for logs that are not used any more."""
        with self._lock:
            for resource in (*self._resources, *self._busy):
                resource.let_go()
            self._resources.clear()
            self._busy.clear()
            self.open_count = 0

    def _forget(self, resource: Evictable) -> int:
        return self._resources.pop(resource, 0) or self._busy.pop(resource, 0)

    def _evict(self) -> None:
        still_busy = 0
        while self._busy and still_busy < BUSY_ASKED:
            resource, count = self._busy.popitem(last=False)
            is_busy = resource.has_unflushed_writes()
            (self._busy if is_busy else self._resources)[resource] = count
            still_busy += is_busy
        while self.open_count > self.limit and self._resources:
            resource, count = self._resources.popitem(last=False)
            if resource.has_unflushed_writes():
                self._busy[resource] = count
                continue
            self.open_count -= count
            resource.let_go()


class NamedFile(ABC):
    """A file by its `path`, kept as text until it is used: building Path objects took a third of a broker's start."""

    __slots__ = ("_path",)

    def __init__(self, path: Path | str) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        path = self._path
        if isinstance(path, str):
            path = self._path = Path(path)
        return path

    def rename_to(self, path: Path) -> None:
        """Rename the file, if it exists."""
        with suppress(FileNotFoundError):
            self.path.replace(path)
        self.moved_to(path)

    def is_there(self) -> bool:
        """Return whether the file exists."""
        return os.path.exists(self._path)  # noqa: PTH110 - takes a third of the time of Path.exists

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

    @abstractmethod
    def close_handles(self) -> None:
        """Close without changing the file; closing again is harmless. Any later use raises ClosedFile."""


class ManagedFile(NamedFile):
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

    def close_handles(self) -> None:
        self.is_closed = True
        self.let_go()
        self._open_files.discard(self)

    def _opened(self, more_flags: int = 0) -> OpenFile:
        self._check_open()
        try:
            file = OpenFile(str(self._path), (os.O_RDWR if self.is_writable else os.O_RDONLY) | more_flags)
        except OSError as error:
            if more_flags or not is_read_only(error):
                raise
            file = OpenFile(str(self._path), os.O_RDONLY)  # it can still be read
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
