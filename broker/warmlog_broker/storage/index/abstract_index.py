"""Common parts of offset index and time index: a sorted file of fixed-size entries, searched from its warm end.

The file has entries and nothing else. While its segment is active it is preallocated to `segment.index.bytes` (a sparse
file); it is trimmed to its entries when the segment becomes inactive and when it is closed. The key of an entry (offset
or timestamp) is greater than that of the entry before, the value at least as great.

**Writing** is `pwrite`, so that a full disk is an error; writing through a map would turn it into SIGBUS. The last
entries, at most 64, stay in memory and are written together, since a write for each would cost a twentieth of the time
of an append. Lookups find them in memory; other processes see them once they are written. While a segment is active,
the keys of the latest 1,000 to 2,000 entries also stay in memory, as most lookups are for these.

**Reading** goes through a read-only map of the whole file up to the known number of entries, so preallocated zeros
never count. Touching a map beyond the end of a file that was cut is SIGBUS, so the map is closed first. Tools read the
file into memory instead, because another process may cut it at any time.

**A crash** leaves a preallocated file without the entries that were in memory. Its number of entries is then a guess
(those before the zeros), which is good enough for tools; `sanity_check` refuses such a file, and the segment rebuilds
it from its log.

**Durability**: entries can be rebuilt from the log, so they are not synced while the segment is active, and OpenFiles
may close an index at any time. They are synced when the segment has become inactive (see LogSegment).
"""

import errno
import mmap
import os
from abc import abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import ClassVar, Generic, NamedTuple, NoReturn, Self, TypeVar

from warmlog_broker.storage.index.search import Probe, SlotBounds, warm_cold_search
from warmlog_broker.storage.io.open_files import ManagedFile, OpenFiles
from warmlog_protocol.errors import WarmlogError

MAX_RELATIVE_OFFSET = 2**31 - 1
MAX_UNWRITTEN = 64
"""Entries that may be in memory before they are written together."""
MAX_RECENT = 2048
"""Keys that may be in memory."""

_BLOCK_BYTES = 4096

Buffer = mmap.mmap | bytearray | bytes


class CorruptIndex(WarmlogError):
    """An index file is not as it was written: it must be rebuilt from the log."""


class IndexOffsetOverflow(WarmlogError):
    """An offset is below the base offset, or too far above it for the four bytes of an entry."""


class InvalidIndexOffset(WarmlogError):
    """An entry would break the order of its index: a bug, or offsets of a log that go back."""


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
    """What the index is mostly searched by; strictly increasing."""
    value: ClassVar[Field]
    offset_field: ClassVar[Field]
    """The one of the two that is an offset, minus the base offset."""

    def __init__(
        self,
        path: Path,
        base_offset: int,
        *,
        open_files: OpenFiles,
        max_index_bytes: int = -1,
        is_writable: bool = True,
        entries: int | None = None,
    ) -> None:
        """Open the index at `path`, or create it with room for `max_index_bytes`.

        Every slot of an existing file is an entry, except the zeros after the last one. Read-only (for tools), a
        missing file is FileNotFoundError and nothing is created. With `entries` that many were on disk before a crash:
        they are kept, whatever follows them, and there is room for more; CorruptIndex if they are not there any more.
        """
        super().__init__(path, open_files, is_writable=is_writable)
        self.base_offset = base_offset
        self.max_index_bytes = max_index_bytes
        self._unpack = self.layout.unpack_from
        self.is_padded = False
        """Whether the file was found with zeros after its entries: left by a crash, or being written by a broker."""
        self._map: mmap.mmap | bytes | None = None
        self.entries = 0
        self._written = 0
        """How many of the entries are in the file; the others are in `_unwritten`."""
        self._unwritten = bytearray()
        self._recent_keys = array("q")
        """Keys of the last entries added here: all unwritten ones and others, at most MAX_RECENT."""
        self.file_bytes = 0
        self.max_entries = 0
        try:
            if entries is None:
                file = self._opened()
                self._note_file_bytes(file.size_bytes)
                self.entries = self._written = self.max_entries
                if self.entries and self._is_zero(self.entries - 1):
                    self._leave_out_padding()
            else:
                self._resume(entries)
        except FileNotFoundError:
            if not is_writable or entries is not None:
                raise
            self._create()
        self._entries_changed()

    @property
    def is_full(self) -> bool:
        return self.entries >= self.max_entries

    @property
    def size_bytes(self) -> int:
        """Size of the entries, without the room after them."""
        return self.entries * self.entry_bytes

    @property
    def written_bytes(self) -> int:
        """Size of the entries that are in the file."""
        return self._written * self.entry_bytes

    @property
    def mapped(self) -> mmap.mmap | None:
        """The current map, if any, for `madvise`. The owner may close it at any time: others must not read it."""
        return self._map if isinstance(self._map, mmap.mmap) else None

    @property
    def is_lost(self) -> bool:
        """Whether written entries cannot be read any more: the file is gone, or shorter than it was.

        A mapped file that was only unlinked stays readable until it is closed. Call this before a lookup: touching the
        map of a file that was cut is SIGBUS. It also marks the file as used.
        """
        mapped = self._map
        if isinstance(mapped, mmap.mmap):
            self._open_files.touch(self)
            return mapped.size() < self.file_bytes
        if mapped is None and self._written:
            try:
                self._remap()
            except (FileNotFoundError, CorruptIndex):
                return True
        return False

    # Entries

    def entry(self, slot: int) -> Entry:
        """The entry in `slot`, counted from 0; ValueError if there is none."""
        self._check_open()
        if not 0 <= slot < self.entries:
            raise ValueError(f"{self.path} has {self.entries} entries: there is no entry {slot}")
        return self._entry(slot)

    def __iter__(self) -> Iterator[Entry]:
        return map(self.entry, range(self.entries))

    def sanity_check(self) -> None:
        """CorruptIndex for zeros after the entries, a partial last entry, and one that is not the greatest."""
        if self.is_padded:
            raise CorruptIndex(f"{self.path}: {self.entries} entries, then zeros: it was not closed")
        if self.file_bytes % self.entry_bytes:
            raise CorruptIndex(f"{self.path}: {self.file_bytes} bytes are not a multiple of {self.entry_bytes}")
        if self.entries:
            self._check_ends(self._entry(0), self._entry(self.entries - 1))

    @abstractmethod
    def _check_ends(self, first: Entry, last: Entry) -> None:
        """CorruptIndex unless these can be the first and the last entry, which may be the same."""

    @abstractmethod
    def _to_entry(self, key: int, value: int) -> Entry:
        """The entry with these two numbers in the file."""

    def _entry(self, slot: int) -> Entry:
        at = (slot - self._written) * self.entry_bytes
        if at >= 0:
            return self._to_entry(*self._unpack(self._unwritten, at))
        return self._to_entry(*self._unpack(self._map or self._remap(), slot * self.entry_bytes))

    # Size

    def resize(self, size_bytes: int) -> bool:
        """Set the size of the file, rounded down to whole entries; False if it has that size already."""
        size_bytes -= size_bytes % self.entry_bytes
        if size_bytes < self.size_bytes:
            raise ValueError(f"{self.path}: {self.entries} entries do not fit into {size_bytes} bytes")
        if size_bytes == self.file_bytes:
            return False
        self._set_file_bytes(size_bytes)
        return True

    def trim(self) -> None:
        self.write_out()
        self.resize(self.size_bytes)
        del self._recent_keys[:]

    def truncate(self) -> None:
        """Drop all entries and keep the room."""
        self._truncate_to_entries(0)

    def reset(self) -> None:
        """Drop all entries and make room for `max_index_bytes`, whatever was in the file."""
        self._check_max_index_bytes()
        self.truncate()
        self.resize(self.max_index_bytes)

    def truncate_to(self, offset: int) -> None:
        """Drop every entry whose offset is `offset` or greater."""
        target, read = offset - self.base_offset, self.probe(self.offset_field)
        kept = self._bounds(target, self.offset_field).lower + 1
        while kept and read(kept - 1) >= target:
            kept -= 1
        if kept < self.entries:
            self._truncate_to_entries(kept)

    def _truncate_to_entries(self, entries: int) -> None:
        """Keep the first `entries` and the room; the other slots become zeros again."""
        self._check_writable()
        kept_in_memory = max(0, entries - self._written)
        del self._unwritten[kept_in_memory * self.entry_bytes :]
        del self._recent_keys[max(0, entries - self.entries + len(self._recent_keys)) :]
        self.entries = entries
        self._written = min(self._written, entries)
        self._entries_changed()
        file_bytes, kept_bytes = self.file_bytes, self._written * self.entry_bytes
        if not kept_in_memory and file_bytes > kept_bytes:
            self._set_file_bytes(kept_bytes)
            self._set_file_bytes(file_bytes)

    @abstractmethod
    def _entries_changed(self) -> None:
        """Called after entries were found or dropped: update what is derived from the last one."""

    def _set_file_bytes(self, file_bytes: int) -> None:
        self._check_writable()
        file = self.open_file()
        self._unmap()
        os.ftruncate(file.fd, file_bytes)
        self._note_file_bytes(file_bytes)
        self.writes += 1

    def _note_file_bytes(self, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.max_entries = file_bytes // self.entry_bytes

    # Writing

    def write_out(self) -> None:
        """Write the entries that are in memory. If the disk refuses they stay there, and OSError is raised."""
        entries = self._unwritten
        if not entries:
            return
        file = self._file or self._opened()
        written = os.pwrite(file.fd, entries, self._written * self.entry_bytes)
        if written != len(entries):
            raise OSError(errno.ENOSPC, f"{written} of {len(entries)} bytes written", str(self.path))
        self._written = self.entries
        self._unwritten = bytearray()
        self.writes += 1
        if len(self._recent_keys) > MAX_RECENT - MAX_UNWRITTEN:
            del self._recent_keys[: -self.warm_entries]

    def _add(self, entry: bytes, key: int) -> None:
        """Add `entry`, which has `key`. OSError if unwritten entries cannot be written: it is not added then."""
        if self.entries - self._written >= MAX_UNWRITTEN:
            self.write_out()
        self._unwritten += entry
        self._recent_keys.append(key)
        self.entries += 1

    def _refuse_offset(self, offset: int) -> NoReturn:
        raise IndexOffsetOverflow(f"{self.path}: offset {offset} is out of the range of base offset {self.base_offset}")

    def _refuse_entry(self) -> NoReturn:
        self._check_writable()
        raise ValueError(f"{self.path} is full: {self.entries} entries")

    # Search

    def _floor(self, target: int) -> Entry | None:
        """The last entry whose key is `target` or less; None if there is none.

        This is `warm_cold_search` for the lower bound of a key, inline: it reads the same slots in a third of the time.
        Recent entries are found by their keys in memory, which takes a third of that and reads one slot.
        """
        keys = self._recent_keys
        if keys and keys[0] <= target:
            return self._entry(self.entries - len(keys) + bisect_right(keys, target) - 1)
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
                _ = buffer[(low + high) // 2 * size]  # to keep its page warm
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

    def _bounds(self, target: int, field: Field) -> SlotBounds:
        """The slots of the entries whose `field` is next to `target`."""
        return warm_cold_search(self.probe(field), self.entries, self.warm_entries, target)

    def probe(self, field: Field) -> Probe:
        """A function that reads `field` of the entry in a slot, valid until the index is changed."""
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

    def let_go(self) -> None:
        """Close file and map. Entries in memory stay there."""
        self._map = None
        self._file = None

    def close(self) -> None:
        """Trim and unmap; nothing is synced. Closing again is harmless."""
        if not self.is_closed and self.is_writable:
            self.trim()
        self.close_handles()

    def close_handles(self) -> None:
        self._unmap()
        super().close_handles()
        self.entries = self._written = self.max_entries = 0
        self._unwritten = bytearray()
        del self._recent_keys[:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_count(self) -> int:
        return (self._file is not None) + (self._map is not None)

    def _mapped(self) -> mmap.mmap | bytes:
        mapped = self._map
        if mapped is None:
            return self._remap()
        self._open_files.touch(self)
        return mapped

    def _remap(self) -> mmap.mmap | bytes:
        file, file_bytes = self.open_file(), self.file_bytes
        if not self.is_writable:
            content = os.pread(file.fd, file_bytes, 0)
            self._check_length(len(content))
            self._map = content
            return content
        self._check_length(file.size_bytes)
        mapped = self._map = mmap.mmap(file.fd, file_bytes, access=mmap.ACCESS_READ)
        if self._written >= self.max_entries and not self.has_unsynced_writes:
            self._file = None  # nothing more to write, and the map keeps a descriptor of its own
        self._open_files.add(self, self._open_count())
        return mapped

    def _check_length(self, file_bytes: int) -> None:
        if file_bytes < self.file_bytes:
            raise CorruptIndex(f"{self.path} is shorter than {self.file_bytes} bytes, which it had before")

    def _unmap(self) -> None:
        mapped, self._map = self._map, None
        if isinstance(mapped, mmap.mmap):
            mapped.close()

    def _resume(self, entries: int) -> None:
        file, kept_bytes = self._opened(), entries * self.entry_bytes
        file_bytes = file.size_bytes
        if kept_bytes > file_bytes:
            raise CorruptIndex(f"{self.path}: {entries} entries expected, {file_bytes} bytes found")
        if not _is_hole_from(file.fd, kept_bytes):
            os.ftruncate(file.fd, kept_bytes)
            file_bytes = kept_bytes
        wanted_bytes = max(kept_bytes, self.max_index_bytes - self.max_index_bytes % self.entry_bytes)
        if file_bytes != wanted_bytes:
            os.ftruncate(file.fd, wanted_bytes)
        self._note_file_bytes(wanted_bytes)
        self.entries = self._written = entries
        self.writes += 1

    def _create(self) -> None:
        self._check_max_index_bytes()
        file = self._opened(os.O_CREAT | os.O_EXCL)
        self._note_file_bytes(self.max_index_bytes - self.max_index_bytes % self.entry_bytes)
        os.ftruncate(file.fd, self.file_bytes)
        self.writes += 1

    def _check_max_index_bytes(self) -> None:
        if self.max_index_bytes < self.entry_bytes:
            raise ValueError(f"{self.path}: {self.max_index_bytes} bytes cannot hold an entry of {self.entry_bytes}")

    def _leave_out_padding(self) -> None:
        """Find the last entry before the zeros. A file of zeros alone has one entry: the base offset at position 0."""
        if self.entries == 1:
            return
        self.is_padded = True
        self.entries = self._written = bisect_left(range(self.entries), True, key=self._is_zero)

    def _is_zero(self, slot: int) -> bool:
        return self._unpack(self._mapped(), slot * self.entry_bytes) == (0, 0)


def _is_hole_from(descriptor: int, position: int) -> bool:
    """Whether the file has nothing but zeros from `position` on, as far as a look at its blocks can tell."""
    block_end = position + -position % _BLOCK_BYTES
    if os.pread(descriptor, block_end - position, position).strip(b"\0"):
        return False
    try:
        os.lseek(descriptor, block_end, os.SEEK_DATA)
    except OSError as error:
        return error.errno == errno.ENXIO
    return False
