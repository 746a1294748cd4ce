"""Finding a batch, or a record, in one segment: by offset, and by time.

An index leads close to it, and a scan of headers does the rest. Index entries are not believed blindly: at the
position that an entry of the offset index gives there must be a batch that ends with the entry's offset, or a damaged
one; and an entry of the time index must give the largest timestamp of the batch that it names. An entry that fails
has the indexes rebuilt from the log.
"""

from typing import NamedTuple

from warmlog_broker.log.abstract_index import MAX_RELATIVE_OFFSET
from warmlog_broker.log.batch_scan import BatchPosition, DamagedLog
from warmlog_broker.log.damage import is_intact, walk_around_damage
from warmlog_broker.log.file_records import FileRecords
from warmlog_broker.log.offset_index import OffsetIndex, OffsetPosition
from warmlog_broker.log.segment_indexes import SegmentIndexes
from warmlog_broker.log.time_index import NO_TIMESTAMP, TimestampOffset
from warmlog_protocol.batch import BatchHeader, RecordBatch, read_batch


class TimestampAndOffset(NamedTuple):
    """A record that was found by time."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


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

    def find_time(self, timestamp_ms: int, starting_offset: int) -> TimestampAndOffset | None:
        """The first record from `starting_offset` on with `timestamp_ms` or a later one; None when there is none."""
        entry = self._time_entry(timestamp_ms)
        start = self._position_before(max(entry.offset, starting_offset))
        for header, position in self._records.batches(start):
            if header.max_timestamp_ms >= timestamp_ms and header.last_offset >= starting_offset:
                batch = read_batch(self._records.read(position, header.size_bytes))
                found = _first_record_from(batch, timestamp_ms, starting_offset)
                if found is not None:
                    return found
        return None

    def find_largest(self, largest: TimestampOffset) -> TimestampAndOffset | None:
        """The first record with the segment's largest timestamp, given that and the last offset of its batch."""
        if largest.timestamp_ms < 0:
            return None
        for header, position in self._records.batches(self._position_before(largest.offset)):
            if header.max_timestamp_ms == largest.timestamp_ms:
                batch = read_batch(self._records.read(position, header.size_bytes))
                return _first_record_from(batch, largest.timestamp_ms, self._base_offset)
        return None

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


def _first_record_from(batch: RecordBatch, timestamp_ms: int, starting_offset: int) -> TimestampAndOffset | None:
    """The first record of `batch` that is as late and as far on as both say."""
    for offset, record_timestamp_ms in zip(batch.offsets(), batch.timestamps_ms(), strict=True):
        if record_timestamp_ms >= timestamp_ms and offset >= starting_offset:
            return TimestampAndOffset(record_timestamp_ms, offset, batch.header.partition_leader_epoch)
    return None
