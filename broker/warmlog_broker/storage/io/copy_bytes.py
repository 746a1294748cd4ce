"""Copy files in the kernel. If the file system can, the copy shares its blocks with the original (reflink)."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

PIECE_BYTES = 64 * 1024 * 1024

_CANNOT = frozenset({errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM})
"""Errors of copy_file_range where it does not work: across kinds of file systems, or in a sandbox."""


def copy_bytes(
    source: int,
    target: int,
    size_bytes: int,
    on_copied: Callable[[int], None] = lambda _count: None,
    *,
    position: int = 0,
) -> None:
    """Copy `size_bytes` bytes from one descriptor's file to the same `position` in another's; nothing is synced.

    `on_copied` gets the size of each piece. OSError from either disk, and if the source is shorter.
    """
    copied, by_range = 0, True
    os.lseek(target, position, os.SEEK_SET)
    while copied < size_bytes:
        wanted = min(PIECE_BYTES, size_bytes - copied)
        try:
            count = (
                os.copy_file_range(source, target, wanted, offset_src=position + copied)
                if by_range
                else os.sendfile(target, source, position + copied, wanted)
            )
        except OSError as error:
            if not by_range or error.errno not in _CANNOT:
                raise
            by_range = False
            continue
        if not count:
            raise OSError(errno.EIO, f"{size_bytes} bytes to copy, the file ends after {copied}")
        copied += count
        on_copied(count)


def copy_file(
    source: int, target: Path, found: os.stat_result, on_copied: Callable[[int], None] = lambda _count: None
) -> None:
    """Copy a file, as it was `found`, to a new one at `target`: durable except its name."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, found.st_mode & 0o777)
    try:
        copy_bytes(source, descriptor, found.st_size, on_copied)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
