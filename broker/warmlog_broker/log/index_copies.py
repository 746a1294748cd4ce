"""Index files as they are at this moment, for tools that look at what a broker may be using.

An index that is opened read-only is read into memory as a whole (see AbstractIndex), so nothing that its owner does to
the file meanwhile is seen, or does any harm.
"""

from pathlib import Path

from warmlog_broker.log.offset_index import OffsetIndex
from warmlog_broker.log.open_files import OpenFiles
from warmlog_broker.log.time_index import TimeIndex


def offset_index_copy(path: Path, base_offset: int) -> OffsetIndex:
    """The offset index at `path`, read-only. FileNotFoundError when there is none; nothing is created."""
    return OffsetIndex(path, base_offset, open_files=OpenFiles(), is_writable=False)


def time_index_copy(path: Path, base_offset: int) -> TimeIndex:
    """The time index at `path`, read-only. FileNotFoundError when there is none; nothing is created."""
    return TimeIndex(path, base_offset, open_files=OpenFiles(), is_writable=False)
