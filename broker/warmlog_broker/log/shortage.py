"""Telling a system that has run out of something from a disk that has failed."""

import errno

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_SHORTAGES = _NO_ROOM | {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


def is_shortage(error: OSError) -> bool:
    """Whether space, quota, descriptors or memory ran out: what was on the disk is still there, and later may do."""
    return error.errno in _SHORTAGES


def is_disk_full(error: OSError) -> bool:
    """Whether it is space on the disk, or the quota of it, that ran out."""
    return error.errno in _NO_ROOM
