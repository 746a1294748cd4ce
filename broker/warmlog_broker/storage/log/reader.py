"""Reading one log: what a reader may see of it, at each of the three bounds.

A read begins at the log start or after it, and ends at its bound: the log end, the high watermark, or the last stable
offset. Between the bound and the log end there is nothing to read, which is no error. An offset outside the log is.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

from warmlog_broker.storage.directory.leader_epochs import EpochEnd
from warmlog_broker.storage.index.abstract_index import CorruptIndex
from warmlog_broker.storage.index.transaction_index import AbortedTxn, CollectedAborted
from warmlog_broker.storage.io.open_files import ClosedFile
from warmlog_broker.storage.log.compaction import LogCompaction
from warmlog_broker.storage.log.local_log import LocalLog, ReadBound
from warmlog_broker.storage.segment.file_records import DamagedLog, FileSlice
from warmlog_broker.storage.segment.segment import LogSegment, SegmentRead
from warmlog_broker.storage.segment.segment_lookup import LargestSearch, TimeSearch, TimestampAndOffset
from warmlog_broker.storage.segment.segments import LogOffsetMetadata, LogSegments
from warmlog_broker.storage.segment.splits import Extent, find_extents
from warmlog_protocol.batch.header import MAGIC_ROWS, NO_OFFSET, NO_TIMESTAMP
from warmlog_protocol.errors import CorruptBatch, OffsetOutOfRange

NOTHING_ABORTED = CollectedAborted([], is_complete=False)


class FetchData(NamedTuple):
    """What a read found. The bytes begin with the batch that holds the start offset, and may end within a batch."""

    start: LogOffsetMetadata
    """The requested start offset, and where its batch begins."""
    slices: list[FileSlice]
    """None, or one."""
    size_bytes: int
    is_first_batch_incomplete: bool
    aborted: tuple[AbortedTxn, ...] = ()
    """Of a read of committed data: the aborted transactions that may have records in it, in the order of their ends."""
    next_offset: int = NO_OFFSET
    """Of a read that found nothing although it began before its end: where to continue."""


def _follows_rows(segments: LogSegments, offset: int) -> bool:
    """Whether the last batch before `offset` is one of rows, so that Kafka may have compacted what came after it.

    Warmlog's own compaction keeps the last batch of what it compacts.
    """
    segment = segments.floor(offset)
    while segment is not None:
        try:
            header = segment.lookup.last_before(offset)
        except DamagedLog:
            return False
        if header is not None:
            return header.magic == MAGIC_ROWS
        segment = segments.lower(segment.base_offset)
    return False


class LogReader:
    def __init__(self, local: LocalLog, compaction: LogCompaction) -> None:
        self._local = local
        self._bounds = local.bounds
        self._compaction = compaction

    def read(
        self, start_offset: int, max_bytes: int, *, bound: ReadBound = "high_watermark", min_one_batch: bool = True
    ) -> FetchData:
        """The batches from the one that holds `start_offset` on, below `bound`, from one segment.

        At most `max_bytes`, or with `min_one_batch` the first batch if it is larger. With the bound "committed" they
        come with the aborted transactions that they may belong to, which the reader has to leave out. Raises
        OffsetOutOfRange; DamagedLog, which names file, position and the next offset, if records are damaged or lost;
        LostIndex if an index must be rebuilt first.
        """
        local, bounds = self._local, self._bounds
        local.check_online()
        if not bounds.log_start_offset <= start_offset <= local.log_end_offset:
            raise OffsetOutOfRange(
                f"{local.key.directory_name}: offset {start_offset} is not between {bounds.log_start_offset} and "
                f"{local.log_end_offset}"
            )
        end = bounds.end_of(bound)
        if start_offset >= end.offset:
            return FetchData(end if start_offset == end.offset else local.locate(start_offset), [], 0, False)
        try:
            for damage in local.damage:
                if damage.first_offset <= start_offset < damage.next_offset:
                    raise damage.error()
            data = self.read_up_to(end, start_offset, max_bytes, min_one_batch=min_one_batch)
        except DamagedLog as error:
            is_known = error.next_offset != NO_OFFSET
            error.next_offset = min(error.next_offset, end.offset) if is_known else end.offset
            raise
        if bound != "committed" or not data.slices:
            return data
        return data._replace(aborted=self._aborted_in(data))

    def read_up_to(
        self, end: LogOffsetMetadata, start_offset: int, max_bytes: int, *, min_one_batch: bool
    ) -> FetchData:
        """As `read`, below `end`, without regard to the log start, aborted transactions and known damage.

        Empty at `end` if compaction may have removed all of the batches. Empty where the batch begins if the position
        of `end` is unknown or in an earlier segment. DamagedLog, with the offset at which to continue, if
        `start_offset` is damaged or lost.
        """
        segments = self._local.segments
        segment = segments.floor(start_offset) or segments.first
        if segment is not None and segment.base_offset > end.segment_base_offset:
            return FetchData(segments.locate(start_offset), [], 0, False)
        while segment is not None and segment.base_offset <= end.segment_base_offset:
            max_position = end.position if segment.base_offset == end.segment_base_offset else segment.size_bytes
            try:
                found = segment.read(
                    start_offset, max_bytes, max_position=max_position, min_one_batch=min_one_batch, defers_rebuild=True
                )
                if found is not None and (found.first_offset > start_offset or start_offset < segment.base_offset):
                    self._check_gap(segment, found, start_offset)
            except DamagedLog as error:
                following = segments.higher(segment.base_offset)
                if error.next_offset == NO_OFFSET and following is not None:
                    error.next_offset = following.base_offset
                raise
            if found is not None:
                start = LogOffsetMetadata(start_offset, segment.base_offset, found.position)
                if found.slice is not None:
                    return FetchData(start, [found.slice], found.slice.size_bytes, found.is_first_batch_incomplete)
                is_gap = start_offset < end.offset <= found.first_offset
                return FetchData(start, [], 0, False, next_offset=end.offset if is_gap else NO_OFFSET)
            segment = segments.higher(segment.base_offset)
        may_be_compacted = end.offset <= self._local.gaps.rows_up_to or not self.are_offsets_dense_from(start_offset)
        if start_offset < end.offset and not (may_be_compacted and _follows_rows(segments, start_offset)):
            last = segments.floor(start_offset) or segments.active
            reason = f"offset {start_offset} expected, nothing found before offset {end.offset}"
            raise DamagedLog(last.path, last.size_bytes, reason, end.offset)
        return FetchData(end, [], 0, False, next_offset=end.offset)

    def _check_gap(self, segment: LogSegment, found: SegmentRead, start_offset: int) -> None:
        """Raise DamagedLog if no batch holds `start_offset` and compaction cannot be the reason.

        This finds a damaged base offset, which no CRC covers, and a lost segment or end of one. Compaction leaves a
        segment where the log starts; `Gaps` says where Kafka may have compacted.
        """
        segments = self._local.segments
        header, _ = next(segment.records.batches(found.position))
        following, first = segments.higher(segment.base_offset), segments.first
        assert first is not None
        if segment is first and header.base_offset <= start_offset:  # its file may have a later name
            return
        if following is not None and header.last_offset >= following.base_offset:
            next_offset = following.base_offset
        elif header.base_offset < segment.base_offset and segment is not first:
            next_offset = segment.base_offset
        elif start_offset < first.base_offset or (
            self.are_offsets_dense_from(start_offset) and not self._local.gaps.allow(header)
        ):
            next_offset = header.base_offset
        else:
            return
        reason = f"offset {start_offset} expected, offsets {header.base_offset} to {header.last_offset} found"
        raise DamagedLog(segment.path, found.position, reason, next_offset)

    def _aborted_in(self, data: FetchData) -> tuple[AbortedTxn, ...]:
        """The aborted transactions with records in the bytes that a read has found, and perhaps a few after them.

        The marker of one may be any number of segments later, also above the last stable offset: indexes are searched
        until one says that all below the end of the bytes is decided. For a segment without an index this costs
        no more than a look at its directory, once.
        """
        segments, log_end_offset = self._local.segments, self._local.log_end_offset
        base_offset = data.start.segment_base_offset
        segment = segments.get(base_offset)
        assert segment is not None
        upper_bound_offset = segment.fetch_upper_bound_offset(data.start.position, data.size_bytes)
        if upper_bound_offset is None:
            following = segments.higher(base_offset)
            upper_bound_offset = log_end_offset if following is None else following.base_offset
        aborted: list[AbortedTxn] = []
        for candidate in segments.values(base_offset, log_end_offset + 1):
            found, is_complete = self._collect_aborted(candidate, data.start.offset, upper_bound_offset)
            aborted += found
            if is_complete:
                break
        return tuple(aborted)

    def _collect_aborted(self, segment: LogSegment, fetch_offset: int, upper_bound_offset: int) -> CollectedAborted:
        """What the segment's transaction index says, which is rebuilt if its file was damaged or removed."""
        index = segment.transactions
        if not index.is_verified:
            self._local.load_transaction_index(segment)
        if not index.entries:
            return NOTHING_ABORTED
        try:
            return index.collect_aborted(fetch_offset, upper_bound_offset)
        except (CorruptIndex, FileNotFoundError):
            index.invalidate()
            self._local.load_transaction_index(segment)
            return index.collect_aborted(fetch_offset, upper_bound_offset)

    def find_extents(self, start_offset: int, end_offset: int, target_bytes: int) -> Iterator[tuple[list[Extent], int]]:
        """Where `[start_offset, end_offset)`, as far as it may be read, can be cut: see `splits`."""
        self._local.check_online()
        end = self._bounds.end_of("high_watermark")
        if end_offset < end.offset:
            end = LogOffsetMetadata(end_offset)
        start_offset = min(max(start_offset, self._bounds.log_start_offset), end.offset)
        return find_extents(self._local.segments, start_offset, end, target_bytes)

    def learn_timestamps(self) -> Iterator[None]:
        """Read each largest timestamp that is not known yet; the caller may let others use the log between two.

        What cannot be read is left to the search, which raises.
        """
        for segment in list(self._local.segments):
            if not segment.knows_max_timestamp:
                with suppress(ClosedFile, CorruptBatch, OSError):
                    _ = segment.max_timestamp_ms
                yield

    def search_time(self, timestamp_ms: int, from_offset: int = 0) -> tuple[TimeSearch, int] | None:
        """A search for the first record from `from_offset` on with this or a later timestamp; None if there is none.

        The search is through one segment, and may be run in any thread. If it finds nothing, the returned offset is
        where to search next; if its slice was cut meanwhile, nothing that it found counts.
        """
        segments, (first_offset, end_offset) = self._local.segments, self._searchable(from_offset)
        for segment in segments.values(first_offset, end_offset):
            if segment.max_timestamp_ms >= timestamp_ms:
                following = segments.higher(segment.base_offset)
                next_offset = end_offset if following is None else following.base_offset
                return segment.lookup.search_time(timestamp_ms, first_offset), next_offset
        return None

    def search_largest(
        self, bound: ReadBound, searched: Collection[int], best: TimestampAndOffset | None
    ) -> tuple[TimeSearch | LargestSearch, int] | None:
        """A search for the first record below `bound` with the largest timestamp, in the most promising segment.

        `searched` are the base offsets of segments that are done, and `best` is what was found in them; None if no
        other segment can have a better one. The returned number is the segment's base offset.
        """
        first_offset, end_offset = self._searchable(0)
        end_offset = max(first_offset, min(end_offset, self._bounds.end_of(bound).offset))
        least = (-1, 0) if best is None else (best.timestamp_ms, -best.offset)
        candidates = {
            (segment.max_timestamp_ms, -segment.base_offset): segment
            for segment in self._local.segments.values(first_offset, end_offset)
            if segment.base_offset not in searched and segment.max_timestamp_ms >= 0
        }
        if not candidates or max(candidates) < least:
            return None
        segment = candidates[max(candidates)]
        return segment.lookup.search_largest(segment.max_timestamp, first_offset, end_offset), segment.base_offset

    def _searchable(self, from_offset: int) -> tuple[int, int]:
        self._local.check_online()
        end_offset = self._local.log_end_offset
        return min(max(from_offset, self._bounds.log_start_offset), end_offset), end_offset

    def earliest(self) -> TimestampAndOffset:
        """The log start offset with its epoch."""
        start = self._bounds.log_start_offset
        return TimestampAndOffset(NO_TIMESTAMP, start, self._local.epochs.epoch_at(start))

    def latest(self, bound: ReadBound = "high_watermark") -> TimestampAndOffset:
        """The end of what may be read, with the latest epoch."""
        return TimestampAndOffset(NO_TIMESTAMP, self._bounds.end_of(bound).offset, self._local.epochs.latest_epoch)

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """Where the batches of `epoch`, or of the newest known one below it, end. StorageError while offline."""
        self._local.check_online()
        return self._local.epochs.end_offset_for(epoch, self._local.log_end_offset)

    def divergence(self, offset: int, epoch: int) -> EpochEnd | None:
        """Where the log was cut since a batch of `epoch` was read from before `offset`; None if it has that batch.

        (-1, -1) if the epochs do not say where. Also None below the log start: a read there is out of range.
        """
        if epoch < 0:
            return None
        found = self._local.epochs.divergence(offset, epoch, self._local.log_end_offset)
        if found is None or offset < self._bounds.log_start_offset or self._is_of_epoch(offset - 1, epoch):
            return None
        return found

    def _is_of_epoch(self, offset: int, epoch: int) -> bool:
        """Whether there is a batch that holds `offset`, and says that it is of leader epoch `epoch`.

        No CRC covers that field, so a damaged one contradicts the file of epochs, and readers got it from here.
        """
        segment = self._local.segments.floor(offset)
        try:
            header = None if segment is None else segment.lookup.header_of(offset)
        except CorruptBatch:
            return False
        return header is not None and header.base_offset <= offset and header.partition_leader_epoch == epoch

    def are_offsets_dense_from(self, offset: int) -> bool:
        """Whether a gap after `offset` is damage, if `Gaps` do not allow it: our compaction cannot have left it."""
        local = self._local
        return not (
            local.factory.config.is_compacted or local.gaps.everywhere or offset < self._compaction.compacted_below
        )
