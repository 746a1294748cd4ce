"""Small text files that are replaced as a whole, with the bytes that Kafka writes.

Offsets of a data directory's partitions (`recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`,
`replication-offset-checkpoint`), a line for each::

    0                        version
    2                        lines that follow
    flights 0 14000          topic, partition, offset
    flights 1 13500

An empty file stands for no lines. Leader epochs of one partition (`leader-epoch-checkpoint`) have the same head and
lines `epoch start-offset`; that file is never empty. `partition.metadata` holds the topic's id as URL-safe base64
without padding::

    version: 0
    topic_id: Efo9lYIRT3GmJrmskxPrXQ

Writing is atomic and durable: a temporary file beside it, fsync, rename, fsync of the directory. What cannot be read
is a StorageError that names the file, the line, what was expected and what was found; who asked decides whether to
rebuild the content.

Writing all of something: a system call may write less than it was asked to.
"""

import errno
import logging
import os
from pathlib import Path

from warmlog_broker.storage.io.os_errors import SyncNotBegun, is_out_of_resources

logger = logging.getLogger(__name__)


def write_all(descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
    """Writes `data` at `position`, in as many steps as it takes. OSError when the disk refuses; some may be written."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        if not written:
            raise OSError(errno.EIO, f"the disk takes none of {len(view)} bytes at position {position}")
        view = view[written:]
        position += written


def open_to_sync(path: Path | str, more_flags: int = 0) -> int:
    """A descriptor of `path` for a sync. SyncNotBegun when there is none to be had now, OSError for another reason."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | more_flags)
    except OSError as error:
        if is_out_of_resources(error):
            raise SyncNotBegun(error.errno, error.strerror, str(path)) from error
        raise


def sync_directory(directory: Path | str) -> None:
    """Makes the names in `directory` durable: files created, renamed and removed before this call."""
    descriptor = open_to_sync(directory, os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(directory: Path) -> None:
    """Makes `directory` and the ones above it that are missing, durably: a synced file is lost without their names."""
    if directory.is_dir():
        return
    make_directories(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def write_file(path: Path, content: bytes, *, sync: bool) -> None:
    """Writes `content` into the file at `path`, which may be half done when OSError is raised."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(descriptor, content, 0)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Makes `content` what `path` holds, durably; after a crash the file holds the old content or the new one."""
    stage_file(path, content, sync=True)
    place_file(path)
    sync_directory(path.parent)


def stage_file(path: Path, content: bytes, *, sync: bool) -> None:
    """Writes `content` beside the file at `path`, for `place_file`. Without `sync` the caller sees to it in between."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        write_file(temporary, content, sync=sync)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def place_file(path: Path) -> None:
    """Makes what was staged, and synced, the content of `path`; durable once the directory is synced."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
