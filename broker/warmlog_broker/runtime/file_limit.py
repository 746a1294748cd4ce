"""The limit of descriptors, shared between connections and files of the storage engine."""

import logging
import resource
from typing import NamedTuple

RESERVED = 128
"""Descriptors for everything else: libraries, the event loop, checkpoints, directories that are being synced."""
LEAST_OPEN_FILES = 64

_log = logging.getLogger(__name__)


class FileShares(NamedTuple):
    """The number of descriptors that each may use."""

    connections: int
    open_files: int


def share_files(limit: int, *, connections: int, open_files: int) -> FileShares:
    """Divide `limit` descriptors, in proportion if they are too few for both."""
    available = max(limit - RESERVED, 2 * LEAST_OPEN_FILES)
    if connections + open_files <= available:
        return FileShares(connections, open_files)
    open_share = max(LEAST_OPEN_FILES, available * open_files // (connections + open_files))
    return FileShares(max(1, min(connections, available - open_share)), open_share)


def raise_file_limit(wanted: int) -> int:
    """Raise the process's soft limit of descriptors to `wanted` or the hard limit; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError) as error:
        _log.warning("the limit of open files stays at %d: %s", soft, error)
        return soft
    return allowed
