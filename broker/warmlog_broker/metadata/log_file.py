"""The metadata log: what a broker knows beside its logs, in one crash-safe file.

`metadata.log` in the data directory::

    file   := "WLMETA1\\n" | record | record | …
    record := u32 size | u32 crc | u64 flushed | body        big-endian
              size     bytes of the body, at least 1
              crc      CRC-32C of size, flushed and body
              flushed  the file was known to be on disk up to this position when the record was written
              body     msgpack [kind, fields…]: an entry (`metadata_log`), fields in order, new ones at the end

An entry is in force once the file is flushed, and responses that depend on it are sent after that. Entries are appended
in groups, and each group is flushed before the next is written, so a crash leaves at most one group incomplete, at the
end. Invalid bytes at the end are cut and kept in `metadata.log.cut`. If a valid record follows that was written after
the damaged position had been flushed, the disk has lost data: the file is refused, and the error names the position. An
entry of an unknown kind comes from a newer version and is refused as well.

The file can be read by its owner only as soon as there was a user. A start rewrites the file (temporary file, fsync,
rename, fsync of the directory) when most of it is history.
"""

import os
from collections.abc import Iterable
from functools import reduce
from operator import or_
from pathlib import Path
from struct import Struct as ByteLayout
from typing import NamedTuple

import msgspec

from warmlog_broker.metadata.metadata_log import Entry, MetadataState, UserSecretMade
from warmlog_broker.storage.io.durable_files import replace_file, sync_directory, write_all
from warmlog_broker.storage.io.os_errors import storage_error
from warmlog_protocol.codec.crc32c import crc32c
from warmlog_protocol.errors import StorageError

FILE_NAME = "metadata.log"
CUT_FILE_NAME = "metadata.log.cut"
FILE_FAMILY = b"WLMETA"
FILE_HEAD = FILE_FAMILY + b"1\n"
MAX_BODY_BYTES = 16 * 1024 * 1024
PRIVATE = 0o600
"""The mode of a file with users: who reads their credentials can try passwords."""
HISTORY_RECORDS = 256
"""The file is rewritten when it holds more records than twice those of the state and this number."""

_RECORD = ByteLayout(">IIQ")
_SIZE = ByteLayout(">I")
_FLUSHED = ByteLayout(">Q")

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(reduce(or_, Entry.__subclasses__()))


class Loaded(NamedTuple):
    """The content of a file, of which the last `cut_bytes` were not valid."""

    entries: list[Entry]
    valid_bytes: int
    cut_bytes: int

    def state(self) -> MetadataState:
        """Return the state that the entries result in."""
        state = MetadataState()
        for entry in self.entries:
            state.apply(entry)
        return state


def pack_record(entry: Entry, flushed_bytes: int) -> bytes:
    """Return the record of `entry`, written when the file was on disk up to `flushed_bytes`."""
    body = _encoder.encode(entry)
    crc = crc32c(_SIZE.pack(len(body)) + _FLUSHED.pack(flushed_bytes) + body)
    return _RECORD.pack(len(body), crc, flushed_bytes) + body


def read_state(path: Path) -> MetadataState:
    """Return the state in the metadata log at `path`, which a broker may be using; FileNotFoundError, StorageError.

    Entries at the end that are incomplete are left out, as after a crash.
    """
    return read_records(path.read_bytes(), path).state()


def read_records(data: bytes, path: Path) -> Loaded:
    """Return the entries in `data`, the content of `path`, up to a torn end.

    StorageError for a file of another kind, for damage to what is known to have been flushed, and for an unknown entry.
    """
    if not data.startswith(FILE_HEAD):
        if FILE_HEAD.startswith(data[: len(FILE_HEAD)]):
            return Loaded([], 0, len(data))
        found = data[: len(FILE_HEAD)]
        if found.startswith(FILE_FAMILY):
            raise StorageError(
                f"{path} has the format {found!r}, this version reads {FILE_HEAD!r} only: it was written by a newer "
                f"warmlog. Install that version again; nothing was changed"
            )
        raise StorageError(f"{path}: expected {FILE_HEAD!r} at its beginning, found {found!r}")
    entries: list[Entry] = []
    position = len(FILE_HEAD)
    while position < len(data):
        body = _read_body(data, position)
        if body is None:
            _refuse_damage_in_the_middle(data, position, path)
            break
        try:
            entries.append(_decoder.decode(body))
        except msgspec.DecodeError as error:
            raise StorageError(
                f"{path}, position {position}: an entry that this version does not know; a newer warmlog may have "
                f"written it: {error}"
            ) from None
        position += _RECORD.size + len(body)
    return Loaded(entries, position, len(data) - position)


def _read_body(data: bytes, position: int) -> bytes | None:
    """Return the body of the record at `position`; None if there is no valid record."""
    if position + _RECORD.size > len(data):
        return None
    size, crc, _ = _RECORD.unpack_from(data, position)
    start = position + _RECORD.size
    if not 1 <= size <= MAX_BODY_BYTES or start + size > len(data):
        return None
    body = data[start : start + size]
    covered = data[position : position + 4] + data[position + 8 : start] + body
    return body if crc32c(covered) == crc else None


def _refuse_damage_in_the_middle(data: bytes, damaged: int, path: Path) -> None:
    """Raise StorageError if a valid record shows that position `damaged` was flushed before it was written."""
    for position in range(damaged + 1, len(data) - _RECORD.size):
        flushed = _FLUSHED.unpack_from(data, position + 8)[0]
        if damaged < flushed <= position and _read_body(data, position) is not None:
            raise StorageError(
                f"{path} is damaged at position {damaged}: a valid record follows at {position}, so this is not a torn "
                f"end. Restore the file from a backup; nothing was changed"
            )


class MetadataLog:
    """The file, opened for appending. One caller at a time; `append` and `flush` may run in different threads."""

    def __init__(self, path: Path, descriptor: int, size_bytes: int, state: MetadataState) -> None:
        self.path = path
        self.state = state
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._flushed_bytes = size_bytes
        self._failure: OSError | None = None

    @classmethod
    def open(cls, data_dir: Path) -> "tuple[MetadataLog, int]":
        """Return the log of `data_dir`, created if there is none, and how many torn bytes were cut from its end.

        On return all that was read is on disk. Raises the errors of `read_records`, and OSError from the disk.
        """
        path = data_dir / FILE_NAME
        data = _read_from_disk(path) if path.exists() else b""
        loaded = read_records(data, path)
        state = loaded.state()
        if loaded.cut_bytes:
            replace_file(data_dir / CUT_FILE_NAME, data[loaded.valid_bytes :], mode=PRIVATE)
        is_rewritten = loaded.valid_bytes == 0 or len(loaded.entries) > 2 * len(state.entries()) + HISTORY_RECORDS
        if is_rewritten:
            replace_file(path, pack_file(state.entries()), mode=PRIVATE if state.user_secret else 0o644)
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if loaded.cut_bytes and not is_rewritten:
                os.ftruncate(descriptor, loaded.valid_bytes)
            os.fsync(descriptor)
            sync_directory(data_dir)
            return cls(path, descriptor, os.fstat(descriptor).st_size, state), loaded.cut_bytes
        except BaseException:
            os.close(descriptor)
            raise

    def append(self, entries: Iterable[Entry]) -> None:
        """Write `entries` at the end; they are in force after `flush`, and only then belong in the state.

        A write that fails is undone; StorageError once a flush has failed or a write could not be undone.
        """
        self._check()
        entries = list(entries)
        data = b"".join(pack_record(entry, self._flushed_bytes) for entry in entries)
        try:
            if any(isinstance(entry, UserSecretMade) for entry in entries):
                os.fchmod(self._descriptor, PRIVATE)
            write_all(self._descriptor, data, self._size_bytes)
        except OSError as error:
            try:
                os.ftruncate(self._descriptor, self._size_bytes)
            except OSError as second:
                self._failure = second
            raise storage_error(f"cannot write to {self.path}: {error}", error) from error
        self._size_bytes += len(data)

    def flush(self) -> None:
        """Make appended entries durable, in any thread. After a failure every further call fails (StorageError)."""
        self._check()
        size_bytes = self._size_bytes
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._failure = error
            self._check()
        self._flushed_bytes = size_bytes

    def close(self) -> None:
        """Close the file, without a flush."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _check(self) -> None:
        if self._failure is not None:
            raise StorageError(
                f"{self.path} failed ({self._failure}): no topic can be changed until a restart has read it again"
            ) from self._failure


def pack_file(entries: Iterable[Entry]) -> bytes:
    """Encode a file of `entries`. Its records say that it is flushed, because it is only renamed after that."""
    data = bytearray(FILE_HEAD)
    for entry in entries:
        data += pack_record(entry, len(data))
    return bytes(data)


def _read_from_disk(path: Path) -> bytes:
    """Return the content on the disk.

    After a failed flush the kernel takes pages for clean that never reached the disk, and reads return them until a
    power cut. So what can be synced is synced, and all pages are dropped, before anything is read.
    """
    with path.open("rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file.read()
