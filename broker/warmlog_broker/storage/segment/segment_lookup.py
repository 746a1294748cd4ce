"""Finding a batch, or a record, in one segment: by offset, and by time.

An index leads close to it, and a scan of headers does the rest. Index entries are not believed blindly: at the
position that an entry of the offset index gives there must be a batch that ends with the entry's offset, or a damaged
one; and an entry of the time index must give the largest timestamp of the batch that it names. An entry that fails
has the indexes rebuilt from the log.

A lookup by time ends within a batch, which has to be opened for it. The indexes belong to the thread that owns the log;
what they lead to is looked through by a `TimeSearch`, in another one.
"""

from collections.abc import Callable
from typing import NamedTuple

from warmlog_broker.storage.index.abstract_index import MAX_RELATIVE_OFFSET
from warmlog_broker.storage.index.offset_index import OffsetIndex, OffsetPosition
from warmlog_broker.storage.index.time_index import NO_TIMESTAMP, TimestampOffset
from warmlog_broker.storage.record.batch_scan import BatchPosition, DamagedLog, scan_headers
from warmlog_broker.storage.record.damage import is_intact, walk_around_damage
from warmlog_broker.storage.record.file_records import FileRecords, FileSlice
from warmlog_broker.storage.segment.segment_indexes import SegmentIndexes
from warmlog_protocol.batch import BatchHeader, NeedsMemory, RecordBatch, read_batch


class TimestampAndOffset(NamedTuple):
    """A record that was found by time."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class TimeSearch(NamedTuple):
    """What is left of a lookup by time once the indexes have said where to begin: the batches have to be opened.

    That takes time and memory, and any thread may do it: the slice holds the file open.
    """

    slice: FileSlice
    """From a batch boundary to the segment's end."""
    timestamp_ms: int
    starting_offset: int

    def run(
        self, max_decompressed_bytes: int, rest: Callable[[], None], memory_bytes: int
    ) -> TimestampAndOffset | None:
        """The first record from `starting_offset` on with `timestamp_ms` or a later one; None when there is none.

        NeedsMemory, and the search can be run again, when a batch and its decompressed body take more than
        `memory_bytes`. CorruptBatch for a batch that is damaged or grows beyond `max_decompressed_bytes`, also where
        the log was cut meanwhile (`slice.is_cut`). `rest` is called after some thousand records, and each batch.
        """
        file, start = self.slice.file, self.slice.position
        for header, position in scan_headers(file, file.path, start, start + self.slice.size_bytes):
            if header.max_timestamp_ms >= self.timestamp_ms and header.last_offset >= self.starting_offset:
                batch = self._open(header, position, memory_bytes, max_decompressed_bytes)
                found = batch.find_time(self.timestamp_ms, self.starting_offset, rest)
                if found is not None:
                    return TimestampAndOffset(*found, header.partition_leader_epoch)
            rest()
        return None

    def _open(self, header: BatchHeader, position: int, memory_bytes: int, max_decompressed_bytes: int) -> RecordBatch:
        batch_bytes = header.size_bytes
        if batch_bytes > memory_bytes:
            raise NeedsMemory(batch_bytes)
        data = self.slice.slice(position - self.slice.position, batch_bytes).pread()
        batch = read_batch(data, max_decompressed_bytes=max_decompressed_bytes)
        try:
            batch.unpack(memory_bytes - batch_bytes)
        except NeedsMemory as error:
            raise NeedsMemory(batch_bytes + error.size_bytes) from None
        return batch


class SegmentLookup:
    """The answers that one segment's log and indexes give together."""

    __slots__ = ("_base_offset", "_indexes", "_records")

    def __init__(self, base_offset: int, records: FileRecords, indexes: SegmentIndexes) -> None:
        self._base_offset = base_offset
        self._records = records
        self._indexes = indexes

    def find_batch(self, offset: int, *, defers_rebuild: bool = False) -> BatchPosition | None:
        """The first batch whose last offset is `offset` or greater; None when all lie below.

        Damage on the way is gone around; DamagedLog when `offset` lies in it. `defers_rebuild`: see `for_offsets`.
        """
        index = self._indexes.for_offsets(defers_rebuild=defers_rebuild)
        entry = OffsetPosition(self._base_offset, 0) if index is None else index.lookup(offset)
        position = entry.position
        try:
            found = self._records.search_for_offset(offset, position)
        except DamagedLog:
            return self._find_around(entry, index, offset)
        if found is None:
            is_wrong = index is not None and offset <= index.last_offset and index.entries > 0
        else:
            is_wrong = found.position == position > 0 and found.last_offset > entry.offset
        if is_wrong or (found is not None and not self._is_borne_out(found, offset)):
            return self._find_around(entry, index, offset)
        return found

    def next_offset(self) -> int:
        """The last offset + 1; the base offset of an empty segment."""
        index = self._indexes.for_offsets()
        next_offset = self._base_offset
        for header, _ in self._records.batches(0 if index is None else index.lookup(index.last_offset).position):
            next_offset = header.next_offset
        return next_offset

    def end_before(self, offset: int) -> int:
        """Where the last batch that ends at `offset` or before it ends (exclusive); the base offset when none does.

        DamagedLog when that cannot be told.
        """
        found = self.find_batch(offset)
        position = self._records.size_bytes if found is None else found.position
        end_offset = self._base_offset
        if position:
            index = self._indexes.for_offsets()
            start = 0 if index is None else index.lookup(offset - 1).position
            for header, _ in self._records.batches(start, position):
                end_offset = header.next_offset
        return end_offset

    def last_header_before(self, offset: int) -> BatchHeader | None:
        """The last batch that begins before `offset`; None when there is none. DamagedLog when that cannot be told."""
        index = self._indexes.for_offsets()
        last: BatchHeader | None = None
        for header, _ in self._records.batches(0 if index is None else index.lookup(offset - 1).position):
            if header.base_offset >= offset:
                break
            last = header
        return last

    def search_time(self, timestamp_ms: int, starting_offset: int) -> "TimeSearch":
        """For the first record from `starting_offset` on with `timestamp_ms` or a later one."""
        entry = self._time_entry(timestamp_ms)
        start = self._position_before(max(entry.offset, starting_offset))
        return TimeSearch(self._from(start), timestamp_ms, starting_offset)

    def search_largest(self, largest: TimestampOffset) -> "TimeSearch":
        """For the first record with the segment's largest timestamp, given that and the last offset of its batch."""
        return TimeSearch(self._from(self._position_before(largest.offset)), largest.timestamp_ms, self._base_offset)

    def _from(self, start: int) -> FileSlice:
        return self._records.slice(start, self._records.size_bytes - start)

    def largest_timestamp(self) -> TimestampOffset:
        """The largest timestamp: the last entry of the time index, or a later one in the log behind that entry."""
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
            return largest  # what lies behind damage keeps its time for itself
        return largest

    def _is_borne_out(self, found: BatchPosition, offset: int) -> bool:
        """Whether a batch has the offsets that it claims: the next one begins behind them.

        Where none follows, its CRC has to be right, unless it begins with the `offset` that is looked for. No CRC
        covers base offsets, and readers get batches unverified, so this is asked at each lookup.
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
        """Finds `offset` where log or `entry` cannot be believed; DamagedLog when it lies in what is damaged.

        Walks from the entry before it, or from the beginning, and has an index made anew that was wrong or does not
        lead behind the damage.
        """
        previous = OffsetPosition(self._base_offset, 0) if index is None else index.lookup(entry.offset - 1)
        starts = [previous.position, 0] if 0 < previous.position < entry.position else [0]
        for start in starts:
            damage, found = self._walk_to(offset, start)
            if found is not None or start == 0:
                break
        if index is not None and (damage is None or (found is not None and found.base_offset <= offset)):
            self._indexes.rebuild(f"{index.path} has {entry}, from which offset {offset} cannot be reached")
        if damage is not None and (found is None or found.base_offset > offset):
            if found is not None:
                damage.next_offset = found.base_offset
            raise damage
        return found

    def _walk_to(self, offset: int, start: int) -> tuple[DamagedLog | None, BatchPosition | None]:
        """The batch that holds `offset`, or the first after it, and the damage directly before that batch."""
        max_offset = self._base_offset + MAX_RELATIVE_OFFSET
        damage: DamagedLog | None = None
        position = start
        for step in walk_around_damage(self._records, start, self._base_offset, max_offset):
            header, position = step.header, step.position + step.header.size_bytes
            if header.last_offset >= offset:
                found = BatchPosition(header.base_offset, header.last_offset, step.position, header.size_bytes)
                return step.damage, found
        if position < self._records.size_bytes:
            damage = DamagedLog(self._records.path, position, "nothing intact follows")
        return damage, None

    def _position_before(self, offset: int) -> int:
        """A batch boundary at or before the batch that holds `offset`, and not far from it."""
        found = self.find_batch(offset)
        return self._records.size_bytes if found is None else found.position

    def _time_entry(self, timestamp_ms: int) -> TimestampOffset:
        """The time index's entry at or before `timestamp_ms`. One that its batch gives the lie is not believed."""
        index = self._indexes.for_times()
        if index is None:
            return TimestampOffset(NO_TIMESTAMP, self._base_offset)
        entry = index.lookup(timestamp_ms)
        if entry.timestamp_ms == NO_TIMESTAMP or self._max_timestamp_at(entry.offset) == entry.timestamp_ms:
            return entry
        self._indexes.rebuild(f"{index.path} has {entry}, and that batch has another max timestamp")
        return self._indexes.time.get().lookup(timestamp_ms)

    def _max_timestamp_at(self, offset: int) -> int | None:
        found = self.find_batch(offset)
        if found is None:
            return None
        header, _ = next(self._records.batches(found.position))
        return header.max_timestamp_ms
