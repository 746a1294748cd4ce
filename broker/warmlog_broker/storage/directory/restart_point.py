"""The file `restart-point` in a partition's directory: from where on a start after a crash checks the active segment.

What the log had below `offset` is on disk once the recovery point is at or above that: batches, the entries of the
indexes, and the state of the producers, which is in `<offset>.snapshot`. So a start reads none of it before it serves;
a check in the background does (`recovery`).

Text, replaced as a whole::

    version: 0
    offset: 4711
    segment: 4000                     base offset of the active segment
    position: 81920                   of `offset` in its .log
    index_entries: 19                 in its .index
    timeindex_entries: 12             in its .timeindex
    index_position: 79872             that the last entry of .index has; 0 without one
    largest_timestamp: 1700000000000  up to `offset`; -1 for none
    offset_of_largest: 4690           last offset of the batch that has it
    crc: 3735928559                   CRC-32C of the lines before

A missing, damaged or stale file, or one whose snapshot is gone, costs time: the segment is checked from its beginning.
"""

import logging
from pathlib import Path
from typing import NamedTuple

from warmlog_protocol.codec.crc32c import crc32c

RESTART_POINT_NAME = "restart-point"

_VERSION = "0"

logger = logging.getLogger(__name__)


class RestartPoint(NamedTuple):
    offset: int
    segment: int
    position: int
    index_entries: int
    timeindex_entries: int
    index_position: int
    largest_timestamp: int
    offset_of_largest: int


def pack_restart_point(point: RestartPoint) -> bytes:
    lines = {"version": _VERSION, **point._asdict()}
    text = "".join(f"{key}: {value}\n" for key, value in lines.items()).encode()
    return text + b"crc: %d\n" % crc32c(text)


def read_restart_point(directory: Path) -> RestartPoint | None:
    """Return the content; None for a missing or damaged file."""
    path = directory / RESTART_POINT_NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    text, _, crc = content.rpartition(b"crc: ")
    try:
        fields = dict(line.split(": ", 1) for line in text.decode().splitlines())
        if int(crc) != crc32c(text) or fields.pop("version") != _VERSION or list(fields) != list(RestartPoint._fields):
            raise ValueError("its CRC, version or lines are wrong")
        return RestartPoint._make(map(int, fields.values()))
    except ValueError as error:
        logger.warning("%s is not used: %s", path, error)
        return None


def remove_restart_point(directory: Path) -> None:
    """Remove the file, as the log is to be cut. Its name is gone durably once the directory is synced."""
    (directory / RESTART_POINT_NAME).unlink(missing_ok=True)
