"""The transaction index, `.txnindex`: the aborted transactions whose marker is in a segment, with Kafka's bytes.

An entry for each, 34 bytes, big-endian, in the order of the markers::

    i16  version = 0
    i64  producer id
    i64  first offset          of the transaction; it may be in an earlier segment
    i64  last offset           of the marker that aborted it: in this segment
    i64  last stable offset    right after the marker: the first offset of the oldest other open transaction, or without
                               one the offset after the marker

Committed transactions have no entry, and a segment without aborted ones has no file: the first entry creates it, and it
is removed with the last one. It is never preallocated. (Kafka's own recovery may leave an empty file.)

**A torn entry.** Bytes after the last whole entry are ignored, and cut before the next entry is written. A write that
fails half way is cut at once; if that fails too, the next append begins with it.

**Order.** Last offsets and last stable offsets rise from entry to entry. `append` refuses what would break that, also
after the file was reopened (Kafka compares only with what the same instance has written). So a binary search finds the
first entry for a fetch, and a lookup reads only what it needs.

**Durability.** Rebuilding an index needs the log and the transactions that were open where the segment begins. Recovery
replays these, and rebuilds the index of each segment that it checks (see `txn_index_recovery`), from the restart point
on. So an entry is synced with its marker, before the recovery point moves past that. A full disk is an error that
leaves the file as it was.
"""

import errno
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Self

from warmlog_broker.storage.index.abstract_index import CorruptIndex, InvalidIndexOffset
from warmlog_broker.storage.io.durable_files import replace_file
from warmlog_broker.storage.io.open_files import ManagedFile, OpenFile, OpenFiles

VERSION = 0

_ENTRY = Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
_CHUNK_BYTES = 512 * ENTRY_BYTES


class AbortedTxn(NamedTuple):
    """An entry. All offsets are inclusive."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class CollectedAborted(NamedTuple):
    """The aborted transactions in a range of offsets, by one index."""

    aborted: list[AbortedTxn]
    is_complete: bool
    """Whether no later segment's index can have another transaction of the range."""


def pack_entry(aborted: AbortedTxn) -> bytes:
    return _ENTRY.pack(VERSION, *aborted)


class TransactionIndex(ManagedFile):
    """The index of one segment. The file exists only while there are entries; OpenFiles may close it at any time."""

    __slots__ = ("_entries", "_has_torn_tail", "_last", "base_offset", "is_verified", "needs_rebuild", "right_below")

    def __init__(self, path: Path | str, base_offset: int, open_files: OpenFiles, *, is_writable: bool = True) -> None:
        super().__init__(path, open_files, is_writable=is_writable)
        self.base_offset = base_offset
        self.is_verified = False
        """Whether the entries are known to be right: `txn_index_recovery` verifies an index found on disk."""
        self.needs_rebuild = False
        """Whether it must be rebuilt from the log."""
        self.right_below = base_offset
        """Entries of markers below this offset are right, also if it must be rebuilt."""
        self._entries = -1  # unknown until the file is opened
        self._last: AbortedTxn | None = None
        self._has_torn_tail = False

    @classmethod
    def open_read_only(cls, path: Path, base_offset: int, open_files: OpenFiles) -> Self:
        """Open the index at `path` for tools: it is never created or changed. FileNotFoundError if it is missing."""
        index = cls(path, base_offset, open_files, is_writable=False)
        index.open_file()
        return index

    # Reading

    @property
    def entries(self) -> int:
        if self._entries < 0:
            try:
                size_bytes = self.open_file().size_bytes
            except FileNotFoundError:
                size_bytes = 0
            self._entries, torn_bytes = divmod(size_bytes, ENTRY_BYTES)
            self._has_torn_tail = torn_bytes > 0
        return self._entries

    @property
    def size_bytes(self) -> int:
        return self.entries * ENTRY_BYTES

    @property
    def last(self) -> AbortedTxn | None:
        if self._last is None and self.entries:
            self._last = self.entry(self._entries - 1)
        return self._last

    def file_exists(self) -> bool:
        return self._file is not None or self.is_there()

    def entry(self, slot: int) -> AbortedTxn:
        """The entry with that number; CorruptIndex if it is damaged."""
        if not 0 <= slot < self.entries:
            raise ValueError(f"{self.path} has {self._entries} entries: there is no entry {slot}")
        return next(self._read(slot, slot + 1))

    def __iter__(self) -> Iterator[AbortedTxn]:
        """Yield every whole entry, in order; CorruptIndex at one of an unknown version."""
        return self._read(0, self.entries)

    def collect_aborted(self, fetch_offset: int, upper_bound_offset: int) -> CollectedAborted:
        """The transactions that have data in `[fetch_offset, upper_bound_offset)`, by this segment's index.

        The result is complete if an entry's last stable offset is at or above the upper bound: all transactions below
        it were decided by then. Otherwise the next segment's index must be searched too.
        """
        aborted = []
        for entry in self._read(self._first_slot_from(fetch_offset), self.entries):
            if entry.first_offset < upper_bound_offset:
                aborted.append(entry)
            if entry.last_stable_offset >= upper_bound_offset:
                return CollectedAborted(aborted, is_complete=True)
        return CollectedAborted(aborted, is_complete=False)

    def sanity_check(self) -> None:
        """CorruptIndex unless all entries are whole, of a known version, of this segment, and in order."""
        if self.file_exists():
            size_bytes = self.open_file().size_bytes
            if size_bytes != self.size_bytes:
                raise CorruptIndex(f"{self.path}: {size_bytes} bytes are not a multiple of {ENTRY_BYTES}")
        previous = None
        for entry in self:
            self._check_entry(entry, previous)
            previous = entry

    # Writing

    def append(self, aborted: AbortedTxn) -> None:
        """Add an entry, in a new file if there is none. InvalidIndexOffset unless its last offset is the greatest.

        OSError if the disk refuses: the index is then as it was before. Not durable on return.
        """
        last = self.last
        if aborted.last_offset < self.base_offset or (last is not None and aborted.last_offset <= last.last_offset):
            raise InvalidIndexOffset(
                f"{self.path}: offset {aborted.last_offset} cannot follow "
                f"{self.base_offset - 1 if last is None else last.last_offset}"
            )
        file = self._file_for_appends()
        data, position = pack_entry(aborted), self.size_bytes
        self.writes += 1
        try:
            written = os.pwrite(file.fd, data, position)
            if written != len(data):
                raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes written", str(self.path))
        except OSError:
            self._has_torn_tail = True
            with suppress(OSError):
                if self._entries:
                    self._cut(file)
                else:
                    self._remove()
            raise
        self._entries += 1
        self._last = aborted

    def truncate_to(self, offset: int) -> None:
        """Drop the entries of transactions that ended at `offset` or later. A damaged index must be rebuilt then."""
        try:
            self._keep(self._first_slot_from(offset))
        except (CorruptIndex, FileNotFoundError):
            self.invalidate()

    def reset(self) -> None:
        """Drop all entries, whatever the file holds."""
        self._entries = 0
        self._last = None
        if self.file_exists():
            self._remove()
        self._synced_writes = self.writes

    def replace(self, aborted: Iterable[AbortedTxn]) -> None:
        """Replace all entries, durably, and mark the index as verified; a crash leaves the old entries or these."""
        entries = list(aborted)
        self.close()
        if entries:
            replace_file(self.path, b"".join(map(pack_entry, entries)))
            self._entries, self._has_torn_tail = len(entries), False
            self._last = entries[-1]
            self.writes += 1
            self._synced_writes = self.writes
        else:
            self.reset()
        self.is_verified, self.needs_rebuild, self.right_below = True, False, self.base_offset

    def leave_empty(self) -> None:
        """Leave a file without entries, if possible: a later start then rebuilds the index."""
        with suppress(OSError):
            self._opened(os.O_CREAT)
        self.invalidate()

    def invalidate(self) -> None:
        """Note that the entries are wrong and must be rebuilt."""
        self.is_verified, self.needs_rebuild, self.right_below = False, True, self.base_offset

    def right_entries(self) -> list[AbortedTxn]:
        """The entries that stay in a rebuild; none, and all must be rebuilt, if they cannot be read."""
        try:
            return [entry for entry in self if entry.last_offset < self.right_below] if self.file_exists() else []
        except (CorruptIndex, FileNotFoundError):
            self.right_below = self.base_offset
            return []

    # The file

    def close(self) -> None:
        """Close; nothing is synced. Closing again is harmless, and an append opens it again."""
        self._open_files.discard(self)
        self.let_go()

    def _first_slot_from(self, offset: int) -> int:
        """The first entry whose last offset is `offset` or greater; the number of entries if there is none."""
        return bisect_left(range(self.entries), offset, key=lambda slot: self.entry(slot).last_offset)

    def _read(self, slot: int, end: int) -> Iterator[AbortedTxn]:
        position, end_position = slot * ENTRY_BYTES, end * ENTRY_BYTES
        while position < end_position:
            file = self.open_file()  # held: another thread may evict it meanwhile
            wanted = min(_CHUNK_BYTES, end_position - position)
            chunk = os.pread(file.fd, wanted, position)
            if len(chunk) != wanted:
                raise CorruptIndex(f"{self.path}: {wanted} bytes expected at {position}, {len(chunk)} found")
            for version, *fields in _ENTRY.iter_unpack(chunk):
                if version != VERSION:
                    raise CorruptIndex(f"{self.path}: version {VERSION} expected at {position}, {version} found")
                yield AbortedTxn(*fields)
                position += ENTRY_BYTES

    def _check_entry(self, entry: AbortedTxn, previous: AbortedTxn | None) -> None:
        _, first_offset, last_offset, last_stable_offset = entry
        after = self.base_offset - 1 if previous is None else previous.last_offset
        stable_from = 0 if previous is None else previous.last_stable_offset
        if last_offset <= after:
            raise CorruptIndex(f"{self.path}: {entry} follows offset {after}")
        if not 0 <= first_offset <= last_offset or not stable_from <= last_stable_offset <= last_offset + 1:
            raise CorruptIndex(f"{self.path}: {entry} is impossible after an entry that is stable up to {stable_from}")

    def _file_for_appends(self) -> OpenFile:
        self._check_writable()
        try:
            file = self.open_file()
        except FileNotFoundError:
            file = self._opened(os.O_CREAT | os.O_EXCL)
        if self._has_torn_tail:
            self._cut(file)
        return file

    def _keep(self, entries: int) -> None:
        if entries == self.entries:
            return
        if not entries:
            self.reset()
            return
        self._entries = entries
        self._last = None
        self._cut(self._file_for_appends())
        self.writes += 1

    def _cut(self, file: OpenFile) -> None:
        os.ftruncate(file.fd, self.size_bytes)
        self._has_torn_tail = False

    def _remove(self) -> None:
        self._check_writable()
        self.close()
        self.path.unlink(missing_ok=True)
        self._has_torn_tail = False
        self._synced_writes = self.writes  # there is no file to sync
