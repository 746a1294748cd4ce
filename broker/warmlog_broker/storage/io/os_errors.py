"""Classify errors of the operating system: the only place that distinguishes errnos.

===============================  =======================  ===========================================================
errno                            meaning                  the partition; the client's error
===============================  =======================  ===========================================================
ENOSPC, EDQUOT, EFBIG            no room or quota         served as before; DiskFull
EMFILE, ENFILE, ENOMEM, ENOBUFS  no descriptor or memory  served as before; OutOfResources (MemoryError likewise)
EROFS                            disk is read-only        read as before, refuses records; StorageError (DiskReadOnly)
any other: EIO, ENODEV, EACCES … disk has failed          offline if it was a write; StorageError
===============================  =======================  ===========================================================

EINTR is missing because Python retries its calls (PEP 475) and `flush_plan` retries `syncfs`. A sync that fails ends
the log whatever the errno, because the kernel then marks the pages as clean. Only a sync that never began, because its
file could not be opened, is retried (SyncNotBegun).
"""

import errno

from warmlog_protocol.errors import DiskFull, OutOfResources, StorageError

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_EXHAUSTION = _NO_ROOM | _NO_RESOURCES


class DiskReadOnly(StorageError):
    """The file system is read-only, usually because the system made it so after an error. It can be read."""


class SyncNotBegun(OSError):
    """The sync never started (out of descriptors or memory). Nothing is lost; it is safe to retry."""


def is_resource_exhaustion(error: OSError) -> bool:
    """Whether space, quota, descriptors or memory ran out: the data on disk is intact, and a retry may succeed."""
    return error.errno in _EXHAUSTION


def is_out_of_resources(error: OSError) -> bool:
    return error.errno in _NO_RESOURCES


def is_read_only(error: OSError) -> bool:
    return error.errno == errno.EROFS


def is_without_room(error: OSError) -> bool:
    return error.errno in _NO_ROOM


def storage_error(message: str, error: OSError | MemoryError) -> StorageError:
    """The error to report for `error`: OutOfResources, DiskReadOnly, DiskFull or StorageError."""
    if isinstance(error, MemoryError) or is_out_of_resources(error):
        return OutOfResources(message)
    if is_read_only(error):
        return DiskReadOnly(message)
    return DiskFull(message) if is_without_room(error) else StorageError(message)


def out_of_memory() -> OSError:
    return OSError(errno.ENOMEM, "out of memory")
