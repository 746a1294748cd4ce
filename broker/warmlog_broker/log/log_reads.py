"""Reading one log: what a reader may see of it, at each of the three bounds.

A read begins at the log start or behind it, and ends at its bound: the log end, the high watermark, or the last stable
offset. Between the bound and the log end there is nothing to read, which is no error. An offset outside the log is.
"""

from collections.abc import Iterator

from warmlog_broker.log.batch_scan import UNKNOWN_OFFSET, DamagedLog
from warmlog_broker.log.bounds import Bounds, ReadBound
from warmlog_broker.log.compaction import Compaction
from warmlog_broker.log.local_log import LocalLog
from warmlog_broker.log.offset_metadata import LogOffsetMetadata
from warmlog_broker.log.reading import FetchData, aborted_in, read_segments
from warmlog_broker.log.splitting import Stretch, find_stretches
from warmlog_protocol.errors import CorruptBatch, OffsetOutOfRange


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

    def find_stretches(
        self, start_offset: int, end_offset: int, target_bytes: int
    ) -> Iterator[tuple[list[Stretch], int]]:
        """See `Log.find_stretches`."""
        self._local.check_online()
        end = self._bounds.end_of("high_watermark")
        if end_offset < end.offset:
            end = LogOffsetMetadata(end_offset)
        start_offset = min(max(start_offset, self._bounds.log_start_offset), end.offset)
        return find_stretches(self._local.segments, start_offset, end, target_bytes)

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
