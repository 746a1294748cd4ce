"""Keeping brokers away from a data directory while a tool uses it, be they warmlog's or Kafka's.

Both hold the file `.lock` in the directory: warmlog by flock, Kafka (Java's FileChannel.lock) by a POSIX record lock. A
tool takes both kinds. To write into the directory it takes them for itself alone; to read one that nobody may change
meanwhile it shares them, with other readers, and needs no more than to read the file.

A process loses its record locks when it closes any descriptor of the file: contexts for one directory must not be
nested.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct

from warmlog_broker.storage.directory.data_dir import LOCK_NAME, DirectoryLocked

_FLOCK = Struct("hhqqi4x")  # type, whence, start, length, pid: Linux on 64 bits


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Nobody else uses the directory within the context. DirectoryLocked, naming the holder, when somebody does."""
    descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take(descriptor, path, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def shared_lock(path: Path) -> Iterator[None]:
    """No broker starts on the directory within the context; nothing is created. DirectoryLocked when one uses it."""
    try:
        descriptor = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield  # no broker has ever used it
        return
    try:
        _take(descriptor, path, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path, kind: int) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        fcntl.lockf(descriptor, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise DirectoryLocked(
            f"{path} is in use: process {_holder(descriptor)} holds the lock {path / LOCK_NAME}. Stop it first"
        ) from None


def _holder(descriptor: int) -> str:
    """The pid of whoever has a record lock, or the one that a warmlog broker writes into the file."""
    wanted = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
    if kind != fcntl.F_UNLCK:
        return str(pid)
    return os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
