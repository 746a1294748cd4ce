"""The lock of a data directory, against other brokers and tools, warmlog's or Kafka's.

The lock file is `.lock`: warmlog locks it by flock, Kafka (Java's FileChannel.lock) by a POSIX record lock. A broker
takes the flock. A tool takes both kinds: exclusively to write into the directory, shared to read one that must not
change meanwhile, for which read permission is enough.

A process loses its record locks when it closes any descriptor of the file, so contexts for one directory must not be
nested.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct

from warmlog_broker.storage.directory.properties import DataDirectoryError
from warmlog_broker.storage.io.os_errors import is_resource_exhaustion

LOCK_NAME = ".lock"

_FLOCK = Struct("hhqqi4x")  # type, whence, start, length, pid: Linux on 64 bits


class DirectoryLocked(DataDirectoryError):
    """Another process uses the data directory."""


def lock_for_broker(path: Path) -> int:
    """A descriptor that holds the lock until it is closed; DirectoryLocked, with the holder's pid, if it is taken."""
    descriptor = _open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write_pid(descriptor)
    except BaseException as error:
        holder = _written_pid(descriptor)
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise DirectoryLocked(
                f"data directory {path} is in use by another broker: process {holder} holds the lock {path / LOCK_NAME}"
            ) from None
        raise
    return descriptor


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold the lock alone within the context. DirectoryLocked, with the holder's pid, if it is taken."""
    descriptor = _open_lock(path)
    try:
        _take(descriptor, path, fcntl.LOCK_EX)
        _write_pid(descriptor)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def shared_lock(path: Path) -> Iterator[None]:
    """Keep brokers from starting within the context; nothing is created. DirectoryLocked if one uses the directory."""
    try:
        descriptor = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield  # no broker has used it
        return
    try:
        _take(descriptor, path, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    return os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _take(descriptor: int, path: Path, kind: int) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        fcntl.lockf(descriptor, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise DirectoryLocked(
            f"{path} is in use: process {_holder(descriptor)} holds the lock {path / LOCK_NAME}. Stop it first"
        ) from None


def _holder(descriptor: int) -> str:
    """The pid of the process that has a record lock, or the one that a warmlog broker has written into the file."""
    wanted = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
    if kind != fcntl.F_UNLCK:
        return str(pid)
    return _written_pid(descriptor)


def _written_pid(descriptor: int) -> str:
    return os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"


def _write_pid(descriptor: int) -> None:
    """Write the pid that error messages of other processes name. A full disk does not stop the broker."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        if not is_resource_exhaustion(error):
            raise
