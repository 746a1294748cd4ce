"""Index files as they are at this moment, for tools that look at what a broker may be using.

Indexes are read through maps, and touching a page of a map behind the end of its file is SIGBUS: whoever does not own
an index must not map it, for its owner may cut the file at any time. So a tool copies the file into memory first
(memfd, tens of KiB once a segment is closed) and opens the copy, with the class that the broker reads it with.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from warmlog_broker.log.offset_index import OffsetIndex
from warmlog_broker.log.open_files import OpenFiles
from warmlog_broker.log.time_index import TimeIndex

_COPY_BYTES = 1024 * 1024


@contextmanager
def offset_index_copy(path: Path, base_offset: int) -> Iterator[OffsetIndex]:
    """The offset index at `path`, read-only. FileNotFoundError when there is none; nothing is created."""
    with _copy_of(path) as copy, OffsetIndex(copy, base_offset, open_files=OpenFiles(), is_writable=False) as index:
        index.path = path
        yield index


@contextmanager
def time_index_copy(path: Path, base_offset: int) -> Iterator[TimeIndex]:
    """The time index at `path`, read-only. FileNotFoundError when there is none; nothing is created."""
    with _copy_of(path) as copy, TimeIndex(copy, base_offset, open_files=OpenFiles(), is_writable=False) as index:
        index.path = path
        yield index


@contextmanager
def _copy_of(path: Path) -> Iterator[Path]:
    """A name for a copy of the file at `path`, which lasts as long as the context."""
    with open(path, "rb", buffering=0) as source, os.fdopen(os.memfd_create(path.name), "r+b", buffering=0) as copy:
        shutil.copyfileobj(source, copy, _COPY_BYTES)
        yield Path(f"/proc/self/fd/{copy.fileno()}")
