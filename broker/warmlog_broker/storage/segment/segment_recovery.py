"""Check a segment after a crash: find the valid batches, and cut what follows them.

Bytes above the recovery point may never have been synced, and the disk may have written blocks in any order: some may
be old, torn or zeros. So the log ends at the first batch that is not valid: its size, CRC or offset is wrong, or the
caller's `on_batch` (producer state, leader epochs) refuses it. The bytes that are cut can be kept in a file for
inspection, without zeros at their end from a preallocation or a hole.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from warmlog_broker.storage.index.abstract_index import MAX_RELATIVE_OFFSET
from warmlog_broker.storage.io.open_files import OpenFile
from warmlog_broker.storage.record.batch_scan import DamagedLog, ReadBatch
from warmlog_broker.storage.record.file_records import FileRecords
from warmlog_broker.storage.segment.segment_indexes import IndexBuilder, SegmentIndexes
from warmlog_protocol.batch.header import CONTROL_BIT, BatchHeader
from warmlog_protocol.errors import CorruptBatch, InvalidRecord

OnBatch = Callable[[BatchHeader, int, ReadBatch], None]
"""Called with a valid batch, its position, and a function that reads it. Refuses with CorruptBatch or InvalidRecord."""

StepOver = Callable[[DamagedLog], int | None]
"""Called with what is not valid. Returns the position after it to continue at, or None to cut the log there."""

_COPY_BYTES = 1024 * 1024


class SegmentRecovery(NamedTuple):
    valid_bytes: int
    cut_bytes: int
    reason: str
    """Why the log was cut at `valid_bytes`; empty if it was not."""
    kept_in: Path | None
    """Where the cut bytes are; None if they were not to be kept, or were all zeros."""
    has_control_batches: bool = False
    """If so, the transaction index may need entries."""


def check_and_index(
    records: FileRecords,
    indexes: SegmentIndexes,
    on_batch: OnBatch,
    *,
    index_interval_bytes: int,
    step_over: StepOver | None,
    keep_cut_bytes_in: Path | None,
) -> tuple[SegmentRecovery, IndexBuilder]:
    """Implements `LogSegment.recover`; also returns the index builder, which has the state after the last batch."""
    indexes.reset()
    builder = IndexBuilder(indexes, index_interval_bytes)
    found_bytes = records.size_bytes
    valid_bytes, reason, attributes = walk_valid_batches(
        records,
        indexes.base_offset,
        indexes.base_offset + MAX_RELATIVE_OFFSET + 1,
        on_batch,
        lambda header, position: builder.add(header.last_offset, header.max_timestamp_ms, position, header.size_bytes),
        None if step_over is None else lambda error: _step_over_indexed(builder, step_over(error)),
    )
    kept_in = None
    if valid_bytes < found_bytes and keep_cut_bytes_in is not None:
        kept_in = keep_bytes(records.open_file(), valid_bytes, found_bytes, keep_cut_bytes_in)
    cut_bytes = records.truncate_to(valid_bytes)
    builder.finish()
    return SegmentRecovery(valid_bytes, cut_bytes, reason, kept_in, attributes & CONTROL_BIT != 0), builder


def _step_over_indexed(builder: IndexBuilder, position: int | None) -> int | None:
    """Give the batch at `position`, after damage, an index entry: the batches before do not lead there."""
    builder.must_index_next_batch()
    return position


def walk_valid_batches(
    records: FileRecords,
    first_offset: int,
    end_offset: int,
    on_batch: OnBatch,
    index_batch: Callable[[BatchHeader, int], None],
    step_over: StepOver | None = None,
) -> tuple[int, str, int]:
    """Call both functions for each batch until the first that is not valid.

    Returns how many bytes are valid, why the next ones are not, and the union of all attributes. Offsets must be in
    `[first_offset, end_offset)`. With `step_over` the walk may continue after what is not valid.
    """
    valid_bytes = attributes = 0
    while True:
        try:
            for header, position, read_batch in records.checked_batches(valid_bytes):
                if header.base_offset < first_offset or header.last_offset >= end_offset:
                    reason = f"offsets {header.base_offset} to {header.last_offset} are outside of this segment"
                    raise DamagedLog(records.path, position, reason)
                on_batch(header, position, read_batch)
                index_batch(header, position)
                attributes |= header.attributes
                valid_bytes = position + header.size_bytes
        except (CorruptBatch, InvalidRecord) as error:
            continue_at = step_over(error) if step_over is not None and isinstance(error, DamagedLog) else None
            if continue_at is None:
                return valid_bytes, str(error), attributes
            valid_bytes = continue_at
        else:
            return valid_bytes, "", attributes


def keep_bytes(file: OpenFile, start: int, end: int, copy: Path) -> Path | None:
    """Copy `[start, end)` of `file`, without zeros at its end, to the new file `copy`, and sync that.

    None, and no file, if there are only zeros. FileExistsError if `copy` exists.
    """
    end = _without_zeros(file, start, end)
    if end == start:
        return None
    with copy.open("xb") as target:
        while start < end:
            piece = os.pread(file.fd, min(_COPY_BYTES, end - start), start)
            if not piece:
                break
            target.write(piece)
            start += len(piece)
        target.flush()
        os.fsync(target.fileno())
    return copy


def _without_zeros(file: OpenFile, start: int, end: int) -> int:
    """The end of the last byte in `[start, end)` that is not zero."""
    while end > start:
        piece_start = max(start, end - _COPY_BYTES)
        piece = os.pread(file.fd, end - piece_start, piece_start)
        rest = piece.rstrip(b"\0")
        if rest:
            return piece_start + len(rest)
        end = piece_start
    return start
