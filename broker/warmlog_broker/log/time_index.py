"""`.timeindex`: from timestamps to offsets. About as many entries as the offset index, fewer when time stands still.

An entry is 12 bytes, big-endian::

    i64 timestamp          milliseconds: the largest of the segment so far; strictly increasing
    i32 relative offset    last offset of the batch that holds it, minus the segment's base offset; never decreasing

With base offset 45, timestamp 1700000000000 in the batch that ends with offset 51 is ``0000018bcfe56800 00000006``. An
entry says: all records before that batch have this timestamp or a smaller one. So a lookup gives the last entry at or
before the time that is looked for, and from its batch on the log is scanned.

The last entry of a segment that is no longer active is its largest timestamp; a slot is kept free for it, so the
index is full one entry early. Missing: any other entry, and the file (it is rebuilt). Damage: see `sanity_check`.
"""

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import ClassVar, NamedTuple

from warmlog_broker.log.abstract_index import WARM_BYTES, AbstractIndex, CorruptIndex, Field, InvalidIndexOffset
from warmlog_broker.log.open_files import OpenFiles

_ENTRY = Struct(">qi")
_unpack_entry = _ENTRY.unpack_from
_new_tuple = tuple.__new__

NO_TIMESTAMP = -1


class TimestampOffset(NamedTuple):
    """An entry: `timestamp_ms` is the largest up to the batch that ends with `offset`. (-1, base offset) means none."""

    timestamp_ms: int
    offset: int


class TimeIndex(AbstractIndex):
    """From which batch on to look for a time. The module describes the file, AbstractIndex how it is handled."""

    entry_bytes: ClassVar[int] = 12
    warm_entries: ClassVar[int] = WARM_BYTES // 12
    key: ClassVar[Field] = Field(Struct(">q").unpack_from, 0)
    value: ClassVar[Field] = Field(Struct(">i").unpack_from, 8)

    def __init__(
        self,
        path: Path,
        base_offset: int,
        *,
        open_files: OpenFiles,
        max_index_bytes: int = -1,
        is_writable: bool = True,
    ) -> None:
        super().__init__(
            path, base_offset, open_files=open_files, max_index_bytes=max_index_bytes, is_writable=is_writable
        )
        self._last = TimestampOffset(NO_TIMESTAMP, base_offset)
        self._entries_changed()

    @property
    def is_full(self) -> bool:
        """Whether only the slot for the last entry, made when the segment becomes inactive, is left."""
        return self._entries >= self._max_entries - 1

    @property
    def last_entry(self) -> TimestampOffset:
        """The last entry; (-1, base offset) when there is none."""
        return self._last

    def maybe_append(self, timestamp_ms: int, offset: int, *, is_last: bool = False) -> None:
        """Adds an entry if `timestamp_ms` is greater than the last one's. `is_last` may use the slot that is kept free.

        ValueError when the index is full or time goes back, InvalidIndexOffset when the offset does.
        """
        last_timestamp_ms, last_offset = self._last
        if (self._entries >= self._max_entries - 1 and not is_last) or not self.is_writable:
            self._refuse_entry()
        if offset < last_offset and self._entries:
            raise InvalidIndexOffset(f"{self.path}: offset {offset} lies before {last_offset}")
        if timestamp_ms < last_timestamp_ms and self._entries:
            raise ValueError(f"{self.path}: timestamp {timestamp_ms} lies before {last_timestamp_ms}")
        if timestamp_ms > last_timestamp_ms:
            if self._entries >= self._max_entries:
                self._refuse_entry()
            self._write_entry(_ENTRY.pack(timestamp_ms, self._relative(offset)))
            self._last = _new_tuple(TimestampOffset, (timestamp_ms, offset))

    def lookup(self, timestamp_ms: int) -> TimestampOffset:
        """The last entry whose timestamp is `timestamp_ms` or less; (-1, base offset) when there is none."""
        slot = self._lower_bound_slot(timestamp_ms, self.key)
        if slot < 0:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        return self._entry(slot)

    def entry(self, slot: int) -> TimestampOffset:
        """The entry in `slot`, counted from 0; ValueError when there is none."""
        self._check_slot(slot)
        return self._entry(slot)

    def __iter__(self) -> Iterator[TimestampOffset]:
        return map(self.entry, range(self._entries))

    def truncate_to(self, offset: int) -> None:
        slot = self._lower_bound_slot(offset - self.base_offset, self.value)
        while slot >= 0 and self._entry(slot).offset >= offset:
            slot -= 1
        if slot + 1 < self._entries:
            self._truncate_to_entries(slot + 1)

    def sanity_check(self) -> None:
        """CorruptIndex for a last entry that is not the greatest, zeros behind the entries, and a broken last entry."""
        if self.is_padded:
            raise CorruptIndex(f"{self.path}: {self._entries} entries, then zeros: it was not closed")
        if self._file_bytes % self.entry_bytes:
            raise CorruptIndex(f"{self.path}: {self._file_bytes} bytes are not a multiple of {self.entry_bytes}")
        if not self._entries:
            return
        first, last = self._entry(0), self._entry(self._entries - 1)
        if last.offset < self.base_offset or last.offset < first.offset or first.timestamp_ms < 0:
            raise CorruptIndex(f"{self.path}: the first entry is {first}, the last {last}")
        if self._entries > 1 and last.timestamp_ms <= first.timestamp_ms:
            raise CorruptIndex(
                f"{self.path}: last timestamp {last.timestamp_ms} is not greater than the first, {first.timestamp_ms}"
            )

    def _entry(self, slot: int) -> TimestampOffset:
        timestamp_ms, relative = _unpack_entry(self._map or self._remap(), slot * 12)
        return _new_tuple(TimestampOffset, (timestamp_ms, self.base_offset + relative))

    def _entries_changed(self) -> None:
        self._last = (
            self._entry(self._entries - 1) if self._entries else TimestampOffset(NO_TIMESTAMP, self.base_offset)
        )
