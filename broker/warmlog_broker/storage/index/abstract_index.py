"""What offset index and time index have in common: a file of fixed-size entries, sorted, searched warm end first.

The file is entries and nothing else. While its segment is active it is preallocated to `segment.index.bytes` (a sparse
file: zeros that take no space); it is trimmed to its entries when the segment becomes inactive and when it is closed.
Both values of an entry never decrease from one entry to the next, and the key (offset, or timestamp) always increases.

**Writing** is `pwrite`, so that a full disk is an error; a map that is written to would turn it into a SIGBUS. The last
few entries, at most 64, are kept in memory and written together: one write for each entry costs a twentieth of all the
time that appending takes. Lookups find them there. Whoever else opens the file sees them once they are written. While
a segment is active, the keys of the last entries that were added here (some 1,000 to 2,000, of 8 bytes) stay in memory,
as lookups are mostly for these.

**Reading** goes through a read-only map of the whole file and stops at the tracked number of entries, so that zeros
of the preallocation never count. A file is never cut while a map covers the pages that go: touching those is SIGBUS,
so the map goes first. Unmapping is explicit or by reference count, both at once and both without touching the disk.
Tools, which open read-only what another process may cut at any time, read the file into memory instead.

**A crash** leaves a preallocated file, without the entries that were in memory. How many entries it holds is then only
a guess (the entries before the zeros), which is good enough for tools; `sanity_check` refuses such a file, and the
segment rebuilds it from its log.

**Durability**: everything here can be rebuilt from the log, so entries are not synced while the segment is active, and
OpenFiles may close an index at any time. They are synced when the segment has become inactive (see LogSegment).

**Search**: see `index_search`.
"""

import errno
import mmap
import os
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import ClassVar, Generic, NamedTuple, NoReturn, Self, TypeVar

from warmlog_broker.storage.index.search import Probe, warm_cold_search
from warmlog_broker.storage.io.managed_file import ManagedFile
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_protocol.errors import WarmlogError

MAX_RELATIVE_OFFSET = 2**31 - 1
MAX_UNWRITTEN = 64
"""Entries that are kept in memory until they are written together."""
MAX_RECENT = 2048
"""Keys that are kept in memory."""

Buffer = mmap.mmap | bytearray | bytes


class CorruptIndex(WarmlogError):
    """An index file cannot be what was written: it is to be rebuilt from the log."""


class IndexOffsetOverflow(WarmlogError):
    """An offset lies below the base offset, or too far above it for the four bytes that an entry has for it."""


class InvalidIndexOffset(WarmlogError):
    """An entry would break the order of its index: a bug of ours, or offsets of a log that go back."""


class Field(NamedTuple):
    """One of the two numbers of an entry."""

    unpack: Callable[[Buffer, int], tuple[int]]
    at: int
    """Where it begins in the entry."""


Entry = TypeVar("Entry")


class AbstractIndex(ManagedFile, Generic[Entry]):
    """A sorted file of fixed-size entries. For one thread at a time, but OpenFiles may make it let go at any time."""

    entry_bytes: ClassVar[int]
    warm_entries: ClassVar[int]
    layout: ClassVar[Struct]
    """Of an entry: key and value."""
    key: ClassVar[Field]
    """What the index is searched by, as a rule; strictly increasing."""
    value: ClassVar[Field]

    def __init__(
        self,
        path: Path,
        base_offset: int,
        *,
        open_files: OpenFiles,
        max_index_bytes: int = -1,
        is_writable: bool = True,
    ) -> None:
        """Opens the index at `path`, or creates it with room for `max_index_bytes`.

        Every slot of a file that exists is an entry, except for the zeros behind the last one. Read-only (for tools), a
        missing file is FileNotFoundError and nothing is created.
        """
        super().__init__(path, open_files, is_writable=is_writable)
        self.base_offset = base_offset
        self.max_index_bytes = max_index_bytes
        self._unpack = self.layout.unpack_from
        self.is_padded = False
        """Whether the file was found with zeros behind its entries: left by a crash, or written to at this moment."""
        self._map: mmap.mmap | bytes | None = None
        self._entries = 0
        self._written = 0
        """How many of the entries are in the file; the others are in the next one."""
        self._unwritten = bytearray()
        self._recent_keys = array("q")
        """Of the last entries that were added here: all that are not written, and others, at most MAX_RECENT."""
        self._file_bytes = 0
        self._max_entries = 0
        try:
            self._open_existing()
        except FileNotFoundError:
            if not is_writable:
                raise
            self._create()
        self._entries_changed()

    @property
    def entries(self) -> int:
        """The number of entries."""
        return self._entries

    @property
    def max_entries(self) -> int:
        """How many entries the file has room for."""
        return self._max_entries

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another entry."""
        return self._entries >= self._max_entries

    @property
    def size_bytes(self) -> int:
        """Of the entries, without the room behind them."""
        return self._entries * self.entry_bytes

    @property
    def written_bytes(self) -> int:
        """Of the entries that are in the file already."""
        return self._written * self.entry_bytes

    @property
    def file_bytes(self) -> int:
        return self._file_bytes

    @property
    def mapped(self) -> mmap.mmap | None:
        """The map, if there is one now, for `madvise`. The owner may close it at any time: others must not read it."""
        return self._map if isinstance(self._map, mmap.mmap) else None

    @property
    def is_lost(self) -> bool:
        """Whether entries that were written cannot be read any more: the file is gone, or shorter than it was.

        A file that is mapped and has lost no more than its name can be read until it is let go of. To be asked before a
        lookup, which it also counts as a use of the file: touching the map of a file that was cut is SIGBUS.
        """
        mapped = self._map
        if isinstance(mapped, mmap.mmap):
            self._open_files.touch(self)
            return mapped.size() < self._file_bytes
        if mapped is None and self._written:
            try:
                self._remap()
            except (FileNotFoundError, CorruptIndex):
                return True
        return False

    def can_append_offset(self, offset: int) -> bool:
        """Whether `offset` can be put relative to the base offset."""
        return 0 <= offset - self.base_offset <= MAX_RELATIVE_OFFSET

    # Entries

    def entry(self, slot: int) -> Entry:
        """The entry in `slot`, counted from 0; ValueError when there is none."""
        self._check_open()
        if not 0 <= slot < self._entries:
            raise ValueError(f"{self.path} has {self._entries} entries: there is no entry {slot}")
        return self._entry(slot)

    def __iter__(self) -> Iterator[Entry]:
        return map(self.entry, range(self._entries))

    def sanity_check(self) -> None:
        """CorruptIndex for zeros behind the entries, a broken last entry, and one that is not the greatest."""
        if self.is_padded:
            raise CorruptIndex(f"{self.path}: {self._entries} entries, then zeros: it was not closed")
        if self._file_bytes % self.entry_bytes:
            raise CorruptIndex(f"{self.path}: {self._file_bytes} bytes are not a multiple of {self.entry_bytes}")
        if self._entries:
            self._check_ends(self._entry(0), self._entry(self._entries - 1))

    @abstractmethod
    def _check_ends(self, first: Entry, last: Entry) -> None:
        """Passes when these can be the first and the last entry, which may be the same; CorruptIndex otherwise."""

    @abstractmethod
    def _to_entry(self, key: int, value: int) -> Entry:
        """The entry that the file has as `key` and `value`."""

    def _entry(self, slot: int) -> Entry:
        """The entry of a slot that is known to exist."""
        at = (slot - self._written) * self.entry_bytes
        if at >= 0:
            return self._to_entry(*self._unpack(self._unwritten, at))
        return self._to_entry(*self._unpack(self._map or self._remap(), slot * self.entry_bytes))

    # Size

    def resize(self, size_bytes: int) -> bool:
        """Makes the file `size_bytes` long, rounded down to whole entries; False when it has that length already."""
        size_bytes -= size_bytes % self.entry_bytes
        if size_bytes < self.size_bytes:
            raise ValueError(f"{self.path}: {self._entries} entries do not fit into {size_bytes} bytes")
        if size_bytes == self._file_bytes:
            return False
        self._set_file_bytes(size_bytes)
        return True

    def trim(self) -> None:
        """Writes all entries and ends the file after the last one."""
        self.write_out()
        self.resize(self.size_bytes)
        del self._recent_keys[:]

    def truncate(self) -> None:
        """Drops all entries and keeps the room."""
        self._truncate_to_entries(0)

    def reset(self) -> None:
        """Drops all entries and makes room for `max_index_bytes`, whatever was in the file."""
        self._check_max_index_bytes()
        self.truncate()
        self.resize(self.max_index_bytes)

    @abstractmethod
    def truncate_to(self, offset: int) -> None:
        """Drops every entry whose offset is `offset` or greater."""

    def _truncate_to_entries(self, entries: int) -> None:
        """Keeps the first `entries` and the room; what was in the other slots becomes zeros again."""
        self._check_writable()
        kept_in_memory = max(0, entries - self._written)
        del self._unwritten[kept_in_memory * self.entry_bytes :]
        del self._recent_keys[max(0, entries - self._entries + len(self._recent_keys)) :]
        self._entries = entries
        self._written = min(self._written, entries)
        self._entries_changed()
        file_bytes, kept_bytes = self._file_bytes, self._written * self.entry_bytes
        if not kept_in_memory and file_bytes > kept_bytes:
            self._set_file_bytes(kept_bytes)
            self._set_file_bytes(file_bytes)

    @abstractmethod
    def _entries_changed(self) -> None:
        """Entries were found or dropped: what is derived from the last one is to be read again."""

    def _set_file_bytes(self, file_bytes: int) -> None:
        self._check_writable()
        file = self.open_file()
        self._unmap()
        os.ftruncate(file.fd, file_bytes)
        self._note_file_bytes(file_bytes)
        self._writes += 1

    def _note_file_bytes(self, file_bytes: int) -> None:
        self._file_bytes = file_bytes
        self._max_entries = file_bytes // self.entry_bytes

    # Writing

    def write_out(self) -> None:
        """Writes the entries that are in memory. When the disk refuses they stay there, and OSError is raised."""
        entries = self._unwritten
        if not entries:
            return
        file = self._file or self._opened()
        written = os.pwrite(file.fd, entries, self._written * self.entry_bytes)
        if written != len(entries):
            raise OSError(errno.ENOSPC, f"{written} of {len(entries)} bytes written", str(self.path))
        self._written = self._entries
        self._unwritten = bytearray()
        self._writes += 1
        if len(self._recent_keys) > MAX_RECENT - MAX_UNWRITTEN:
            del self._recent_keys[: -self.warm_entries]

    def _add(self, entry: bytes, key: int) -> None:
        """Makes `entry`, which has `key`, the last one. OSError when there are too many in memory: it is not added."""
        if self._entries - self._written >= MAX_UNWRITTEN:
            self.write_out()
        self._unwritten += entry
        self._recent_keys.append(key)
        self._entries += 1

    def _refuse_offset(self, offset: int) -> NoReturn:
        raise IndexOffsetOverflow(f"{self.path}: offset {offset} cannot be put relative to {self.base_offset}")

    def _refuse_entry(self) -> NoReturn:
        self._check_writable()
        raise ValueError(f"{self.path} is full: {self._entries} entries")

    # Search

    def _floor(self, target: int) -> Entry | None:
        """The last entry whose key is `target` or less; None when there is none.

        `warm_cold_search` for the lower bound of a key, written out: it reads the same slots in a third of the time.
        What was added here lately is found by its key in memory, which takes another third, and reads one slot.
        """
        keys = self._recent_keys
        if keys and keys[0] <= target:
            return self._entry(self._entries - len(keys) + bisect_right(keys, target) - 1)
        size, unpack = self.entry_bytes, self._unpack
        high = self._written - 1
        if high < 0:
            self._check_open()
            return None
        low = high - self.warm_entries
        if low < 0:
            low = 0
        buffer = self._map or self._mapped()
        if unpack(buffer, low * size)[0] < target:
            key, value = unpack(buffer, high * size)
            if key <= target:
                _ = buffer[(low + high) // 2 * size]  # for its page
                return self._to_entry(key, value)
            high -= 1
        elif unpack(buffer, 0)[0] > target:
            return None
        else:
            low, high = 0, low
        while low < high:
            middle = (low + high + 1) >> 1
            key, value = unpack(buffer, middle * size)
            if key > target:
                high = middle - 1
            elif key < target:
                low = middle
            else:
                return self._to_entry(key, value)
        return self._to_entry(*unpack(buffer, low * size))

    def _lower_bound_slot(self, target: int, field: Field) -> int:
        """The slot of the last entry whose `field` is `target` or less; -1 when there is none."""
        return warm_cold_search(self.probe(field), self._entries, self.warm_entries, target).lower

    def _upper_bound_slot(self, target: int, field: Field) -> int:
        """The slot of the first entry whose `field` is `target` or greater; -1 as `Bounds.upper` says."""
        return warm_cold_search(self.probe(field), self._entries, self.warm_entries, target).upper

    def probe(self, field: Field) -> Probe:
        """Reads `field` of the entry in a slot: until the index is changed."""
        self._check_open()
        unpack, at = field
        size, written, unwritten = self.entry_bytes, self._written, self._unwritten
        if not written:
            return lambda slot: unpack(unwritten, slot * size + at)[0]
        mapped = self._mapped()
        return lambda slot: (
            unpack(mapped, slot * size + at)[0]
            if slot < written
            else unpack(unwritten, (slot - written) * size + at)[0]
        )

    # The file and its map

    def has_unflushed_writes(self) -> bool:
        """False: an index may be closed at any time, for it is derived, verified when used, and synced at the roll."""
        return False

    def let_go(self) -> None:
        """Closes file and map. Entries in memory stay there."""
        self._map = None
        self._file = None

    def close(self) -> None:
        """Trims and unmaps; nothing is synced. Closing again is harmless."""
        if not self._is_closed and self.is_writable:
            self.trim()
        self.close_handles()

    def close_handles(self) -> None:
        self._unmap()
        super().close_handles()
        self._entries = self._written = self._max_entries = 0
        self._unwritten = bytearray()
        del self._recent_keys[:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_count(self) -> int:
        return (self._file is not None) + (self._map is not None)

    def _mapped(self) -> mmap.mmap | bytes:
        """The map of the file, made when there is none."""
        mapped = self._map
        if mapped is None:
            return self._remap()
        self._open_files.touch(self)
        return mapped

    def _remap(self) -> mmap.mmap | bytes:
        file, file_bytes = self.open_file(), self._file_bytes
        if not self.is_writable:
            content = os.pread(file.fd, file_bytes, 0)
            self._check_length(len(content))
            self._map = content
            return content
        self._check_length(os.fstat(file.fd).st_size)
        mapped = self._map = mmap.mmap(file.fd, file_bytes, access=mmap.ACCESS_READ)
        if self._written >= self._max_entries and not self.has_unsynced_writes:
            self._file = None  # nothing more to write: the map, which keeps a descriptor of its own, is all it takes
        self._open_files.add(self, self._open_count())
        return mapped

    def _check_length(self, file_bytes: int) -> None:
        if file_bytes < self._file_bytes:
            raise CorruptIndex(f"{self.path} is shorter than the {self._file_bytes} bytes that it had")

    def _unmap(self) -> None:
        mapped, self._map = self._map, None
        if isinstance(mapped, mmap.mmap):
            mapped.close()

    def _open_existing(self) -> None:
        file = self._opened()
        self._note_file_bytes(os.fstat(file.fd).st_size)
        self._entries = self._written = self._max_entries
        if self._entries and self._is_zero(self._entries - 1):
            self._leave_out_padding()

    def _create(self) -> None:
        self._check_max_index_bytes()
        file = self._opened(os.O_CREAT | os.O_EXCL)
        self._note_file_bytes(self.max_index_bytes - self.max_index_bytes % self.entry_bytes)
        os.ftruncate(file.fd, self._file_bytes)
        self._writes += 1

    def _check_max_index_bytes(self) -> None:
        if self.max_index_bytes < self.entry_bytes:
            raise ValueError(f"{self.path}: {self.max_index_bytes} bytes do not hold an entry of {self.entry_bytes}")

    def _leave_out_padding(self) -> None:
        """Finds the last entry before the zeros. Zeros alone in a file are an entry: the base offset at position 0."""
        if self._entries == 1:
            return
        self.is_padded = True
        low, high = 0, self._entries - 1
        while low < high:
            middle = (low + high) // 2
            if self._is_zero(middle):
                high = middle
            else:
                low = middle + 1
        self._entries = self._written = low

    def _is_zero(self, slot: int) -> bool:
        return self._unpack(self._mapped(), slot * self.entry_bytes) == (0, 0)
