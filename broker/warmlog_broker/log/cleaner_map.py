"""Reading the dirty part of a log into a map from key to last offset: the first half of a compaction."""

from collections.abc import Iterable, Sequence

from warmlog_broker.log.cleaner_sources import CleaningPace, SourceSegment
from warmlog_broker.log.cleaner_transactions import TransactionWalk
from warmlog_broker.log.offset_map import OffsetMap
from warmlog_broker.log.transaction_index import AbortedTxn
from warmlog_protocol.batch import Columns, RecordBatch


def fill_map(
    sources: Iterable[SourceSegment],
    first_dirty_offset: int,
    offsets: OffsetMap,
    aborted: Iterable[AbortedTxn],
    pace: CleaningPace,
    max_decompressed_bytes: int,
) -> int:
    """Puts the keys of `sources`, the dirty segments in order, into `offsets`; returns the offset up to which it went.

    That is the end of the last segment, or, once the map is full, the end of the last batch that fitted. Aborted data
    is left out: it overwrites nothing. CorruptBatch where a batch is damaged.
    """
    transactions = TransactionWalk(aborted)
    offsets.update_latest_offset(first_dirty_offset - 1)
    for source in sources:
        for batch in source.batches(pace, max_decompressed_bytes):
            if batch.header.is_control:
                transactions.end(batch.header, batch.control_type)
            elif not transactions.is_aborted(batch.header) and not _put(batch, first_dirty_offset, offsets):
                return offsets.latest_offset + 1
            if batch.last_offset >= first_dirty_offset:
                offsets.update_latest_offset(batch.last_offset)
            pace.after(batch.size_bytes)
        offsets.update_latest_offset(source.next_base_offset - 1)
    return offsets.latest_offset + 1


def _put(batch: RecordBatch, first_dirty_offset: int, offsets: OffsetMap) -> bool:
    """Puts in the batch's records from `first_dirty_offset` on; False, and none of them, when there is no room."""
    columns = batch.columns
    if batch.last_offset < first_dirty_offset or not batch.record_count or columns.key_lengths is None:
        return True
    if not offsets.has_room_for(batch.record_count):
        return False
    for part in columns.parts():
        _put_part(part, batch.base_offset, first_dirty_offset, offsets)
    return True


def _put_part(columns: Columns, base_offset: int, first_dirty_offset: int, offsets: OffsetMap) -> None:
    keys: Sequence[bytes | None] = columns.key_list()
    key_offsets: Sequence[int] = [base_offset + delta for delta in columns.offset_delta_list()]
    if key_offsets[0] < first_dirty_offset or None in keys:
        found = [
            (key, offset)
            for key, offset in zip(keys, key_offsets, strict=True)
            if key is not None and offset >= first_dirty_offset
        ]
        if not found:
            return
        keys, key_offsets = zip(*found, strict=True)
    offsets.put_all(keys, key_offsets)  # type: ignore[arg-type]  # none of them is None
