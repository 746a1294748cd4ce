"""Reads a segment's `.log` file by the broker's own reader, and the base offset in its name."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from warmlog.cli.terminal.exits import CommandFailed
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.record.batch_chain import DamagedLog
from warmlog_broker.storage.record.file_records import FileRecords
from warmlog_protocol.batch import HEADER_BYTES, BatchHeader, RecordBatch, read_batch, read_header
from warmlog_protocol.errors import CorruptBatch

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"


class PlacedHeader(NamedTuple):
    """A batch's header and its position in the file."""

    position: int
    header: BatchHeader


def base_offset_of(path: Path) -> int:
    """Return the offset in the name of a segment's file. CommandFailed for another kind of name."""
    stem = path.name.partition(".")[0]
    if not (stem.isascii() and stem.isdigit()):
        raise CommandFailed(f"{path}: expected a name that is the base offset, like 00000000000000000000.log")
    return int(stem)


def open_segment_file(path: Path) -> FileRecords:
    """Open the `.log` file at its present size: later appends are not seen. FileNotFoundError if it is missing."""
    return FileRecords.open_read_only(path, OpenFiles())


def headers_of(file: FileRecords, position: int = 0, end: int | None = None) -> Iterator[PlacedHeader]:
    """Yield the complete batches between `position` and `end`, up to the first bytes that are not a batch.

    The reader refuses an offset that goes back; this continues there, to show what is in the file.
    """
    end = file.size_bytes if end is None else min(end, file.size_bytes)
    next_position = -1
    while 0 <= position < end and position != next_position:
        next_position = position
        try:
            for header, at in file.batches(position, end):
                yield PlacedHeader(at, header)
                position = at + header.size_bytes
        except DamagedLog:
            continue


def header_at(file: FileRecords, position: int) -> PlacedHeader | None:
    """Return the header of the complete batch at `position`; None if there is none."""
    return next(headers_of(file, position), None)


def batch_of(file: FileRecords, placed: PlacedHeader) -> RecordBatch:
    """Read the batch without checking its CRC. CorruptBatch if the file has become shorter."""
    return read_batch(file.read(placed.position, placed.header.size_bytes), verify_crc=False)


def why_no_batch(file: FileRecords, position: int) -> str:
    """Say why there is no complete batch at `position`, which is before the end of the file."""
    left_bytes = file.size_bytes - position
    head = file.read(position, min(HEADER_BYTES, left_bytes))
    if not any(head):
        return f"zeros, as in a file that was preallocated or not closed; {left_bytes} bytes are left"
    try:
        header = read_header(head)
    except CorruptBatch as error:
        return str(error)
    return f"the batch should have {header.size_bytes} bytes, but only {left_bytes} are left"
