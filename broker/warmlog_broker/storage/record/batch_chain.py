"""The chain of record batches in a log file: each header gives the position of the next batch.

* `find_batch` looks for an offset. It unpacks only the header fields that it needs.
* `chain` yields whole headers, up to the first bytes that cannot be the next batch. `scan` continues after these.

Bodies are read only to compute their CRC. Bytes that cannot be a batch raise DamagedLog with file and position.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from warmlog_broker.storage.io.open_files import OpenFile
from warmlog_protocol.batch.header import (
    CODEC_BITS,
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC_COLUMNS,
    MAGIC_ROWS,
    MOST_COLUMN_BITS,
    NO_OFFSET,
    BatchHeader,
    check_magic,
    read_header,
)
from warmlog_protocol.codec.crc32c import crc32c
from warmlog_protocol.errors import CorruptBatch

FIND_CHUNK_BYTES = 4096
"""The default index interval: one read mostly gets from an index entry to the batch."""
MAX_HEADERS_CHUNK_BYTES = 256 * 1024
CHECK_CHUNK_BYTES = 4 * 1024 * 1024

_FORMAT_BYTES = HEADER_BYTES + 8  # what `check_magic` looks at
_MIN_LENGTH = HEADER_BYTES - LENGTH_OVERHEAD_BYTES
_unpack_placement = Struct(">qiibIhi").unpack_from  # the header up to the last offset delta
_pread = os.pread


class DamagedLog(CorruptBatch):
    """There is no valid batch at `position` of the file `path`."""

    def __init__(self, path: str | Path, position: int, reason: str, next_offset: int = NO_OFFSET) -> None:
        super().__init__(f"{path}: no valid batch at position {position}: {reason}")
        self.path = str(path)
        self.position = position
        self.reason = reason
        self.next_offset = next_offset
        """Set by lookups: the offset of the first batch after the damage; -1 if none follows or it is not known."""


class BatchPosition(NamedTuple):
    base_offset: int
    last_offset: int
    position: int
    """Of its first byte in the file."""
    size_bytes: int


def find_batch(file: OpenFile, path: str | Path, target_offset: int, start: int, end: int) -> BatchPosition | None:
    """The first batch in `[start, end)` whose last offset is `target_offset` or greater; None if there is none.

    `start` and `end` must be batch boundaries. A batch that runs past `end` is damage, as is an offset that goes back.
    """
    if start < 0:
        raise DamagedLog(path, start, "negative position")
    fd = file.fd
    position = chunk_start = start
    chunk = b""
    previous_offset = -1
    while position < end:
        at = position - chunk_start
        if at + HEADER_BYTES > len(chunk):
            is_after_large = position - chunk_start > FIND_CHUNK_BYTES  # then the chunk would hold one header only
            chunk = _read_chunk(fd, HEADER_BYTES if is_after_large else FIND_CHUNK_BYTES, position)
            chunk_start, at = position, 0
            if len(chunk) < HEADER_BYTES:
                raise DamagedLog(path, position, f"{len(chunk)} bytes left, a header takes {HEADER_BYTES}")
        base_offset, length, _, magic, _, _, delta = _unpack_placement(chunk, at)
        next_position = position + length + LENGTH_OVERHEAD_BYTES
        if (
            length < _MIN_LENGTH
            or next_position > end
            or base_offset <= previous_offset
            or delta < 0
            or (magic != MAGIC_COLUMNS and magic != MAGIC_ROWS)
        ):
            raise DamagedLog(path, position, _reason(chunk, at, position, end, previous_offset))
        previous_offset = base_offset + delta
        if previous_offset >= target_offset:
            return BatchPosition(base_offset, previous_offset, position, next_position - position)
        position = next_position
    return None


def chain(
    file: OpenFile, path: str | Path, start: int, end: int, *, checks_crc: bool = False
) -> Iterator[tuple[BatchHeader, int]]:
    """Yield (header, position) of each batch in `[start, end)`; both must be batch boundaries.

    Raises DamagedLog at the first batch that is not valid: one that runs past `end`, whose offset goes back, or with
    `checks_crc`, whose CRC or magic is wrong. Reads ahead by up to 256 KiB while batches are small, and only headers
    once they are large. With `checks_crc` it reads chunks of several MiB, and a larger batch in pieces, so that a
    damaged length costs no memory.
    """
    position = chunk_start = start
    chunk = b""
    chunk_bytes = FIND_CHUNK_BYTES
    previous_offset = -1
    while position < end:
        at = position - chunk_start
        if at + HEADER_BYTES > len(chunk):
            was_used_up = 0 < at < 2 * len(chunk)
            chunk_bytes = min(2 * chunk_bytes, MAX_HEADERS_CHUNK_BYTES) if was_used_up else FIND_CHUNK_BYTES
            chunk = _read_chunk(file.fd, CHECK_CHUNK_BYTES if checks_crc else chunk_bytes, position)
            chunk_start, at = position, 0
        try:
            header = read_header(chunk, at)
        except CorruptBatch as error:
            raise DamagedLog(path, position, str(error)) from None
        size_bytes = header.size_bytes
        if position + size_bytes > end or header.base_offset <= previous_offset:
            raise DamagedLog(path, position, _reason(chunk, at, position, end, previous_offset))
        if checks_crc:
            if at + size_bytes > len(chunk) and size_bytes <= CHECK_CHUNK_BYTES:
                chunk, chunk_start, at = _pread(file.fd, CHECK_CHUNK_BYTES, position), position, 0
            _check_batch(file, path, header, position, chunk, at)
        yield header, position
        previous_offset = header.last_offset
        position += size_bytes


def _check_batch(file: OpenFile, path: str | Path, header: BatchHeader, position: int, chunk: bytes, at: int) -> None:
    """Raise DamagedLog for a wrong CRC or magic. The batch is at index `at` of `chunk`, which may end within it."""
    size_bytes = header.size_bytes
    if at + size_bytes <= len(chunk):
        crc = crc32c(chunk[at + CRC_START : at + size_bytes])
    else:
        crc = _crc_in_pieces(file, position + CRC_START, position + size_bytes)
    if crc != header.crc:
        raise DamagedLog(path, position, f"CRC {header.crc:#010x} expected, {crc:#010x} found")
    body = at + HEADER_BYTES
    # Without a codec, one byte is proof enough: small batches are spared a call.
    if (
        header.attributes & CODEC_BITS
        or body >= len(chunk)
        or (chunk[body] <= MOST_COLUMN_BITS) != (header.magic == MAGIC_COLUMNS)
    ):
        start_of_batch = chunk[at : at + _FORMAT_BYTES]
        if len(start_of_batch) < min(size_bytes, _FORMAT_BYTES):
            start_of_batch = pread_exactly(file, path, position, min(size_bytes, _FORMAT_BYTES))
        try:
            check_magic(header, start_of_batch)
        except CorruptBatch as error:
            raise DamagedLog(path, position, str(error)) from None


def pread_exactly(file: OpenFile, path: str | Path, position: int, size_bytes: int) -> bytes:
    """Read `size_bytes` bytes from `position` on; DamagedLog if the file is shorter than that."""
    data = _pread(file.fd, size_bytes, position)
    if len(data) == size_bytes:
        return data
    pieces = [data]
    missing = size_bytes - len(data)
    while data and missing:
        data = _pread(file.fd, missing, position + size_bytes - missing)
        pieces.append(data)
        missing -= len(data)
    if missing:
        raise DamagedLog(path, position, f"{size_bytes} bytes expected, {size_bytes - missing} found")
    return b"".join(pieces)


def _read_chunk(fd: int, size_bytes: int, position: int) -> bytes:
    chunk = _pread(fd, size_bytes, position)
    while len(chunk) < HEADER_BYTES:
        more = _pread(fd, size_bytes - len(chunk), position + len(chunk))
        if not more:
            break
        chunk += more
    return chunk


def _crc_in_pieces(file: OpenFile, start: int, end: int) -> int:
    crc = 0
    while start < end:
        piece = _pread(file.fd, min(CHECK_CHUNK_BYTES, end - start), start)
        if not piece:
            break
        crc = crc32c(piece, crc)
        start += len(piece)
    return crc


def _reason(chunk: bytes, at: int, position: int, end: int, previous_offset: int) -> str:
    """Say why the header at index `at` of `chunk`, `position` in the file, cannot be that of the next batch."""
    try:
        header = read_header(chunk, at)
    except CorruptBatch as error:
        return str(error)
    if position + header.size_bytes > end:
        return f"it claims {header.size_bytes} bytes, {end - position} are left"
    return f"base offset {header.base_offset} follows offset {previous_offset}"
