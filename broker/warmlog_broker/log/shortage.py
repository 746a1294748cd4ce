"""Telling a system that has run out of something from a disk that has failed."""

import errno

_SHORTAGES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def is_shortage(error: OSError) -> bool:
    """Whether space, quota, descriptors or memory ran out: what was on the disk is still there, and later may do."""
    return error.errno in _SHORTAGES
