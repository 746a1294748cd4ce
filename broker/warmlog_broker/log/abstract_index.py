"""What offset index and time index have in common: a file of fixed-size entries, sorted, searched warm end first.

The file is entries and nothing else. While its segment is active it is preallocated to `segment.index.bytes` (a sparse
file: zeros that take no space); it is trimmed to its entries when the segment becomes inactive and when it is closed.
Both values of an entry never decrease from one entry to the next, and the key (offset, or timestamp) always increases.

**Writing** is `pwrite`, so that a full disk is an error; a map that is written to would turn it into a SIGBUS.

**Reading** goes through a read-only map of the whole file and stops at the tracked number of entries, so that zeros
of the preallocation never count. A file is never cut while a map covers the pages that go: touching those is SIGBUS,
so the map goes first. Unmapping is explicit or by reference count, both at once and both without touching the disk.

**A crash** leaves a preallocated file. How many entries it holds is then only a guess (the entries before the zeros),
which is good enough for tools; `sanity_check` refuses such a file, and the segment rebuilds it from its log.

**Durability**: everything here can be rebuilt from the log, so entries are not synced while the segment is active, and
OpenFiles may close an index at any time. They are synced when the segment has become inactive (see LogSegment).

**Search** (KAFKA-6432). Lookups near the end of a log, which is nearly all of them, must not touch pages of the index
that were not used for long. So the last 8,192 bytes, the warm section, are searched first, and the rest only when the
target lies before them. 8,192 bytes are at most three pages of 4 KiB, and a lookup at the end of the log touches all
three, by the first, the last and the middle entry, so that they stay in the page cache. They cover 4 MB of log. (Kafka
gets to the last entry by halving; here it is looked at first, as that is where consumers that keep up read.)
"""

import errno
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, NamedTuple, NoReturn, Self

from warmlog_broker.log.open_files import ClosedFile, OpenFile, OpenFiles
from warmlog_protocol.errors import WarmlogError

WARM_BYTES = 8192
MAX_RELATIVE_OFFSET = 2**31 - 1


class CorruptIndex(WarmlogError):
    """An index file cannot be what was written: it is to be rebuilt from the log."""


class IndexOffsetOverflow(WarmlogError):
    """An offset lies below the base offset, or too far above it for the four bytes that an entry has for it."""


class InvalidIndexOffset(WarmlogError):
    """An entry would break the order of its index: a bug of ours, or offsets of a log that go back."""


class Field(NamedTuple):
    """One of the two values of an entry."""

    unpack: Callable[[mmap.mmap, int], tuple[int]]
    at: int
    """Where it begins in the entry."""


class AbstractIndex(ABC):
    """A sorted file of fixed-size entries. For one thread at a time, but OpenFiles may make it let go at any time."""

    entry_bytes: ClassVar[int]
    warm_entries: ClassVar[int]
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
        self.path = path
        self.base_offset = base_offset
        self.max_index_bytes = max_index_bytes
        self.is_writable = is_writable
        self.is_padded = False
        """Whether the file was found with zeros behind its entries: left by a crash, or written to at this moment."""
        self._open_files = open_files
        self._file: OpenFile | None = None
        self._map: mmap.mmap | None = None
        self._is_closed = False
        self._writes = self._synced_writes = 0
        self._entries = 0
        self._file_bytes = 0
        self._max_entries = 0
        try:
            self._open_existing()
        except FileNotFoundError:
            if not is_writable:
                raise
            self._create()

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
    def file_bytes(self) -> int:
        return self._file_bytes

    def can_append_offset(self, offset: int) -> bool:
        """Whether `offset` can be put relative to the base offset."""
        return 0 <= offset - self.base_offset <= MAX_RELATIVE_OFFSET

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
        """Ends the file after the last entry."""
        self.resize(self.size_bytes)

    def truncate(self) -> None:
        """Drops all entries and keeps the room."""
        self._truncate_to_entries(0)

    def reset(self) -> None:
        """Drops all entries and makes room for `max_index_bytes`, whatever was in the file."""
        if self.max_index_bytes < self.entry_bytes:
            raise ValueError(f"{self.path}: {self.max_index_bytes} bytes do not hold an entry of {self.entry_bytes}")
        self.truncate()
        self.resize(self.max_index_bytes)

    @abstractmethod
    def truncate_to(self, offset: int) -> None:
        """Drops every entry whose offset is `offset` or greater."""

    @abstractmethod
    def sanity_check(self) -> None:
        """Passes when the entries can be what was written; CorruptIndex otherwise."""

    @property
    def has_unsynced_writes(self) -> bool:
        return self._writes != self._synced_writes

    @property
    def writes(self) -> int:
        """Counts changes of the file: what `mark_synced` takes."""
        return self._writes

    def mark_synced(self, writes: int) -> None:
        """Notes that a sync, which began when `writes` was read, has succeeded."""
        self._synced_writes = max(self._synced_writes, writes)

    def open_file(self) -> OpenFile:
        """The open file, for a sync in whatever thread."""
        file = self._file
        return file if file is not None else self._opened()

    def has_unflushed_writes(self) -> bool:
        """False: an index may be closed at any time, for it is derived, verified when used, and synced at the roll."""
        return False

    def let_go(self) -> None:
        self._map = None
        self._file = None

    def rename_to(self, path: Path) -> None:
        """Moves the file; the directory is not synced."""
        self.path.replace(path)
        self.path = path

    def moved_to(self, path: Path) -> None:
        """The file has been moved along with its directory."""
        self.path = path

    def delete(self) -> bool:
        """Unmaps and unlinks the file; False when it was not there."""
        self.close_handles()
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        return True

    def close(self) -> None:
        """Trims and unmaps; nothing is synced. Closing again is harmless."""
        if not self._is_closed and self.is_writable:
            self.trim()
        self.close_handles()

    def close_handles(self) -> None:
        """Unmaps and closes without touching the file. Any use after that raises ClosedFile."""
        self._is_closed = True
        self._unmap()
        self._file = None
        self._entries = self._max_entries = 0
        self._open_files.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lower_bound_slot(self, target: int, field: Field) -> int:
        """The slot of the last entry whose `field` is `target` or less; -1 when there is none."""
        return self._search(target, field)[0]

    def _upper_bound_slot(self, target: int, field: Field) -> int:
        """The slot of the first entry whose `field` is `target` or greater; -1 when there is none.

        As in Kafka, an exact hit on slot 0 is not seen (no probe compares it for equality): slot 1 is given instead,
        or -1 when there is no other. It serves as an upper bound, for which later is safe.
        """
        return self._search(target, field)[1]

    def _search(self, target: int, field: Field) -> tuple[int, int]:
        """(lower bound slot, upper bound slot) of `target`: the warm section first, then the rest."""
        entries = self._entries
        if entries == 0:
            if self._is_closed:
                raise ClosedFile(f"{self.path} was closed or deleted")
            return -1, -1
        buffer = self._mapped()
        unpack, at = field
        size = self.entry_bytes
        low, high = max(0, entries - 1 - self.warm_entries), entries - 1
        if unpack(buffer, low * size + at)[0] < target:
            last = unpack(buffer, high * size + at)[0]
            if last <= target:
                _ = buffer[(low + high) // 2 * size]  # the third page: see the module
                return high, high if last == target else -1
            high -= 1
        elif unpack(buffer, at)[0] > target:
            return -1, 0
        else:
            low, high = 0, low
        while low < high:
            middle = (low + high + 1) >> 1
            found = unpack(buffer, middle * size + at)[0]
            if found > target:
                high = middle - 1
            elif found < target:
                low = middle
            else:
                return middle, middle
        return low, -1 if low == entries - 1 else low + 1

    def _entry_at(self, slot: int) -> tuple[int, int]:
        """The raw (key, value) of a slot that is known to exist."""
        buffer = self._mapped()
        position = slot * self.entry_bytes
        key, value = self.key, self.value
        return key.unpack(buffer, position + key.at)[0], value.unpack(buffer, position + value.at)[0]

    def _check_slot(self, slot: int) -> None:
        if self._is_closed:
            raise ClosedFile(f"{self.path} was closed or deleted")
        if not 0 <= slot < self._entries:
            raise ValueError(f"{self.path} has {self._entries} entries: there is no entry {slot}")

    def _relative(self, offset: int) -> int:
        relative = offset - self.base_offset
        if not 0 <= relative <= MAX_RELATIVE_OFFSET:
            raise IndexOffsetOverflow(f"{self.path}: offset {offset} cannot be put relative to {self.base_offset}")
        return relative

    def _write_entry(self, entry: bytes) -> None:
        """Writes the next entry. It counts only once all its bytes are written, so a failed write changes nothing."""
        file = self._file or self._opened()
        written = os.pwrite(file.fd, entry, self._entries * len(entry))
        if written != len(entry):
            raise OSError(errno.ENOSPC, f"{written} of {len(entry)} bytes written", str(self.path))
        self._entries += 1
        self._writes += 1

    def _truncate_to_entries(self, entries: int) -> None:
        """Keeps the first `entries` and the room; what was in the other slots becomes zeros again."""
        self._check_writable()
        file_bytes = self._file_bytes
        self._entries = entries
        self._entries_changed()
        if file_bytes > self.size_bytes:
            self._set_file_bytes(self.size_bytes)
            self._set_file_bytes(file_bytes)

    @abstractmethod
    def _entries_changed(self) -> None:
        """Entries were dropped: what was derived from the last one is to be read again."""

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

    def _check_writable(self) -> None:
        if self._is_closed:
            raise ClosedFile(f"{self.path} was closed or deleted")
        if not self.is_writable:
            raise PermissionError(errno.EACCES, "opened for reading only", str(self.path))

    def _refuse_entry(self) -> NoReturn:
        self._check_writable()
        raise ValueError(f"{self.path} is full: {self._entries} entries")

    def _mapped(self) -> mmap.mmap:
        """The map of the file, made when there is none."""
        mapped = self._map
        if mapped is None:
            return self._remap()
        self._open_files.touch(self)
        return mapped

    def _remap(self) -> mmap.mmap:
        file = self.open_file()
        if os.fstat(file.fd).st_size < self._file_bytes:
            raise CorruptIndex(f"{self.path} is shorter than the {self._file_bytes} bytes that it had")
        mapped = mmap.mmap(file.fd, self._file_bytes, access=mmap.ACCESS_READ)
        self._map = mapped
        if self._entries >= self._max_entries and not self.has_unsynced_writes:
            self._file = None  # nothing more to write: the map, which keeps a descriptor of its own, is all it takes
        self._open_files.add(self, 1 + (self._file is not None))
        return mapped

    def _unmap(self) -> None:
        mapped, self._map = self._map, None
        if mapped is not None:
            mapped.close()

    def _opened(self, more_flags: int = 0) -> OpenFile:
        if self._is_closed:
            raise ClosedFile(f"{self.path} was closed or deleted")
        file = OpenFile(str(self.path), (os.O_RDWR if self.is_writable else os.O_RDONLY) | more_flags)
        self._file = file
        self._open_files.add(self, 1 + (self._map is not None))
        return file

    def _open_existing(self) -> None:
        file = self._opened()
        self._note_file_bytes(os.fstat(file.fd).st_size)
        self._entries = self._max_entries
        if self._entries and self._is_zero(self._entries - 1):
            self._leave_out_padding()

    def _create(self) -> None:
        if self.max_index_bytes < self.entry_bytes:
            raise ValueError(f"{self.path}: {self.max_index_bytes} bytes do not hold an entry of {self.entry_bytes}")
        file = self._opened(os.O_CREAT | os.O_EXCL)
        self._note_file_bytes(self.max_index_bytes - self.max_index_bytes % self.entry_bytes)
        os.ftruncate(file.fd, self._file_bytes)
        self._writes += 1

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
        self._entries = low

    def _is_zero(self, slot: int) -> bool:
        return self._entry_at(slot) == (0, 0)
