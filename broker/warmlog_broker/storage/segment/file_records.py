"""One `.log` file: record batches back to back, nothing before, between or after them.

All reading and writing goes by the logical end (`size_bytes`), which is tracked here. A preallocated file is longer: it
has zeros after that end until it is trimmed. A crash leaves those zeros, and recovery cuts them. A file never exceeds
2^31 - 1 bytes, because the offset index stores positions as i32.

Files are opened on demand, and OpenFiles may close idle ones. Only one thread uses a FileRecords; any thread may read
the FileSlices that it returns.

**The chain.** Each header gives the position of the next batch. `find_batch` looks for an offset and unpacks only the
header fields that it needs; `chain` yields whole headers, up to the first bytes that cannot be the next batch, after
which `scan` continues. Bodies are read only to compute their CRC. Bytes that cannot be a batch raise DamagedLog with
file and position.

A file may have other names: a log that was adopted by hard links shares its closed files with the Kafka that wrote
them. `make_private` replaces such a file by a copy before anything is written or cut.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct as Layout
from typing import NamedTuple, Self

from msgspec import Struct

from warmlog_broker.storage.io.copy_bytes import copy_bytes
from warmlog_broker.storage.io.durable_files import sync_directory, write_all
from warmlog_broker.storage.io.open_files import ManagedFile, OpenFile, OpenFiles
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

MAX_LOG_BYTES = 2**31 - 1
PRIVATE_SUFFIX = ".private"
"""Suffix of a copy that is being written; loading the log removes one that a crash has left."""

FIND_CHUNK_BYTES = 4096
"""The default index interval: one read mostly gets from an index entry to the batch."""
MAX_HEADERS_CHUNK_BYTES = 256 * 1024
CHECK_CHUNK_BYTES = 4 * 1024 * 1024

_FORMAT_BYTES = HEADER_BYTES + 8  # what `check_magic` looks at
_MIN_LENGTH = HEADER_BYTES - LENGTH_OVERHEAD_BYTES
_unpack_placement = Layout(">qiibIhi").unpack_from  # the header up to the last offset delta
_PROBE_STRIDE_BYTES = 64 * 1024
_OFFSET_BYTES = 8
_MAGIC_POSITION = 16
_pread = os.pread
_pwritev = os.pwritev

_READ_THROUGH_BYTES = 256 * 1024


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
        size_bytes = header.batch_length + LENGTH_OVERHEAD_BYTES
        if position + size_bytes > end or header.base_offset <= previous_offset:
            raise DamagedLog(path, position, _reason(chunk, at, position, end, previous_offset))
        if checks_crc:
            if at + size_bytes > len(chunk) and size_bytes <= CHECK_CHUNK_BYTES:
                chunk, chunk_start, at = _pread(file.fd, CHECK_CHUNK_BYTES, position), position, 0
            _check_batch(file, path, header, position, chunk, at, size_bytes)
        yield header, position
        previous_offset = header.base_offset + header.last_offset_delta
        position += size_bytes


def _check_batch(
    file: OpenFile, path: str | Path, header: BatchHeader, position: int, chunk: bytes, at: int, size_bytes: int
) -> None:
    """Raise DamagedLog for a wrong CRC or magic. The batch is at index `at` of `chunk`, which may end within it."""
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


class FileSlice(Struct, eq=False):
    """Bytes of a log file that have not been read yet. Holds the file open, safe from eviction and deletion."""

    file: OpenFile
    position: int
    size_bytes: int
    records: "FileRecords | None" = None

    @property
    def may_have_columns(self) -> bool:
        """Whether a batch in it may have columns: False if the file is known to have only rows here."""
        return self.records is None or self.position + self.size_bytes > self.records.rows_end

    def note_rows(self) -> None:
        """Note that all batches in it, which end where it ends, have rows. In the thread that uses the records."""
        if self.records is not None and not self.is_cut and self.position <= self.records.rows_end:
            self.records.rows_end = max(self.records.rows_end, self.position + self.size_bytes)

    def fileno(self) -> int:
        """The descriptor to read or send from, at `position`. DamagedLog if the file has been cut there since."""
        self._check_not_cut()
        return self.file.fd

    def pread(self) -> bytes:
        """Read the whole slice. DamagedLog if the file has been cut there since; OSError from the disk."""
        self._check_not_cut()
        return pread_exactly(self.file, self.file.path, self.position, self.size_bytes)

    def read_through(self) -> None:
        """Read the slice into the page cache. Blocks on the disk; raises what `pread` raises."""
        for position in range(0, self.size_bytes, _READ_THROUGH_BYTES):
            self.slice(position, _READ_THROUGH_BYTES).pread()

    def is_cached(self) -> bool:
        """Whether reading would not wait for the disk, judged by a probe every 64 KiB and one at the end.

        Also False if the file system cannot tell (no RWF_NOWAIT): the caller then reads in a thread.
        """
        if not self.size_bytes:
            return True
        end = self.position + self.size_bytes
        probe = [bytearray(1)]
        try:
            for position in (*range(self.position, end, _PROBE_STRIDE_BYTES), end - 1):
                os.preadv(self.file.fd, probe, position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return False
            raise
        return True

    @property
    def is_cut(self) -> bool:
        """Whether the file has been cut there since: the bytes there now, if any, are others."""
        return self.position + self.size_bytes > self.file.cut_at_bytes

    def _check_not_cut(self) -> None:
        if self.is_cut:
            cut_at = self.file.cut_at_bytes
            raise DamagedLog(self.file.path, cut_at, f"truncated there; a reader expected {self.size_bytes} bytes")

    def slice(self, position: int, size_bytes: int) -> "FileSlice":
        """A part of this slice; `position` counts from its start, `size_bytes` is clipped to what there is."""
        size_bytes = _clip(position, size_bytes, self.size_bytes)
        return FileSlice(self.file, self.position + position, size_bytes, self.records)


class FileRecords(ManagedFile):
    """A log file that is appended to at its end and read anywhere before it."""

    __slots__ = ("_append_file", "_has_torn_tail", "_written_to", "file_bytes", "is_new", "rows_end", "size_bytes")

    def __init__(self, path: Path | str, open_files: OpenFiles, size_bytes: int, *, is_writable: bool) -> None:
        if size_bytes > MAX_LOG_BYTES:
            raise ValueError(f"{path}: {size_bytes} bytes, a log file may have at most {MAX_LOG_BYTES}")
        super().__init__(path, open_files, is_writable=is_writable)
        self.is_new = False
        """Whether the file was created by this object."""
        self._append_file: OpenFile | None = None  # the same file, once `_ready_to_append` has checked it
        self.size_bytes = size_bytes
        """Where the last batch ends."""
        self.file_bytes = size_bytes
        """The size of the file: more than `size_bytes` while it is preallocated."""
        self.rows_end = 0
        """Up to where all batches are known to have rows: a file that is opened is not read for it."""
        self._has_torn_tail = False
        self._written_to = 0
        """Up to where `write_ahead` has written the batches that are appended next; 0 if it has not."""

    @classmethod
    def open(cls, path: Path | str, open_files: OpenFiles, *, preallocate_bytes: int = 0) -> Self:
        """Open the file at `path`, or create it and extend it to `preallocate_bytes`.

        A file that exists costs one stat and is not opened yet.
        """
        try:
            size_bytes = os.stat(path).st_size  # noqa: PTH116 - takes half the time of Path.stat
        except FileNotFoundError:
            return cls._create(path, open_files, preallocate_bytes)
        return cls(path, open_files, size_bytes, is_writable=True)

    @classmethod
    def open_read_only(cls, path: Path, open_files: OpenFiles) -> Self:
        """Open the file at `path` for tools: it is never created or changed. FileNotFoundError if it is missing."""
        return cls(path, open_files, path.stat().st_size, is_writable=False)

    @classmethod
    def _create(cls, path: Path | str, open_files: OpenFiles, preallocate_bytes: int) -> Self:
        records = cls(path, open_files, 0, is_writable=True)
        records.is_new = True
        file = records._opened(os.O_CREAT | os.O_EXCL)
        if preallocate_bytes:
            os.ftruncate(file.fd, preallocate_bytes)
            records.file_bytes = preallocate_bytes
        return records

    def append(self, prefix: bytes, covered: bytes | memoryview) -> int:
        """Write `prefix` and `covered`, one batch, at the end and return its position. Not durable on return.

        If the disk refuses, OSError is raised and the file ends where it ended before.
        """
        position = self.size_bytes
        end = position + len(prefix) + len(covered)
        file = self._append_file
        if file is None or end > MAX_LOG_BYTES:
            file = self._ready_to_append(end)
        if end > self._written_to:
            try:
                written = _pwritev(file.fd, (prefix, covered), position)
                if position + written != end:
                    write_all(file.fd, b"".join((prefix, covered))[written:], position + written)
            except (OSError, MemoryError):
                self._cut_torn_tail(file)
                raise
        self.size_bytes = end
        if position == self.rows_end and prefix[_MAGIC_POSITION] == MAGIC_ROWS:
            self.rows_end = end
        if end > self.file_bytes:
            self.file_bytes = end
        self.writes += 1
        return position

    def write_ahead(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write the bytes of the batches that are appended next, in one call: `append` only notes them then.

        If the disk does not take all of it nothing stays, and each `append` writes its own. `end_ahead` follows.
        """
        end = self.size_bytes + sum(map(len, pieces))
        file = self._append_file if end <= MAX_LOG_BYTES else None
        if file is None:
            file = self._ready_to_append(end)
        try:
            is_whole = _pwritev(file.fd, pieces, self.size_bytes) == end - self.size_bytes
        except (OSError, MemoryError):
            is_whole = False
        if is_whole:
            self._written_to = end
        else:
            self._cut_torn_tail(file)

    def end_ahead(self) -> None:
        """Cut what was written ahead and not appended."""
        is_left, self._written_to = self._written_to > self.size_bytes, 0
        if is_left and self._append_file is not None:
            self._cut_torn_tail(self._append_file)

    def read(self, position: int, size_bytes: int) -> bytes:
        """Read exactly `size_bytes` bytes from `position` on; DamagedLog if there are fewer."""
        return pread_exactly(self.open_file(), self.path, position, size_bytes)

    def next_data(self, position: int) -> tuple[int, int]:
        """Where the next bytes that were written begin and end; both are the end of the file if only a hole follows.

        After a crash, what was preallocated and not written is a hole.
        """
        fd = self.open_file().fd
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
            return start, os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return self.size_bytes, self.size_bytes

    def base_offset_at(self, position: int) -> int | None:
        """The base offset in the header at `position`, unverified; None at the end."""
        if position + _OFFSET_BYTES > self.size_bytes:
            return None
        file = self._file or self.open_file()  # held: another thread may evict it meanwhile
        return int.from_bytes(_pread(file.fd, _OFFSET_BYTES, position), "big")

    def slice(self, position: int, size_bytes: int) -> FileSlice:
        """The bytes from `position` on, at most `size_bytes` of them and none after the logical end."""
        file = self._file or self.open_file()  # the search for `position` has just noted that it is used
        return FileSlice(file, position, _clip(position, size_bytes, self.size_bytes), self)

    def batches(
        self, start_position: int = 0, end_position: int | None = None, *, checks_crc: bool = False
    ) -> Iterator[tuple[BatchHeader, int]]:
        """Yield (header, position) of each batch from `start_position` on; DamagedLog at the first that is not valid.

        Bodies are read only with `checks_crc`, which verifies them; see `chain`.
        """
        end = self.size_bytes if end_position is None else min(end_position, self.size_bytes)
        return chain(self.open_file(), self.path, start_position, end, checks_crc=checks_crc)

    def search_for_offset(self, target_offset: int, start_position: int = 0) -> BatchPosition | None:
        return find_batch(self.open_file(), self.path, target_offset, start_position, self.size_bytes)

    def truncate_to(self, size_bytes: int) -> int:
        """End the file at `size_bytes` and return how many bytes that removed. Not durable on return."""
        removed_bytes = self.size_bytes - size_bytes
        if size_bytes < 0 or removed_bytes < 0:
            raise ValueError(f"{self.path}: cannot truncate {self.size_bytes} bytes to {size_bytes}")
        if self.file_bytes > size_bytes or self._has_torn_tail or self._written_to > size_bytes:
            file = self._writable_file()
            os.ftruncate(file.fd, size_bytes)
            if removed_bytes:
                file.cut_at_bytes = size_bytes
                self.let_go()  # slices hold the old descriptor
            self.size_bytes = self.file_bytes = size_bytes
            self.rows_end = min(self.rows_end, size_bytes)
            self._has_torn_tail, self._written_to = False, 0
            self.writes += 1
        return removed_bytes

    def trim(self) -> None:
        self.truncate_to(self.size_bytes)

    def end_without_zeros(self, start: int) -> int:
        """Where the bytes from `start` on end without the zeros at their end; `start` if there are only zeros."""
        end = self.size_bytes
        while end > start:
            piece_start = max(start, end - _READ_THROUGH_BYTES)
            rest = self.read(piece_start, end - piece_start).rstrip(b"\0")
            if rest:
                return piece_start + len(rest)
            end = piece_start
        return start

    def make_private(self) -> None:
        """If the file has other names too, replace it by a durable copy that has only this name.

        The other names and existing slices keep the old file. OSError if there is no room.
        """
        shared = self.open_file()
        found = os.fstat(shared.fd)
        if found.st_nlink < 2:
            return
        temporary = self.path.with_name(self.path.name + PRIVATE_SUFFIX)
        temporary.unlink(missing_ok=True)
        try:
            private = OpenFile(str(temporary), os.O_RDWR | os.O_CREAT | os.O_EXCL)
            copy_bytes(shared.fd, private.fd, found.st_size)
            os.utime(private.fd, ns=(found.st_atime_ns, found.st_mtime_ns))
            os.fsync(private.fd)
            temporary.replace(self.path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        private.path = str(self.path)
        self._file, self._append_file = private, None
        sync_directory(self.path.parent)

    def drop_cache(self, start: int = 0) -> None:
        """Sync the file and have the kernel drop its pages from `start` on: the next read gets what is on the disk."""
        file = self.open_file()
        os.fdatasync(file.fd)
        os.posix_fadvise(file.fd, start, 0, os.POSIX_FADV_DONTNEED)

    def rename_to(self, path: Path) -> None:
        """Rename the file, which must exist: without it, the segment's other files belong to no log."""
        self.path.replace(path)
        self._path = path

    def has_unflushed_writes(self) -> bool:
        return self.writes != self._synced_writes

    def let_go(self) -> None:
        self._file = self._append_file = None

    def close(self) -> None:
        """Trim and close; nothing is synced. Closing again is harmless."""
        if not self.is_closed and self.is_writable:
            self.trim()
        self.close_handles()

    def _writable_file(self) -> OpenFile:
        self._check_writable()
        self.make_private()
        return self.open_file()

    def _ready_to_append(self, end: int) -> OpenFile:
        if end > MAX_LOG_BYTES:
            raise ValueError(f"{self.path}: {end} bytes after this append, a log file may have at most {MAX_LOG_BYTES}")
        file = self._writable_file()
        if self._has_torn_tail:
            self._cut(file)
        self._append_file = file
        return file

    def _cut_torn_tail(self, file: OpenFile) -> None:
        """Cut after a failed write; if cutting fails too, the next append begins with it."""
        self._has_torn_tail = True
        self._append_file = None
        self.writes += 1
        try:
            self._cut(file)
        except OSError:
            return

    def _cut(self, file: OpenFile) -> None:
        """Remove what is after the logical end; preallocated zeros there come back as a hole."""
        os.ftruncate(file.fd, self.size_bytes)
        if self.file_bytes > self.size_bytes:
            os.ftruncate(file.fd, self.file_bytes)
        self._has_torn_tail = False


def _clip(position: int, size_bytes: int, available_bytes: int) -> int:
    """How many of `size_bytes` bytes there are from `position` on."""
    if position < 0 or size_bytes < 0 or position > available_bytes:
        raise ValueError(f"{size_bytes} bytes at {position} of {available_bytes} cannot be sliced")
    return min(size_bytes, available_bytes - position)
