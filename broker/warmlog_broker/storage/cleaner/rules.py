"""What compaction leaves of one batch.

The record with the greatest offset of each key stays, and everything above what the map of offsets covers. Records
without a key and data of aborted transactions are removed. Tombstones stay until the delete horizon of their batch,
which the first pass that meets them sets: a reader that starts from the beginning and takes at most
`delete.retention.ms` sees every deletion.

A batch without records is removed too, unless its header is still needed: the last batch of an active producer says
what its sequence is, and the last batch of the cleaned part says where that ends. "Last" is the last one on disk:
batches after it that were not flushed may be lost, and the sequence then continues from there.
"""

from collections.abc import Iterable, Mapping
from operator import ge
from typing import NamedTuple

from warmlog_broker.storage.cleaner.aborted_data import TransactionWalk
from warmlog_broker.storage.cleaner.offset_map import OffsetMap
from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_protocol.batch import BatchHeader, Columns, RecordBatch, empty_batch, filter_batch

NO_DATA = -1
UNKNOWN_DATA = -2


class LastRecord(NamedTuple):
    """What an active producer wrote last that is on disk."""

    last_offset: int
    """Of its last data; NO_DATA if there were only markers, UNKNOWN_DATA if all that is remembered may be lost."""
    epoch: int


class RetainedBatch(NamedTuple):
    batch: bytes | memoryview | None
    """None if nothing stays; the batch's own buffer if it stays as it is."""
    kept_records: int
    aborted: AbortedTxn | None = None
    """The aborted transaction that this marker ends, if data of it was there until now."""
    dropped_without_key: int = 0
    """How many of the removed records had no key."""


class CompactionRules:
    """Decides on the batches of one log, in order."""

    def __init__(
        self,
        offsets: OffsetMap,
        *,
        aborted: Iterable[AbortedTxn],
        last_records: Mapping[int, LastRecord],
        end_offset: int,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        """`end_offset` is where the cleanable part of the log ends; `aborted` are all of the log."""
        self._transactions = TransactionWalk(aborted)
        self._offsets = offsets
        self._last_records = last_records
        self._end_offset = end_offset
        self._now_ms = now_ms
        self._new_horizon_ms = now_ms + delete_retention_ms

    def apply(self, batch: RecordBatch) -> RetainedBatch:
        """What stays of `batch`. CorruptBatch if its body is malformed."""
        header = batch.header
        if header.is_control:
            return self._apply_to_marker(batch)
        if self._transactions.is_aborted(header):
            return self._emptied(batch)
        if header.base_offset > self._offsets.latest_offset:
            return RetainedBatch(batch.buffer, header.record_count)
        if not header.record_count:
            return self._emptied(batch)
        columns = batch.columns
        keep: list[bool] = []
        without_key = 0
        for part in columns.parts():
            mask = self._mask(header.base_offset, part)
            without_key += _count_dropped_without_key(part, mask)
            keep += mask
        kept_records = sum(keep)
        if not kept_records:
            return self._emptied(batch)._replace(dropped_without_key=without_key)
        horizon_ms = None
        tombstones = zip(keep, columns.value_lengths, strict=True) if columns.value_lengths.zeros() else ()
        if columns.delete_horizon_ms is None and any(kept and not length for kept, length in tombstones):
            horizon_ms = self._new_horizon_ms
        if kept_records == columns.count and horizon_ms is None:
            return RetainedBatch(batch.buffer, kept_records)
        filtered = filter_batch(batch, keep, delete_horizon_ms=horizon_ms)
        return RetainedBatch(filtered, kept_records, dropped_without_key=without_key)

    def _apply_to_marker(self, batch: RecordBatch) -> RetainedBatch:
        is_idle, ended = self._transactions.end(batch.header, batch.control_type)
        if not is_idle:
            return RetainedBatch(batch.buffer, batch.record_count, ended)
        if not batch.record_count:
            return self._emptied(batch)
        horizon_ms = batch.columns.delete_horizon_ms
        if horizon_ms is None:
            marked = filter_batch(batch, [True] * batch.record_count, delete_horizon_ms=self._new_horizon_ms)
            return RetainedBatch(marked, batch.record_count)
        if horizon_ms <= self._now_ms:
            return self._emptied(batch)
        return RetainedBatch(batch.buffer, batch.record_count)

    def _mask(self, base_offset: int, columns: Columns) -> list[bool]:
        """Which records stay."""
        offsets = [base_offset + delta for delta in columns.offset_delta_list()]
        if columns.key_lengths is None:
            latest = self._offsets.latest_offset
            return [offset > latest for offset in offsets]
        keys = columns.key_list()
        has_null_keys = columns.key_lengths.zeros() > 0
        last_offsets = self._offsets.offsets_of([key or b"" for key in keys] if has_null_keys else keys)  # type: ignore[arg-type]
        keep = list(map(ge, offsets, last_offsets))
        if has_null_keys:
            latest = self._offsets.latest_offset
            keep = [
                kept and (key is not None or offset > latest)
                for kept, key, offset in zip(keep, keys, offsets, strict=True)
            ]
        horizon_ms = columns.delete_horizon_ms
        if horizon_ms is not None and horizon_ms <= self._now_ms and columns.value_lengths.zeros():
            keep = [kept and length > 0 for kept, length in zip(keep, columns.value_lengths, strict=True)]
        return keep

    def _emptied(self, batch: RecordBatch) -> RetainedBatch:
        header = batch.header
        if not self._is_kept_empty(header):
            return RetainedBatch(None, 0)
        return RetainedBatch(empty_batch(header) if header.record_count else batch.buffer, 0)

    def _is_kept_empty(self, header: BatchHeader) -> bool:
        """Whether the header of a batch without records stays.

        It does at the end of the cleaned part, to say where that ends; and if a start without snapshots needs it to
        learn the sequence and epoch of an active producer, whose next batch would be refused or appended twice.
        """
        if header.next_offset == self._end_offset:
            return True
        last = self._last_records.get(header.producer_id) if header.has_producer else None
        if last is None:  # no active producer
            return False
        if last.last_offset == NO_DATA:  # only markers of its epoch mention it
            return header.is_control and header.producer_epoch == last.epoch
        if last.last_offset == UNKNOWN_DATA:  # any data batch may turn out to be its last one
            return not header.is_control
        return header.last_offset == last.last_offset


def _count_dropped_without_key(columns: Columns, keep: list[bool]) -> int:
    key_lengths = columns.key_lengths
    if key_lengths is None:
        return keep.count(False)
    if not key_lengths.zeros():
        return 0
    return sum(not kept and not length for kept, length in zip(keep, key_lengths, strict=True))
