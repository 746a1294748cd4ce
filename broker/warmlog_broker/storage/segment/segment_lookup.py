"""Find a batch by offset, or a record by time, in one segment.

An index gives a position before the target, and a scan of headers does the rest. Index entries are verified: at the
position of an offset index entry there must be a batch that ends with the entry's offset, or a damaged one; a time
index entry must have the largest timestamp of its batch. A wrong entry makes the segment rebuild its indexes.

A lookup by time must open a batch. The thread that owns the log looks into the indexes; a `TimeSearch` reads the
batches in another thread.
"""

from collections.abc import Callable
from typing import NamedTuple

from warmlog_broker.storage.index.offset_index import OffsetIndex, OffsetPosition
from warmlog_broker.storage.index.time_index import TimestampOffset
from warmlog_broker.storage.segment.file_records import BatchPosition, DamagedLog, FileRecords, FileSlice, chain
from warmlog_broker.storage.segment.scan import Damage, is_intact, scan
from warmlog_broker.storage.segment.segment_indexes import SegmentIndexes, place_in_segment
from warmlog_protocol.batch import BatchHeader, NeedsMemory, RecordBatch, read_batch
from warmlog_protocol.batch.header import NO_TIMESTAMP


class TimestampAndOffset(NamedTuple):
    """The result of a lookup by time."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class TimeSearch(NamedTuple):
    """The part of a lookup by time after the indexes: open the batches, in any thread.

    The slice holds the file open.
    """

    slice: FileSlice
    """From a batch boundary on."""
    timestamp_ms: int
    starting_offset: int

    def run(
        self, max_decompressed_bytes: int, rest: Callable[[], None], memory_bytes: int
    ) -> TimestampAndOffset | None:
        """Find the first record from `starting_offset` on with `timestamp_ms` or a later one; None if there is none.

        NeedsMemory, after which the search can be run again, if a batch and its decompressed body take more than
        `memory_bytes`. CorruptBatch for a batch that is damaged, exceeds `max_decompressed_bytes`, or was cut meanwhile
        (`slice.is_cut`). `rest` is called after some thousand records, and after each batch.
        """
        file, start = self.slice.file, self.slice.position
        for header, position in chain(file, file.path, start, start + self.slice.size_bytes):
            if header.max_timestamp_ms >= self.timestamp_ms and header.last_offset >= self.starting_offset:
                batch = open_batch(self.slice, header, position, memory_bytes, max_decompressed_bytes)
                found = batch.find_time(self.timestamp_ms, self.starting_offset, rest)
                if found is not None:
                    return TimestampAndOffset(*found, header.partition_leader_epoch)
            rest()
        return None


class LargestSearch(NamedTuple):
    """As `TimeSearch`, for the first record with the largest timestamp from `starting_offset` to the slice's end."""

    slice: FileSlice
    starting_offset: int

    def run(
        self, max_decompressed_bytes: int, rest: Callable[[], None], memory_bytes: int
    ) -> TimestampAndOffset | None:
        """Look at the headers only, except for the first batch: some of its records may be before the start."""
        file, start = self.slice.file, self.slice.position
        end = start + self.slice.size_bytes
        largest_ms, at = NO_TIMESTAMP, start
        for header, position in chain(file, file.path, start, end):
            time_ms = header.max_timestamp_ms if header.record_count else NO_TIMESTAMP  # compaction may have emptied it
            if header.base_offset < self.starting_offset and time_ms > largest_ms:
                batch = open_batch(self.slice, header, position, memory_bytes, max_decompressed_bytes)
                time_ms = batch.largest_time(self.starting_offset, rest)
            if time_ms > largest_ms:
                largest_ms, at = time_ms, position
            rest()
        if largest_ms == NO_TIMESTAMP:
            return None
        search = TimeSearch(self.slice.slice(at - start, end - at), largest_ms, self.starting_offset)
        return search.run(max_decompressed_bytes, rest, memory_bytes)


def open_batch(
    piece: FileSlice, header: BatchHeader, position: int, memory_bytes: int, max_decompressed_bytes: int
) -> RecordBatch:
    """Read and unpack the batch at `position`; raises what `TimeSearch.run` does."""
    batch_bytes = header.size_bytes
    if batch_bytes > memory_bytes:
        raise NeedsMemory(batch_bytes)
    data = piece.slice(position - piece.position, batch_bytes).pread()
    batch = read_batch(data, max_decompressed_bytes=max_decompressed_bytes)
    try:
        batch.unpack(memory_bytes - batch_bytes)
    except NeedsMemory as error:
        raise NeedsMemory(batch_bytes + error.size_bytes) from None
    return batch


class SegmentLookup:
    __slots__ = ("_base_offset", "_indexes", "_records")

    def __init__(self, base_offset: int, records: FileRecords, indexes: SegmentIndexes) -> None:
        self._base_offset = base_offset
        self._records = records
        self._indexes = indexes

    def find_batch(self, offset: int, *, defers_rebuild: bool = False) -> BatchPosition | None:
        """The first batch whose last offset is `offset` or greater; None if there is none.

        Damage on the way is skipped; DamagedLog if `offset` is in it. `defers_rebuild`: see `for_offsets`.
        """
        index = self._indexes.for_offsets(defers_rebuild=defers_rebuild)
        entry = OffsetPosition(self._base_offset, 0) if index is None else index.lookup(offset)
        try:
            found = self._records.search_for_offset(offset, entry.position)
        except DamagedLog:
            return self._find_around(entry, index, offset)
        if found is None:  # right, unless the index has an entry for `offset` or a later one
            is_plausible = index is None or offset > index.last_offset or not index.entries
        elif found.position == entry.position > 0 and found.last_offset > entry.offset:
            is_plausible = False  # the entry's batch ends with another offset than the entry says
        else:
            is_plausible = self._is_confirmed(found, offset)
        return found if is_plausible else self._find_around(entry, index, offset)

    def header_of(self, offset: int) -> BatchHeader | None:
        """The header of the batch that `find_batch` finds, which may begin after `offset`."""
        found = self.find_batch(offset)
        return None if found is None else next(self._records.batches(found.position))[0]

    def last_before(self, offset: int) -> BatchHeader | None:
        """The last batch that ends before `offset`; None if there is none. DamagedLog if damage hides it."""
        found = self.find_batch(offset)
        index = self._indexes.for_offsets()
        start = 0 if index is None else index.lookup(offset - 1).position
        last: BatchHeader | None = None
        for header, _ in self._records.batches(start, None if found is None else found.position):
            last = header
        return last

    def search_time(self, timestamp_ms: int, starting_offset: int) -> TimeSearch:
        """A search for the first record, by offset, from `starting_offset` on with `timestamp_ms` or a later one."""
        entry = self._time_entry(timestamp_ms)
        return TimeSearch(self._from_batch_of(max(entry.offset, starting_offset)), timestamp_ms, starting_offset)

    def search_largest(
        self, largest: TimestampOffset, first_offset: int, end_offset: int
    ) -> TimeSearch | LargestSearch:
        """A search for the first record with the largest timestamp in `[first_offset, end_offset)`.

        `largest` is the segment's, whose batch may be outside, in part, or have lost its records to compaction.
        """
        header = self.header_of(largest.offset)
        is_inside = header is not None and first_offset <= header.base_offset and header.next_offset <= end_offset
        if header is not None and header.record_count and is_inside:
            return TimeSearch(self._from_batch_of(largest.offset), largest.timestamp_ms, first_offset)
        piece, rest = self._from_batch_of(first_offset), self._from_batch_of(end_offset)
        return LargestSearch(piece.slice(0, rest.position - piece.position), first_offset)

    def largest_timestamp(self) -> TimestampOffset:
        """The largest timestamp: the last entry of the time index, or a later one in the batches after it."""
        time_index, offset_index = self._indexes.for_times(), self._indexes.for_offsets()
        if time_index is None or offset_index is None:
            largest, start = TimestampOffset(NO_TIMESTAMP, self._base_offset), 0
        else:
            largest = time_index.last_entry
            start = offset_index.lookup(largest.offset).position
        try:
            for header, _ in self._records.batches(start):
                if header.max_timestamp_ms > largest.timestamp_ms:
                    largest = TimestampOffset(header.max_timestamp_ms, header.last_offset)
        except DamagedLog:
            return largest  # timestamps after the damage are unknown
        return largest

    def _is_confirmed(self, found: BatchPosition, offset: int) -> bool:
        """Whether a batch has the offsets that it claims, by the base offset of the next one.

        If there is no next one, its CRC must be right, unless it begins with `offset`. No CRC covers base offsets, and
        readers get batches unverified, so each lookup checks this.
        """
        records = self._records
        next_base_offset = records.base_offset_at(found.position + found.size_bytes)
        if next_base_offset is not None:
            return next_base_offset > found.last_offset
        if found.base_offset == offset:
            return True
        try:
            header, _ = next(records.batches(found.position))
        except DamagedLog:
            return False
        return is_intact(records, header, found.position)

    def _find_around(self, entry: OffsetPosition, index: OffsetIndex | None, offset: int) -> BatchPosition | None:
        """Find `offset` although log or `entry` are wrong; DamagedLog if it is in a damaged range.

        Walks from the previous entry or from the start. An index that was wrong, or does not lead past the damage, is
        rebuilt.
        """
        previous = OffsetPosition(self._base_offset, 0) if index is None else index.lookup(entry.offset - 1)
        starts = [previous.position, 0] if 0 < previous.position < entry.position else [0]
        for start in starts:
            damage, found = self._walk_to(offset, start)
            if found is not None:
                break
        if damage is None or (found is not None and found.base_offset <= offset):
            if index is not None:
                self._indexes.rebuild(f"{index.path} has {entry}, from which offset {offset} cannot be reached")
            return found
        if found is not None:
            damage.next_offset = found.base_offset
        raise damage

    def _walk_to(self, offset: int, start: int) -> tuple[DamagedLog | None, BatchPosition | None]:
        """The batch that holds `offset`, or the first one after it, and the damage directly before that batch."""
        damage: DamagedLog | None = None
        for found in scan(self._records, start, place_in_segment(self._base_offset)):
            if isinstance(found, Damage):
                damage = found.cause()
                continue
            header, position = found
            if header.last_offset >= offset:
                return damage, BatchPosition(header.base_offset, header.last_offset, position, header.size_bytes)
            damage = None
        return damage, None

    def _from_batch_of(self, offset: int) -> FileSlice:
        """From the batch that holds `offset`, or the next one, to the end of the segment."""
        found = self.find_batch(offset)
        start = self._records.size_bytes if found is None else found.position
        return self._records.slice(start, self._records.size_bytes - start)

    def _time_entry(self, timestamp_ms: int) -> TimestampOffset:
        """The time index's entry at or before `timestamp_ms`. If it does not match its batch, the index is rebuilt."""
        index = self._indexes.for_times()
        if index is None:
            return TimestampOffset(NO_TIMESTAMP, self._base_offset)
        entry = index.lookup(timestamp_ms)
        if entry.timestamp_ms == NO_TIMESTAMP:
            return entry
        header = self.header_of(entry.offset)
        if header is not None and header.max_timestamp_ms == entry.timestamp_ms:
            return entry
        self._indexes.rebuild(f"{index.path} has {entry}, but that batch has another max timestamp")
        return self._indexes.time.get().lookup(timestamp_ms)
