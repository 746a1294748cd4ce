"""Descriptors and maps of the storage engine: who owns them, and how many may be open at once.

An `OpenFile` owns one descriptor and closes it when the last reference to it goes (CPython counts references, so that
is at once). Whoever still needs the file simply holds on to the `OpenFile`: a slice of a log that is being sent, or a
flush that runs in a thread, is safe from eviction and from the deletion of the file.

`OpenFiles` bounds what one process keeps open: a least-recently-used list of the resources that hold descriptors. The
one that went unused for longest is told to let go when the bound is passed, except while it has unflushed writes: a
descriptor closed before its fsync could lose the news of a failed write. When everything has unflushed writes the
bound is passed, and met again as soon as a flush is over. Those that were found with unflushed writes stand in a list
of their own, of which each eviction asks a few again: thousands of them cost an eviction no more than a few do.

Resources of several logs, used by several threads, may share one `OpenFiles`: letting go means dropping a reference,
so that a thread in the middle of a read keeps what it reads.
"""

import logging
import os
import sys
import threading
from collections import OrderedDict
from typing import Protocol

from warmlog_protocol.errors import WarmlogError

DEFAULT_LIMIT = 8192
"""Descriptors and maps; a broker sets it from its RLIMIT_NOFILE, of which sockets need a share."""
BUSY_ASKED = 4
"""An eviction asks the busy ones until it was told so often that one still is."""

_log = logging.getLogger(__name__)


class ClosedFile(WarmlogError):
    """A log file or an index was used after it had been closed or deleted: a bug of ours."""


class OpenFile:
    """A descriptor that is closed when nobody holds this object any more."""

    __slots__ = ("__weakref__", "cut_at_bytes", "fd", "path")

    def __init__(self, path: str, flags: int) -> None:
        """Opens `path` with os.open's `flags`; OSError as os.open raises it. New files get mode 0o644."""
        self.fd = -1
        self.path = path
        self.cut_at_bytes = sys.maxsize
        """Where the file was cut since it was opened: what lies behind that is not what it was."""
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def fileno(self) -> int:
        return self.fd

    def __del__(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            try:
                os.close(fd)
            except OSError as error:  # all that is promised of it was synced before, and the descriptor is gone
                _log.warning("%s: closing it failed: %s", self.path, error)

    def __repr__(self) -> str:
        return f"OpenFile({self.path!r}, fd={self.fd})"


class Evictable(Protocol):
    """Something that holds descriptors or maps and can open them again on demand."""

    def has_unflushed_writes(self) -> bool:
        """Whether it must not let go now."""
        ...

    def let_go(self) -> None:
        """Drops its references to open files and maps; must not fail and must not call OpenFiles."""
        ...


class OpenFiles:
    """A bound on the descriptors and maps that are open, kept by evicting what went unused for longest."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        if limit < 1:
            raise ValueError(f"limit {limit}: at least one file must be allowed to be open")
        self.limit = limit
        self.open_count = 0
        self._lock = threading.Lock()
        self._resources: OrderedDict[Evictable, int] = OrderedDict()
        """What may let go, as far as is known, and how many descriptors each holds; the latest used last."""
        self._busy: OrderedDict[Evictable, int] = OrderedDict()
        """What had unflushed writes when it was asked to let go."""

    def add(self, resource: Evictable, count: int) -> None:
        """Notes that `resource` now holds `count` descriptors, and was used just now. A map counts as one.

        Evicts others while more than `limit` are open. Adding a resource again replaces its count.
        """
        with self._lock:
            self.open_count += count - self._forget(resource)
            if self.open_count > self.limit:
                self._evict()
            self._resources[resource] = count

    def touch(self, resource: Evictable) -> None:
        """Notes that `resource` was used; nothing happens when it is not open. One dictionary operation, no lock."""
        try:
            self._resources.move_to_end(resource)
        except KeyError:
            return  # not open, or busy: then it is not let go of anyway

    def discard(self, resource: Evictable) -> None:
        """Forgets `resource`, which has let go by itself; harmless when it was not there."""
        with self._lock:
            self.open_count -= self._forget(resource)

    def close_all(self) -> None:
        """Has all let go, also of what has unflushed writes: for logs that are not used any more."""
        with self._lock:
            for resource in (*self._resources, *self._busy):
                resource.let_go()
            self._resources.clear()
            self._busy.clear()
            self.open_count = 0

    def _forget(self, resource: Evictable) -> int:
        """How many descriptors the resource held."""
        return self._resources.pop(resource, 0) or self._busy.pop(resource, 0)

    def _evict(self) -> None:
        """Lets go of what went unused for longest until the bound is met, or all that is left is busy."""
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
