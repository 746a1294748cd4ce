"""The warm keeper: has the end of every active index in memory before anybody looks something up there.

The warm/cold search (`index_search`) keeps the last 8 KiB of an index warm by touching them at each lookup. A log with
little traffic has few lookups, so its pages go, and the next consumer waits for the disk, up to three times. The keeper
reads those pages every few seconds, so that the kernel sees them in use.

`warm_targets` decides, in the thread that owns the logs; `keep_warm` does the reading, in any other:

- The range is read by `pread`, through a descriptor of its own that is open for as long as that takes. It waits for the
  disk without holding up anybody. An index that is not open (a clean start opens none, and OpenFiles closes what is
  idle) is therefore kept warm without being opened: no map and no descriptor stay.
- Where the index is mapped, `madvise(MADV_POPULATE_READ)` then puts the pages into the page tables (Linux 5.14;
  MADV_WILLNEED before that). They are in the page cache by now, so it takes microseconds.

What the owner does meanwhile does no harm. A map that was closed raises ValueError, and none is ever made here. A page
that a file has lost is not touched by this process: the kernel answers madvise with EFAULT, and pread reads less, where
touching it would be SIGBUS. A file that was renamed or unlinked is not found, and is looked for again the next time.
"""

import errno
import logging
import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
    """The pages that hold the last `warm_bytes` of an index whose entries take `index_bytes`."""
    first = max(0, index_bytes - warm_bytes) // page_bytes * page_bytes
    end = -(-index_bytes // page_bytes) * page_bytes
    return WarmRange(first, end - first)


@dataclass(frozen=True, slots=True)
class WarmTarget:
    """The end of one index file that is to be kept warm."""

    path: Path
    warm_bytes: int
    """How much of its end."""
    index: AbstractIndex[Any] | None = None
    """None when it is not open."""
    index_bytes: int | None = None
    """Of its entries; None when it is not open: then they fill the file."""


def warm_targets(indexes: Iterable[LazyIndex[Any]], warm_bytes: int) -> list[WarmTarget]:
    """What to keep warm of these indexes, the open ones first. Opens nothing, and leaves out what was closed.

    Entries that wait in memory are written, so that a file is not behind for longer than the keeper's interval. One
    entry more than `warm_bytes` is kept: the search also reads the one before the warm section.
    """
    open_ones, others = [], []
    for lazy in indexes:
        index = lazy.loaded
        if lazy.is_closed or (index is not None and index.is_closed):
            continue
        if index is None:
            others.append(WarmTarget(lazy.path, warm_bytes + lazy.entry_bytes))
            continue
        try:
            index.write_out()
        except OSError as error:
            logger.debug("%s: entries stay in memory: %s", index.path, error)
        if index.written_bytes:
            open_ones.append(WarmTarget(index.path, warm_bytes + index.entry_bytes, index, index.written_bytes))
    return open_ones + others


class WarmPass(NamedTuple):
    """What one round of the keeper did."""

    kept: int
    """Index files."""
    kept_bytes: int
    left_out: int
    """Index files for which `max_bytes` was not enough."""


def keep_warm(targets: Sequence[WarmTarget], max_bytes: int) -> WarmPass:
    """Reads the end of each target, in their order, until `max_bytes` are kept. For any thread; raises nothing."""
    kept = kept_bytes = 0
    for number, target in enumerate(targets):
        if kept_bytes + target.warm_bytes > max_bytes:
            return WarmPass(kept, kept_bytes, len(targets) - number)
        size_bytes = _keep(target)
        kept += size_bytes > 0
        kept_bytes += size_bytes
    return WarmPass(kept, kept_bytes, 0)


def _keep(target: WarmTarget) -> int:
    """How many bytes of the target are in memory now."""
    try:
        file = os.open(target.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0  # not created yet, or renamed or removed meanwhile
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


def populate(mapped: mmap.mmap | None, place: WarmRange) -> bool:
    """Puts the pages of a map into the page tables. False when there is no map any more, or not those pages."""
    if mapped is None:
        return False
    for advice in (MADV_POPULATE_READ, mmap.MADV_WILLNEED):
        try:
            mapped.madvise(advice, place.position, place.size_bytes)
        except OSError as error:
            if error.errno != errno.EINVAL:
                return False  # EFAULT: the file is shorter now
            continue  # a kernel that does not know the first
        except ValueError:
            return False  # closed, or a shorter map
        return True
    return False
