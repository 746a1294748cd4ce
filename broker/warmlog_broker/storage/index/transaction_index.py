"""The transaction index, `.txnindex`: the aborted transactions whose end lies in a segment, with Kafka's bytes.

An entry for each, 34 bytes, big-endian, in the order of the markers::

    i16  version = 0
    i64  producer id
    i64  first offset          of the transaction; it may lie in an earlier segment
    i64  last offset           where the marker lies that aborted it: in this segment
    i64  last stable offset    right after that: the first offset of the oldest other transaction that is open, or
                               without one the offset after the marker

Committed transactions have no entry, and a segment without aborted ones has no file: it is created by the first entry,
never preallocated, and goes with the last one. (Kafka's own recovery may leave an empty file.)

**A torn entry.** The bytes behind the last whole entry were never an entry: reading ignores them. They are cut before
the next entry is written, for a file that begins with a half one would read as shifted from there on. A write that the
disk refuses halfway is cut off at once; should that fail too, the next append begins with it.

**Order.** Last offsets rise from entry to entry, and so does what is stable. `append` refuses what would break that,
also after the file was opened again (Kafka compares with what the same instance has written only). So the first entry
for a fetch is found by halving, and a lookup reads what it needs, however many entries lie before.

**Durability.** The `.log` tells all of it, but only together with the transactions that were open where the segment
begins; recovery replays them anyhow and makes the index of each segment that it checks anew (see
`transaction_recovery`). So entries are synced as other indexes are: when the segment has become inactive, before the
recovery point moves past it. Writing is `pwrite`; a full disk is an error that leaves the file as it was.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Self

from warmlog_broker.storage.index.abstract_index import CorruptIndex, InvalidIndexOffset
from warmlog_broker.storage.io.durable_files import replace_file
from warmlog_broker.storage.io.managed_file import ManagedFile
from warmlog_broker.storage.io.open_files import OpenFile, OpenFiles

VERSION = 0

_ENTRY = Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
_CHUNK_BYTES = 512 * ENTRY_BYTES


class AbortedTxn(NamedTuple):
    """An entry: both offsets are inclusive."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class CollectedAborted(NamedTuple):
    """What one index says about a range of offsets."""

    aborted: list[AbortedTxn]
    is_complete: bool
    """Whether no later segment's index can have one that belongs to it."""


def pack_entry(aborted: AbortedTxn) -> bytes:
    """The 34 bytes of an entry."""
    return _ENTRY.pack(VERSION, *aborted)


class TransactionIndex(ManagedFile):
    """The index of one segment. There is a file only while there are entries, and OpenFiles may close it any time."""

    __slots__ = (
        "_entries",
        "_has_torn_tail",
        "_last",
        "base_offset",
        "is_verified",
        "needs_rebuild",
    )

    def __init__(self, path: Path | str, base_offset: int, open_files: OpenFiles, *, is_writable: bool = True) -> None:
        """Nothing is opened, or looked for, before it is used."""
        super().__init__(path, open_files, is_writable=is_writable)
        self.base_offset = base_offset
        self.is_verified = False
        """Whether it is known to hold what it should: `transaction_recovery` finds that out for one found on disk."""
        self.needs_rebuild = False
        """Whether the log's batches are to be asked what it should hold."""
        self._entries = -1  # not known before the file was looked at
        self._last: AbortedTxn | None = None
        self._has_torn_tail = False

    @classmethod
    def open_read_only(cls, path: Path, base_offset: int, open_files: OpenFiles) -> Self:
        """The index at `path` for tools: never created and never changed. FileNotFoundError when it is not there."""
        index = cls(path, base_offset, open_files, is_writable=False)
        index.open_file()
        return index

    # Reading

    @property
    def entries(self) -> int:
        """The number of whole entries; none where there is no file."""
        if self._entries < 0:
            self._look_at_file()
        return self._entries

    @property
    def size_bytes(self) -> int:
        """Of the whole entries."""
        return self.entries * ENTRY_BYTES

    @property
    def last(self) -> AbortedTxn | None:
        """The last entry, if there is any."""
        if self._last is None and self.entries:
            self._last = self.entry(self._entries - 1)
        return self._last

    def file_exists(self) -> bool:
        return self._file is not None or self.path.exists()

    def entry(self, slot: int) -> AbortedTxn:
        """The entry with that number; CorruptIndex when it cannot be one."""
        if not 0 <= slot < self.entries:
            raise ValueError(f"{self.path} has {self._entries} entries: there is no entry {slot}")
        return next(self._read(slot, slot + 1))

    def __iter__(self) -> Iterator[AbortedTxn]:
        """Every whole entry, in order; CorruptIndex at one of a version that is not known."""
        return self._read(0, self.entries)

    def collect_aborted(self, fetch_offset: int, upper_bound_offset: int) -> CollectedAborted:
        """The transactions that have data in `[fetch_offset, upper_bound_offset)`, as far as this segment's index says.

        It is complete when an entry was met whose last stable offset is at or above the upper bound: all that is below
        was decided by then. Otherwise the next segment's index goes on.
        """
        aborted = []
        for entry in self._read(self._first_slot_from(fetch_offset), self.entries):
            if entry.first_offset < upper_bound_offset:
                aborted.append(entry)
            if entry.last_stable_offset >= upper_bound_offset:
                return CollectedAborted(aborted, is_complete=True)
        return CollectedAborted(aborted, is_complete=False)

    def sanity_check(self) -> None:
        """CorruptIndex unless every entry can be what was written: whole, known, of this segment, and in order."""
        if self.file_exists():
            size_bytes = os.fstat(self.open_file().fd).st_size
            if size_bytes != self.size_bytes:
                raise CorruptIndex(f"{self.path}: {size_bytes} bytes are not a multiple of {ENTRY_BYTES}")
        previous = None
        for entry in self:
            self._check_entry(entry, previous)
            previous = entry

    # Writing

    def append(self, aborted: AbortedTxn) -> None:
        """Adds an entry, in a new file if there is none. InvalidIndexOffset unless its last offset is the greatest.

        OSError when the disk refuses: the index is as it was then. Not durable on return.
        """
        last = self.last
        if aborted.last_offset < self.base_offset or (last is not None and aborted.last_offset <= last.last_offset):
            raise InvalidIndexOffset(
                f"{self.path}: offset {aborted.last_offset} cannot follow "
                f"{self.base_offset - 1 if last is None else last.last_offset}"
            )
        file = self._file_for_appends()
        data, position = pack_entry(aborted), self.size_bytes
        self._writes += 1
        try:
            written = os.pwrite(file.fd, data, position)
            if written != len(data):
                raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes written", str(self.path))
        except OSError:
            self._has_torn_tail = True
            with suppress(OSError):
                self._cut_torn_tail(file)
            raise
        self._entries += 1
        self._last = aborted

    def truncate_to(self, offset: int) -> None:
        """Drops the entries of transactions that ended at `offset` or later. A damaged index is to be rebuilt then."""
        try:
            self._keep(self._first_slot_from(offset))
        except (CorruptIndex, FileNotFoundError):
            self.invalidate()

    def reset(self) -> None:
        """Drops all entries; whatever the file holds."""
        self._entries = 0
        self._last = None
        if self.file_exists():
            self._remove()

    def replace(self, aborted: Iterable[AbortedTxn]) -> None:
        """Makes these its entries, durably, and settles it: after a crash the file holds the old ones or these."""
        entries = list(aborted)
        self.close()
        if entries:
            replace_file(self.path, b"".join(map(pack_entry, entries)))
            self._entries, self._has_torn_tail = len(entries), False
            self._last = entries[-1]
            self._writes += 1
            self._synced_writes = self._writes
        else:
            self.reset()
        self.is_verified, self.needs_rebuild = True, False

    def leave_empty(self) -> None:
        """Leaves a file without entries, if it can: who finds it makes the index anew."""
        with suppress(OSError):
            self._opened(os.O_CREAT)
        self.invalidate()

    def invalidate(self) -> None:
        """It does not hold what it should: it is to be made anew."""
        self.is_verified, self.needs_rebuild = False, True

    # Flushing

    @property
    def has_unsynced_writes(self) -> bool:
        """Whether there is a file that was changed since the last sync that was marked."""
        return self._writes != self._synced_writes and self.entries > 0

    def flush(self) -> None:
        """Makes the entries durable; the name of a new file is the directory's business."""
        writes = self._writes
        if self.has_unsynced_writes:
            os.fdatasync(self.open_file().fd)
        self.mark_synced(writes)

    def has_unflushed_writes(self) -> bool:
        """For OpenFiles, which may close it at any time: see the module on durability."""
        return False

    def let_go(self) -> None:
        self._file = None

    # The file

    def rename_to(self, path: Path) -> None:
        """Moves the file if there is one."""
        with suppress(FileNotFoundError):
            self.path.replace(path)
        self._path = path

    def close(self) -> None:
        """Closes; nothing is synced. Closing again is harmless, and an append opens it again."""
        self._open_files.discard(self)
        self.let_go()

    def _look_at_file(self) -> None:
        try:
            size_bytes = os.fstat(self.open_file().fd).st_size
        except FileNotFoundError:
            size_bytes = 0
        self._entries, torn_bytes = divmod(size_bytes, ENTRY_BYTES)
        self._has_torn_tail = torn_bytes > 0

    def _first_slot_from(self, offset: int) -> int:
        """The first entry whose last offset is `offset` or greater; the number of entries when there is none."""
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle).last_offset < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _read(self, slot: int, end: int) -> Iterator[AbortedTxn]:
        position, end_position = slot * ENTRY_BYTES, end * ENTRY_BYTES
        while position < end_position:
            wanted = min(_CHUNK_BYTES, end_position - position)
            chunk = os.pread(self.open_file().fd, wanted, position)
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
            raise CorruptIndex(f"{self.path}: {entry} cannot be, stable up to {stable_from} before it")

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
        self._writes += 1

    def _cut(self, file: OpenFile) -> None:
        """Ends the file behind its last whole entry."""
        os.ftruncate(file.fd, self.size_bytes)
        self._has_torn_tail = False

    def _cut_torn_tail(self, file: OpenFile) -> None:
        """After a failed write: a file that holds no entry goes."""
        if self._entries:
            self._cut(file)
        else:
            self._remove()

    def _remove(self) -> None:
        self._check_writable()
        self.close()
        self.path.unlink(missing_ok=True)
        self._has_torn_tail = False
        self._writes += 1
