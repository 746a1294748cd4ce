"""What an error of the operating system means: the one place where errnos are told apart.

===============================  =======================  ===========================================================
errno                            means                    the partition; what the client hears
===============================  =======================  ===========================================================
ENOSPC, EDQUOT, EFBIG            no room, or no right to  served as before; DiskFull
EMFILE, ENFILE, ENOMEM, ENOBUFS  no descriptor or memory  served as before; OutOfResources (MemoryError likewise)
EROFS                            the disk takes no write  read as before, takes no records; StorageError (DiskReadOnly)
any other: EIO, ENODEV, EACCES … the disk has failed      offline, where something was to be written; StorageError
===============================  =======================  ===========================================================

EINTR is not among them: Python tries its calls again (PEP 475), and the one call of ours that is not Python's, `syncfs`
(disk_flush), does so itself. A sync that fails ends the log whatever the errno is, as the kernel takes the pages for
clean after it; only one that was never begun, as its file could not be opened, is tried again (SyncNotBegun).
"""

import errno

from warmlog_protocol.errors import DiskFull, OutOfResources, StorageError

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_SHORTAGES = _NO_ROOM | _NO_RESOURCES


class DiskReadOnly(StorageError):
    """The file system is read-only, mostly because the system has made it so after an error. It can be read."""


class SyncNotBegun(OSError):
    """For want of descriptors or memory nothing was synced, and nothing is lost: it can be tried again."""


def is_shortage(error: OSError) -> bool:
    """Whether space, quota, descriptors or memory ran out: what was on the disk is still there, and later may do."""
    return error.errno in _SHORTAGES


def is_out_of_resources(error: OSError) -> bool:
    """Whether it is descriptors or memory that ran out."""
    return error.errno in _NO_RESOURCES


def is_read_only(error: OSError) -> bool:
    """Whether the file system takes no writes, and so has kept what it holds."""
    return error.errno == errno.EROFS


def storage_error(message: str, error: OSError | MemoryError) -> StorageError:
    """The error to answer with, of the class that `error` asks for."""
    if isinstance(error, MemoryError) or is_out_of_resources(error):
        return OutOfResources(message)
    if is_read_only(error):
        return DiskReadOnly(message)
    return DiskFull(message) if error.errno in _NO_ROOM else StorageError(message)


def out_of_memory() -> OSError:
    """What the system says, for a MemoryError of Python's."""
    return OSError(errno.ENOMEM, "out of memory")
