"""The warm keeper: keeps the end of every active index in memory.

The warm/cold search (`search`) keeps the last 8 KiB of an index warm by touching them at each lookup. A log with little
traffic has few lookups, so its pages are evicted, and the next consumer waits for the disk, up to three times. The
keeper reads those pages every few seconds.

`warm_targets` selects the files in the thread that owns the logs; `keep_warm` reads them in any other thread:

- The range is read by `pread` through a descriptor of its own. An index that is not open (a clean start opens none, and
  OpenFiles closes idle ones) stays closed: no map and no descriptor remain.
- If the index is mapped, `madvise(MADV_POPULATE_READ)` then adds the pages to the page tables (Linux 5.14;
  MADV_WILLNEED before that). They are in the page cache by now, so it takes microseconds.

The owner may change an index meanwhile. A closed map raises ValueError, and none is created here. For a page that the
file has lost, madvise returns EFAULT and pread returns less; touching it would be SIGBUS. A file that was renamed or
unlinked is not found, and is looked for again the next time.
"""

import errno
import logging
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from warmlog_broker.storage.index.abstract_index import AbstractIndex
from warmlog_broker.storage.index.lazy_index import LazyIndex

logger = logging.getLogger(__name__)

MADV_POPULATE_READ: int = getattr(mmap, "MADV_POPULATE_READ", 22)
PAGE_BYTES = mmap.PAGESIZE


class WarmRange(NamedTuple):
    """Bytes of a file: whole pages from `position` on."""

    position: int
    size_bytes: int


def warm_range(index_bytes: int, warm_bytes: int, page_bytes: int = PAGE_BYTES) -> WarmRange:
    """The pages of the last `warm_bytes` of an index whose entries take `index_bytes`."""
    first = max(0, index_bytes - warm_bytes) // page_bytes * page_bytes
    end = -(-index_bytes // page_bytes) * page_bytes
    return WarmRange(first, end - first)


class WarmTarget(Struct, frozen=True):
    """The end of an index file that is to be kept warm."""

    path: Path
    warm_bytes: int
    """Size of the end."""
    index: AbstractIndex[Any] | None = None
    """None if it is not open."""
    index_bytes: int | None = None
    """Size of its entries; None if it is not open: they then fill the file."""


def warm_targets(indexes: Iterable[LazyIndex[Any]], warm_bytes: int) -> list[WarmTarget]:
    """Select what to keep warm of these indexes, the open ones first. Opens nothing, and skips closed ones.

    Entries in memory are written, so that a file lacks at most the entries of one interval of the keeper. One entry
    more than `warm_bytes` is kept, because the search also reads the one before the warm section.
    """
    open_ones, others = [], []
    for lazy in indexes:
        index = lazy.loaded
        if lazy.is_closed or (index is not None and index.is_closed):
            continue
        if index is None:
            others.append(WarmTarget(lazy.path, warm_bytes + lazy.index_class.entry_bytes))
            continue
        try:
            index.write_out()
        except OSError as error:
            logger.debug("%s: entries stay in memory: %s", index.path, error)
        if index.written_bytes:
            open_ones.append(WarmTarget(index.path, warm_bytes + index.entry_bytes, index, index.written_bytes))
    return open_ones + others


class WarmPass(NamedTuple):
    """The result of one round of the keeper."""

    kept: int
    """Number of index files."""
    kept_bytes: int
    left_out: int
    """Number of index files for which `max_bytes` was not enough."""


def keep_warm(targets: Sequence[WarmTarget], max_bytes: int) -> WarmPass:
    """Read the end of each target, in order, up to `max_bytes` in total. For any thread; raises nothing."""
    kept = kept_bytes = 0
    for number, target in enumerate(targets):
        if kept_bytes + target.warm_bytes > max_bytes:
            return WarmPass(kept, kept_bytes, len(targets) - number)
        size_bytes = _keep(target)
        kept += size_bytes > 0
        kept_bytes += size_bytes
    return WarmPass(kept, kept_bytes, 0)


def _keep(target: WarmTarget) -> int:
    """Read the target; returns how many bytes of it are in memory now."""
    try:
        file = os.open(target.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0  # not created yet, renamed or removed
    try:
        index_bytes = os.fstat(file).st_size if target.index_bytes is None else target.index_bytes
        position, size_bytes = warm_range(index_bytes, target.warm_bytes)
        read_bytes = len(os.pread(file, size_bytes, position))
    except OSError as error:
        logger.warning("%s cannot be kept in memory: %s", target.path, error)
        return 0
    finally:
        os.close(file)
    if target.index is not None and read_bytes:
        populate(target.index.mapped, WarmRange(position, size_bytes))
    return read_bytes


def populate(mapped: mmap.mmap | None, pages: WarmRange) -> bool:
    """Add the pages of a map to the page tables. False if there is no map any more, or not those pages."""
    if mapped is None:
        return False
    for advice in (MADV_POPULATE_READ, mmap.MADV_WILLNEED):
        try:
            mapped.madvise(advice, pages.position, pages.size_bytes)
        except OSError as error:
            if error.errno != errno.EINVAL:
                return False  # EFAULT: the file is shorter now
            continue  # a kernel that does not know the first
        except ValueError:
            return False  # closed, or a shorter map
        return True
    return False
