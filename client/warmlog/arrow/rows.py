"""Batches of rows (magic 2, see `warmlog_protocol.batch.rows`) as columns, many rows at a time.

A loop finds where each row ends; the integers of all rows are then read together. Rare forms (record headers, integers
of 64 bits, few or large rows) and damage are left to the decoder that goes row by row and reports errors: it takes four
times as long.
"""

import sys
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from warmlog.arrow.int_array import pack_array
from warmlog_protocol.batch import MAGIC_ROWS, BatchHeader, Columns, IntColumn, RecordBatch

_LEAST_ROWS = 64
"""Below it, the calls of numpy take longer than going row by row."""
_LARGE_ROW_BYTES = 4096
_MOST_BITS = 56
_MAX_DATA_BYTES = (1 << 31) - 1
"""What int32 offsets can address."""
_MAX_TIME = 1 << 62


class _IsRare(Exception):
    """These rows are left to the other decoder."""


def columns_in(batch: RecordBatch) -> Columns:
    """Return the records of `batch` by column. CorruptBatch, which names the offsets, if the body is malformed."""
    header = batch.header
    if header.magic == MAGIC_ROWS and header.record_count >= _LEAST_ROWS:
        unpacked = batch.unpack(sys.maxsize)
        if len(unpacked) <= min(header.record_count * _LARGE_ROW_BYTES, _MAX_DATA_BYTES):
            try:
                return _columns(header, bytes(unpacked))
            except (_IsRare, IndexError):
                pass
    return batch.columns


def _columns(header: BatchHeader, rows: bytes) -> Columns:
    """Return `rows` by column. _IsRare or IndexError if they are not as expected."""
    data, count = np.frombuffer(rows, np.uint8), header.record_count
    ends = np.array(_ends(rows, count))
    sizes, starts = _varints(data, np.concatenate(([0], ends[:-1])))
    times, at = _varints(data, starts + 1)
    offsets, at = _varints(data, at)
    key_sizes, at = _varints(data, at)
    key_lengths, keys = _lengths(key_sizes), at
    value_sizes, at = _varints(data, at + np.maximum(key_lengths - 1, 0))
    value_lengths, values = _lengths(value_sizes), at
    at = at + np.maximum(value_lengths - 1, 0)
    if (sizes & 1).any() or data[at].any() or (at + 1 != ends).any():  # headers, or damage
        raise _IsRare
    base_ms, deltas_ms = _times(header, times)
    columns = Columns(
        count,
        base_timestamp_ms=base_ms,
        timestamp_deltas_ms=pack_array(deltas_ms),
        value_lengths=pack_array(value_lengths),
        values=_gathered(rows, values, value_lengths),
        offset_deltas=_offset_deltas(header, offsets),
    )
    if key_lengths.any():
        columns.key_lengths, columns.keys = pack_array(key_lengths), _gathered(rows, keys, key_lengths)
    if header.has_delete_horizon:
        if header.base_timestamp_ms < 0:
            raise _IsRare
        columns.delete_horizon_ms = header.base_timestamp_ms
    return columns


def _ends(rows: bytes, count: int) -> list[int]:
    ends: list[int] = []
    add = ends.append
    position = 0
    for _ in repeat(None, count):
        size = rows[position]
        if size < 0x80:
            position += 1 + (size >> 1)
        elif (byte := rows[position + 1]) < 0x80:
            position += 2 + ((size & 0x7F | byte << 7) >> 1)
        elif (last := rows[position + 2]) < 0x80:
            position += 3 + ((size & 0x7F | (byte & 0x7F) << 7 | last << 14) >> 1)
        else:
            raise _IsRare
        add(position)
    if position != len(rows):
        raise _IsRare
    return ends


def _varints(data: Any, at: Any) -> tuple[Any, Any]:
    """Return the numbers at the positions `at`, in zigzag and below 2^63, and the positions after them."""
    byte = data[at]
    at = at + 1
    numbers = (byte & 0x7F).astype(np.int64)
    more, shift = np.flatnonzero(byte & 0x80), 7
    while more.size:
        if shift > _MOST_BITS:
            raise _IsRare
        byte = data[at[more]]
        numbers[more] |= (byte & 0x7F).astype(np.int64) << shift
        at[more] += 1
        more, shift = more[byte >= 0x80], shift + 7
    return numbers, at


def _lengths(sizes: Any) -> Any:
    """Return lengths plus one, and 0 for null, of sizes in zigzag."""
    return np.where(sizes & 1, 0, (sizes >> 1) + 1)


def _times(header: BatchHeader, deltas: Any) -> tuple[int, Any]:
    """Return the smallest timestamp and what each exceeds it by."""
    if header.is_log_append_time:
        return header.max_timestamp_ms, np.zeros(len(deltas), np.int64)
    deltas_ms = deltas >> 1 ^ -(deltas & 1)
    least_ms, most_ms = int(deltas_ms.min()), int(deltas_ms.max())
    if max(abs(header.base_timestamp_ms), abs(least_ms), most_ms) >= _MAX_TIME:
        raise _IsRare
    return header.base_timestamp_ms + least_ms, deltas_ms - least_ms


def _offset_deltas(header: BatchHeader, deltas: Any) -> IntColumn | None:
    """Return the column of offset deltas; None if no offset is left out."""
    if (deltas & 1).any() or not (deltas[1:] > deltas[:-1]).all() or deltas[-1] >> 1 > header.last_offset_delta:
        raise _IsRare
    return None if deltas[-1] >> 1 == len(deltas) - 1 else pack_array(deltas >> 1)


def _gathered(rows: bytes, starts: Any, lengths: Any) -> memoryview:
    """Return the keys or values that begin at `starts`, one after another; `lengths` are one more, 0 for null.

    Arrow copies them: to it, `rows` are binary items, of which each second one is taken.
    """
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[::2], bounds[1::2] = starts, starts + np.maximum(lengths - 1, 0)
    items = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(rows)])
    data = items.take(pa.array(np.arange(0, len(bounds), 2, dtype=np.int32))).buffers()[2]
    return memoryview(b"" if data is None else data).cast("B")
