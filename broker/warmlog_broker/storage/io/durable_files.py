"""Write and replace files durably: no half-written file after a crash, no short write that goes unnoticed."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from warmlog_broker.storage.io.os_errors import SyncNotBegun, is_out_of_resources, is_without_room


def write_all(descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
    """Write `data` at `position`, in as many steps as it takes. OSError if the disk refuses; a part may be written."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        if not written:
            raise OSError(errno.EIO, f"the disk accepts none of {len(view)} bytes at position {position}")
        view = view[written:]
        position += written


@contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Name `path` in an OSError because of a lack of room: the calls that write know no path."""
    try:
        yield
    except OSError as error:
        if is_without_room(error) and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def open_to_sync(path: Path | str, more_flags: int = 0) -> Iterator[int]:
    """Open `path` for a sync within the context. SyncNotBegun if out of descriptors or memory, OSError otherwise."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | more_flags)
    except OSError as error:
        if is_out_of_resources(error):
            raise SyncNotBegun(error.errno, error.strerror, str(path)) from error
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(directory: Path | str) -> None:
    """Make the names in `directory` durable: files that were created, renamed or removed before this call."""
    with open_to_sync(directory, os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


def make_directories(directory: Path) -> None:
    """Create `directory` and its missing parents durably: without their names a synced file is lost."""
    if directory.is_dir():
        return
    make_directories(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def write_file(path: Path, content: bytes, *, sync: bool, mode: int = 0o644) -> None:
    """Write the file at `path`, with `mode` if it is new; OSError may leave a part of `content` there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        write_all(descriptor, content, 0)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replace the content of `path`, durably; after a crash the file has the old content or the new one."""
    stage_file(path, content, sync=True, mode=mode)
    commit_file(path)
    sync_directory(path.parent)


def stage_file(path: Path, content: bytes, *, sync: bool, mode: int = 0o644) -> None:
    """Write `content` beside the file at `path`, for `commit_file`. Without `sync` the caller syncs it in between."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        write_file(temporary, content, sync=sync, mode=mode)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def commit_file(path: Path) -> None:
    """Rename what was staged to `path`; durable once the directory is synced."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
