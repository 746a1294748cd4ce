"""Copying files by the kernel: where the file system can, the copy shares its blocks with the original (reflink)."""

import errno
import os
from collections.abc import Callable

PIECE_BYTES = 64 * 1024 * 1024

_CANNOT = frozenset({errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM})
"""What copy_file_range says where it does not work: across file systems of different kinds, or in a sandbox."""


def copy_bytes(
    source: int,
    target: int,
    size_bytes: int,
    on_copied: Callable[[int], None] = lambda _count: None,
    *,
    position: int = 0,
) -> None:
    """Copies `size_bytes` bytes of one descriptor's file, from `position` on, to there in another's; syncs nothing.

    `on_copied` is told how many bytes each step has copied. OSError from either disk, and when the source is shorter.
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
