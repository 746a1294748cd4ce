"""`.timeindex`: from timestamps to offsets, with at most as many entries as the offset index.

An entry is 12 bytes, big-endian::

    i64 timestamp          milliseconds: the largest of the segment so far; strictly increasing
    i32 relative offset    last offset of the batch that holds it, minus the segment's base offset; never decreasing

With base offset 45, timestamp 1700000000000 in the batch that ends with offset 51 is ``0000018bcfe56800 00000006``. All
records before that batch have this timestamp or a smaller one. So a lookup returns the last entry at or before a time,
and the log is scanned from its batch on.

The last entry of an inactive segment is its largest timestamp; a slot is reserved for it, so the index is full one
entry early. Any other entry may be missing, and so may the file, which is then rebuilt. `sanity_check` detects damage.
"""

from struct import Struct
from typing import ClassVar, NamedTuple

from warmlog_broker.storage.index.abstract_index import (
    MAX_RELATIVE_OFFSET,
    AbstractIndex,
    CorruptIndex,
    Field,
    InvalidIndexOffset,
)
from warmlog_broker.storage.index.search import WARM_BYTES
from warmlog_protocol.batch.header import NO_TIMESTAMP

_ENTRY = Struct(">qi")
_new_tuple = tuple.__new__


class TimestampOffset(NamedTuple):
    """An entry: `timestamp_ms` is the largest up to the batch that ends with `offset`. (-1, base offset) is none."""

    timestamp_ms: int
    offset: int


class TimeIndex(AbstractIndex[TimestampOffset]):
    """Where to start looking for a time. The module describes the file, AbstractIndex its handling."""

    entry_bytes: ClassVar[int] = 12
    warm_entries: ClassVar[int] = WARM_BYTES // 12
    layout: ClassVar[Struct] = _ENTRY
    key: ClassVar[Field] = Field(Struct(">q").unpack_from, 0)
    value: ClassVar[Field] = Field(Struct(">i").unpack_from, 8)
    offset_field: ClassVar[Field] = value
    last_entry: TimestampOffset
    """The last entry; (-1, base offset) without any."""

    @property
    def is_full(self) -> bool:
        """Whether only the slot for the last entry, which is added when the segment becomes inactive, is left."""
        return self.entries >= self.max_entries - 1

    def maybe_append(self, timestamp_ms: int, offset: int, *, is_last: bool = False) -> None:
        """Add an entry if `timestamp_ms` is greater than the last one's. `is_last` may use the reserved slot.

        ValueError if the index is full or time goes back, InvalidIndexOffset if the offset does; OSError from the disk,
        if it is time to write entries.
        """
        last_timestamp_ms, last_offset = self.last_entry
        if (self.entries >= self.max_entries - 1 and not is_last) or not self.is_writable:
            self._refuse_entry()
        if offset < last_offset and self.entries:
            raise InvalidIndexOffset(f"{self.path}: offset {offset} is before {last_offset}")
        if timestamp_ms < last_timestamp_ms and self.entries:
            raise ValueError(f"{self.path}: timestamp {timestamp_ms} is before {last_timestamp_ms}")
        if timestamp_ms > last_timestamp_ms:
            if self.entries >= self.max_entries:
                self._refuse_entry()
            relative = offset - self.base_offset
            if not 0 <= relative <= MAX_RELATIVE_OFFSET:
                self._refuse_offset(offset)
            self._add(_ENTRY.pack(timestamp_ms, relative), timestamp_ms)
            self.last_entry = _new_tuple(TimestampOffset, (timestamp_ms, offset))

    def lookup(self, timestamp_ms: int) -> TimestampOffset:
        """The last entry whose timestamp is `timestamp_ms` or less; (-1, base offset) if there is none."""
        return self._floor(timestamp_ms) or TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def _check_ends(self, first: TimestampOffset, last: TimestampOffset) -> None:
        if last.offset < self.base_offset or last.offset < first.offset or first.timestamp_ms < 0:
            raise CorruptIndex(f"{self.path}: the first entry is {first}, the last {last}")
        if self.entries > 1 and last.timestamp_ms <= first.timestamp_ms:
            raise CorruptIndex(
                f"{self.path}: last timestamp {last.timestamp_ms} is not greater than the first, {first.timestamp_ms}"
            )

    def _to_entry(self, key: int, value: int) -> TimestampOffset:
        return _new_tuple(TimestampOffset, (key, self.base_offset + value))

    def _entries_changed(self) -> None:
        empty = TimestampOffset(NO_TIMESTAMP, self.base_offset)
        self.last_entry = self._entry(self.entries - 1) if self.entries else empty
