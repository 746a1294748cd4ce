"""Reading one log: what a reader may see of it, at each of the three bounds.

A read begins at the log start or behind it, and ends at its bound: the log end, the high watermark, or the last stable
offset. Between the bound and the log end there is nothing to read, which is no error. An offset outside the log is.

Finding things in the segments of one log: the bytes at an offset, its place, records by time.

These functions know segments and nothing of what a reader may see: `Log` says where it ends.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from warmlog_broker.storage.index.abstract_index import CorruptIndex
from warmlog_broker.storage.index.transaction_index import AbortedTxn, CollectedAborted
from warmlog_broker.storage.io.open_files import ClosedFile
from warmlog_broker.storage.log.bounds import Bounds, ReadBound
from warmlog_broker.storage.log.compaction import Compaction
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.record.batch_scan import UNKNOWN_OFFSET, DamagedLog
from warmlog_broker.storage.record.file_records import FileSlice
from warmlog_broker.storage.segment.offset_metadata import LogOffsetMetadata
from warmlog_broker.storage.segment.segment import LogSegment, SegmentRead, TimeSearch
from warmlog_broker.storage.segment.segments import LogSegments
from warmlog_broker.storage.segment.splits import Extent, find_extents
from warmlog_protocol.batch.header import MAGIC_COLUMNS, MAGIC_ROWS
from warmlog_protocol.errors import CorruptBatch, OffsetOutOfRange

NOTHING_ABORTED = CollectedAborted([], is_complete=False)


class FetchData(NamedTuple):
    """What a read found. The bytes begin with the batch that holds the start offset, and may end within a batch."""

    start: LogOffsetMetadata
    """The start offset that was asked for, and where its batch begins."""
    slices: list[FileSlice]
    """None, or one."""
    size_bytes: int
    is_first_batch_incomplete: bool
    aborted: tuple[AbortedTxn, ...] = ()
    """Of a read of committed data: the aborted transactions that may have records in it, in the order of their ends."""
    next_offset: int = UNKNOWN_OFFSET
    """Of a read that found nothing before its end although it began before that: where to go on."""


def read_segments(
    segments: LogSegments,
    start_offset: int,
    max_bytes: int,
    end: LogOffsetMetadata,
    *,
    min_one_batch: bool,
    has_dense_offsets: bool,
) -> FetchData:
    """The batches from the one that holds `start_offset` on, or the first after it, below `end`, from one segment.

    At most `max_bytes`, or with `min_one_batch` the first batch if it is larger. Nothing, at `end`, if compaction may
    have removed all of them; nothing, where the batch begins, when the place of `end` is not known or in an earlier
    segment. DamagedLog, with the offset at which to go on, if `start_offset` is damaged or lost.
    """
    segment = segments.floor(start_offset) or segments.first
    if segment is not None and segment.base_offset > end.segment_base_offset:
        return FetchData(segments.locate(start_offset), [], 0, False)
    while segment is not None and segment.base_offset <= end.segment_base_offset:
        max_position = end.position if segment.base_offset == end.segment_base_offset else segment.size_bytes
        try:
            found = segment.read(
                start_offset,
                max_bytes,
                max_position=max_position,
                min_one_batch=min_one_batch,
                defers_rebuild=True,
            )
            if found is not None and found.first_offset > start_offset:
                _check_gap(segments, segment, found, start_offset, has_dense_offsets)
        except DamagedLog as error:
            following = segments.higher(segment.base_offset)
            if error.next_offset == UNKNOWN_OFFSET and following is not None:
                error.next_offset = following.base_offset
            raise
        if found is not None:
            start = LogOffsetMetadata(start_offset, segment.base_offset, found.position)
            if found.slice is not None:
                return FetchData(start, [found.slice], found.slice.size_bytes, found.is_first_batch_incomplete)
            is_gap = start_offset < end.offset <= found.first_offset
            return FetchData(start, [], 0, False, next_offset=end.offset if is_gap else UNKNOWN_OFFSET)
        segment = segments.higher(segment.base_offset)
    if start_offset < end.offset and not _follows_rows(segments, start_offset):
        raise _lost_end(segments, start_offset, end)
    return FetchData(end, [], 0, False, next_offset=end.offset)


def aborted_in(
    segments: LogSegments, data: FetchData, log_end_offset: int, settle: Callable[[LogSegment], None]
) -> tuple[AbortedTxn, ...]:
    """The aborted transactions with records in the bytes that a read has found, and perhaps a few behind them.

    The marker of one may lie any number of segments later, also above the last stable offset: indexes are looked
    through until one says that all below the end of the bytes is decided. A segment without an index costs a look into
    memory; the first time, when `settle` is called for it, into its directory.
    """
    base_offset = data.start.segment_base_offset
    segment = segments.get(base_offset)
    assert segment is not None
    upper_bound_offset = segment.fetch_upper_bound_offset(data.start.position, data.size_bytes)
    if upper_bound_offset is None:
        following = segments.higher(base_offset)
        upper_bound_offset = log_end_offset if following is None else following.base_offset
    aborted: list[AbortedTxn] = []
    for candidate in segments.values(base_offset, log_end_offset + 1):
        found, is_complete = _collect(candidate, data.start.offset, upper_bound_offset, settle)
        aborted += found
        if is_complete:
            break
    return tuple(aborted)


def _collect(
    segment: LogSegment, fetch_offset: int, upper_bound_offset: int, settle: Callable[[LogSegment], None]
) -> CollectedAborted:
    """What the segment's transaction index says, which is made anew if somebody has damaged or removed its file."""
    index = segment.transactions
    if not index.is_verified:
        settle(segment)
    if not index.entries:
        return NOTHING_ABORTED
    try:
        return index.collect_aborted(fetch_offset, upper_bound_offset)
    except (CorruptIndex, FileNotFoundError):
        index.invalidate()
        settle(segment)
        return index.collect_aborted(fetch_offset, upper_bound_offset)


def _check_gap(
    segments: LogSegments, segment: LogSegment, found: SegmentRead, start_offset: int, has_dense_offsets: bool
) -> None:
    """DamagedLog when no batch holds `start_offset` and compaction, by Kafka if the next batch is rows, cannot be why.

    It notices a base offset that is damaged, which no CRC covers, and a segment, or the end of one, that was lost.
    Compaction leaves a segment where the log starts.
    """
    header, _ = next(segment.records.batches(found.position))
    following, first = segments.higher(segment.base_offset), segments.first
    assert first is not None
    if following is not None and header.last_offset >= following.base_offset:
        next_offset = following.base_offset
    elif start_offset < first.base_offset or (has_dense_offsets and header.magic == MAGIC_COLUMNS):
        next_offset = header.base_offset
    else:
        return
    reason = f"offset {start_offset} expected, offsets {header.base_offset} to {header.last_offset} found"
    raise DamagedLog(segment.path, found.position, reason, next_offset)


def _lost_end(segments: LogSegments, start_offset: int, end: LogOffsetMetadata) -> DamagedLog:
    """The error of a read from `start_offset` on after which the log has no batch."""
    segment = segments.floor(start_offset) or segments.active
    reason = f"offset {start_offset} expected, nothing found before offset {end.offset}"
    return DamagedLog(segment.path, segment.size_bytes, reason, end.offset)


def _follows_rows(segments: LogSegments, offset: int) -> bool:
    """Whether the last batch before `offset` is one of rows, so that Kafka may have compacted what came after it.

    Compaction here keeps the last batch of what it compacts.
    """
    segment = segments.floor(offset)
    while segment is not None:
        try:
            header = segment.lookup.last_header_before(offset)
        except DamagedLog:
            return False
        if header is not None:
            return header.magic == MAGIC_ROWS
        segment = segments.lower(segment.base_offset)
    return False


def learn_timestamps(segments: LogSegments) -> Iterator[None]:
    """See `Log.learn_timestamps`. What cannot be read is left to the lookup, which says so."""
    for segment in list(segments):
        if not segment.knows_max_timestamp:
            with suppress(ClosedFile, CorruptBatch, OSError):
                _ = segment.max_timestamp_ms
            yield


def search_time(
    segments: LogSegments, timestamp_ms: int, first_offset: int, end_offset: int
) -> tuple[TimeSearch, int] | None:
    """For the first record in `[first_offset, end_offset)` with `timestamp_ms` or a later timestamp: see `Log`."""
    for segment in segments.values(first_offset, end_offset):
        if segment.max_timestamp_ms >= timestamp_ms:
            following = segments.higher(segment.base_offset)
            next_offset = end_offset if following is None else following.base_offset
            return segment.lookup.search_time(timestamp_ms, first_offset), next_offset
    return None


def search_max_timestamp(segments: LogSegments, first_offset: int, end_offset: int) -> tuple[TimeSearch, int] | None:
    """For the first record with the largest timestamp, in the segments that hold `[first_offset, end_offset)`."""
    candidates = segments.values(first_offset, end_offset)
    if not candidates:
        return None
    search = max(candidates, key=lambda segment: segment.max_timestamp_ms).search_max_timestamp()
    return None if search is None else (search, end_offset)


class LogReads:
    """The reads of one log; `Log` says what they raise."""

    __slots__ = ("_bounds", "_compaction", "_local")

    def __init__(self, local: LocalLog, bounds: Bounds, compaction: Compaction) -> None:
        self._local = local
        self._bounds = bounds
        self._compaction = compaction

    def read(self, start_offset: int, max_bytes: int, bound: ReadBound, min_one_batch: bool) -> FetchData:
        """See `Log.read`."""
        local, bounds = self._local, self._bounds
        if local.failure:
            raise local.offline()
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
            data = read_segments(
                local.segments,
                start_offset,
                max_bytes,
                end,
                min_one_batch=min_one_batch,
                has_dense_offsets=self.are_offsets_dense_from(start_offset),
            )
        except DamagedLog as error:
            is_known = error.next_offset != UNKNOWN_OFFSET
            error.next_offset = min(error.next_offset, end.offset) if is_known else end.offset
            raise
        if bound != "committed" or not data.slices:
            return data
        return data._replace(aborted=aborted_in(local.segments, data, local.log_end_offset, local.settle_transactions))

    def find_extents(self, start_offset: int, end_offset: int, target_bytes: int) -> Iterator[tuple[list[Extent], int]]:
        """See `Log.find_extents`."""
        self._local.check_online()
        end = self._bounds.end_of("high_watermark")
        if end_offset < end.offset:
            end = LogOffsetMetadata(end_offset)
        start_offset = min(max(start_offset, self._bounds.log_start_offset), end.offset)
        return find_extents(self._local.segments, start_offset, end, target_bytes)

    def is_of_epoch(self, offset: int, epoch: int) -> bool:
        """Whether there is a batch that holds `offset`, and says that it is of leader epoch `epoch`.

        No CRC covers that field, so one that is damaged contradicts the file of epochs, and readers have it from here.
        """
        segment = self._local.segments.floor(offset)
        try:
            found = None if segment is None else segment.translate_offset(offset)
            if segment is None or found is None or found.base_offset > offset:
                return False
            header, _ = next(segment.records.batches(found.position))
        except CorruptBatch:
            return False
        return header.partition_leader_epoch == epoch

    def are_offsets_dense_from(self, offset: int) -> bool:
        """See `Log.are_offsets_dense_from`."""
        return (
            self._local.factory.config.has_dense_offsets
            and not self._local.has_gaps
            and offset >= self._compaction.compacted_below
        )
