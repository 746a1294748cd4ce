"""One `.log` file: record batches back to back, nothing before, between or after them.

All reading and writing goes by the logical end (`size_bytes`), which is tracked here. A preallocated file is longer: it
has zeros after that end until it is trimmed. A crash leaves those zeros, and recovery cuts them. A file never exceeds
2^31 - 1 bytes, because the offset index stores positions as i32.

Files are opened on demand, and OpenFiles may close idle ones. Only one thread uses a FileRecords; any thread may read
the FileSlices that it returns.

A file may have other names: a log that was adopted by hard links shares its closed files with the Kafka that wrote
them. `make_private` replaces such a file by a copy before anything is written or cut.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from msgspec import Struct

from warmlog_broker.storage.io.copy_bytes import copy_bytes
from warmlog_broker.storage.io.durable_files import sync_directory, write_all
from warmlog_broker.storage.io.open_files import ManagedFile, OpenFile, OpenFiles
from warmlog_broker.storage.record.batch_chain import BatchPosition, DamagedLog, chain, find_batch, pread_exactly
from warmlog_protocol.batch.header import BatchHeader

MAX_LOG_BYTES = 2**31 - 1
PRIVATE_SUFFIX = ".private"
"""Suffix of a copy that is being written; loading the log removes one that a crash has left."""

_PROBE_STRIDE_BYTES = 64 * 1024
_OFFSET_BYTES = 8
_pread = os.pread
_pwritev = os.pwritev

_READ_THROUGH_BYTES = 256 * 1024


class FileSlice(Struct, eq=False):
    """Bytes of a log file that have not been read yet. Holds the file open, safe from eviction and deletion."""

    file: OpenFile
    position: int
    size_bytes: int

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
        return FileSlice(self.file, self.position + position, size_bytes)


class FileRecords(ManagedFile):
    """A log file that is appended to at its end and read anywhere before it."""

    __slots__ = ("_append_file", "_has_torn_tail", "file_bytes", "is_new", "size_bytes")

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
        self._has_torn_tail = False

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
        try:
            written = _pwritev(file.fd, (prefix, covered), position)
            if position + written != end:
                write_all(file.fd, b"".join((prefix, covered))[written:], position + written)
        except (OSError, MemoryError):
            self._cut_torn_tail(file)
            raise
        self.size_bytes = end
        if end > self.file_bytes:
            self.file_bytes = end
        self.writes += 1
        return position

    def read(self, position: int, size_bytes: int) -> bytes:
        """Read exactly `size_bytes` bytes from `position` on; DamagedLog if there are fewer."""
        return pread_exactly(self.open_file(), self.path, position, size_bytes)

    def base_offset_at(self, position: int) -> int | None:
        """The base offset in the header at `position`, unverified; None at the end."""
        if position + _OFFSET_BYTES > self.size_bytes:
            return None
        file = self._file or self.open_file()  # held: another thread may evict it meanwhile
        return int.from_bytes(_pread(file.fd, _OFFSET_BYTES, position), "big")

    def slice(self, position: int, size_bytes: int) -> FileSlice:
        """The bytes from `position` on, at most `size_bytes` of them and none after the logical end."""
        file = self._file or self.open_file()  # the search for `position` has just noted that it is used
        return FileSlice(file, position, _clip(position, size_bytes, self.size_bytes))

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
        if self.file_bytes > size_bytes or self._has_torn_tail:
            file = self._writable_file()
            os.ftruncate(file.fd, size_bytes)
            if removed_bytes:
                file.cut_at_bytes = size_bytes
                self.let_go()  # slices hold the old descriptor
            self.size_bytes = self.file_bytes = size_bytes
            self._has_torn_tail = False
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
