"""`.index`: from offsets to positions in the `.log` file, about one entry for each `index.interval.bytes` of log.

An entry is 8 bytes, big-endian::

    i32 relative offset    last offset of the batch, minus the segment's base offset; strictly increasing
    i32 position           where that batch begins in the .log file

With base offset 45, the batches that end with offset 51 at position 0 and with 52 at position 69 are ``00000006
00000000 00000007 00000045``. A lookup returns the last entry at or before an offset; from there the log is scanned. If
there is none, the log is scanned from its start.

Any entry may be missing, and so may the file, which is then rebuilt. `sanity_check` detects damage; the segment detects
a wrong position when it finds another batch there, or none.
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

_ENTRY = Struct(">ii")
_INT = Struct(">i")
_new_tuple = tuple.__new__


class OffsetPosition(NamedTuple):
    """An entry: the batch that begins at `position` has `offset` as its last offset."""

    offset: int
    position: int


class OffsetIndex(AbstractIndex[OffsetPosition]):
    """Positions of the batches of a segment. The module describes the file, AbstractIndex its handling."""

    entry_bytes: ClassVar[int] = 8
    warm_entries: ClassVar[int] = WARM_BYTES // 8
    layout: ClassVar[Struct] = _ENTRY
    key: ClassVar[Field] = Field(_INT.unpack_from, 0)
    offset_field: ClassVar[Field] = key
    value: ClassVar[Field] = Field(_INT.unpack_from, 4)
    last_offset: int
    """The offset of the last entry; the base offset without any."""

    def append(self, offset: int, position: int) -> None:
        """Add the batch at `position` that ends with `offset`.

        ValueError if the index is full, InvalidIndexOffset unless `offset` is greater than the last one; OSError from
        the disk, if it is time to write entries.
        """
        if self.entries >= self.max_entries or not self.is_writable:
            self._refuse_entry()
        if offset <= self.last_offset and self.entries:
            raise InvalidIndexOffset(f"{self.path}: offset {offset} does not follow {self.last_offset}")
        relative = offset - self.base_offset
        if not 0 <= relative <= MAX_RELATIVE_OFFSET:
            self._refuse_offset(offset)
        self._add(_ENTRY.pack(relative, position), relative)
        self.last_offset = offset

    def lookup(self, offset: int) -> OffsetPosition:
        """The last entry whose offset is `offset` or less; (base offset, 0) if there is none."""
        return self._floor(offset - self.base_offset) or OffsetPosition(self.base_offset, 0)

    def fetch_upper_bound(self, position: int, size_bytes: int) -> OffsetPosition | None:
        """The first entry whose position is `position + size_bytes` or greater: an upper bound of what was fetched."""
        slot = self._bounds(position + size_bytes, self.value).upper
        return None if slot < 0 else self._entry(slot)

    def _check_ends(self, first: OffsetPosition, last: OffsetPosition) -> None:
        if last.offset < self.base_offset or last.position < first.position or first.position < 0:
            raise CorruptIndex(f"{self.path}: the first entry is {first}, the last {last}")
        if self.entries > 1 and last.offset <= first.offset:
            raise CorruptIndex(f"{self.path}: last offset {last.offset} is not greater than the first, {first.offset}")

    def _to_entry(self, key: int, value: int) -> OffsetPosition:
        return _new_tuple(OffsetPosition, (self.base_offset + key, value))

    def _entries_changed(self) -> None:
        self.last_offset = self._entry(self.entries - 1).offset if self.entries else self.base_offset
