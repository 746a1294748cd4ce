"""Columns of several stored batches as one Arrow array each.

Arrow trusts the buffers that it is given; a wrong one would read beyond its memory. Four checks prevent that: numpy
refuses to view more integers than a column has bytes; a data buffer must be below 2 GiB; no length may be negative or
larger than its data buffer, so their sum in 64 bits cannot overflow; and the sum must be the size of that buffer. The
protocol's decoder checks all but the 2 GiB before, so these fail only if it has a bug. Record headers have their own
checks (see `headers`).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from warmlog.arrow.int_array import integers_of
from warmlog.arrow.rows import columns_in
from warmlog_protocol.batch import Columns, IntColumn, RecordBatch
from warmlog_protocol.errors import CorruptBatch, InvalidTimestamp, MessageTooLarge

TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")
MAX_OFFSET = (1 << 63) - 1
MAX_DATA_BYTES = (1 << 31) - 1
"""What int32 offsets can address."""

_MAX_TIMESTAMP_MS = ((1 << 63) - 1) // 1000
_MAX_REGULAR_ROWS = 256 * 1024


class BatchPart:
    """Records `start` to `stop` of one stored batch, with their keys, values and headers."""

    __slots__ = ("base_offset", "columns", "count", "headers", "keys", "start", "stop", "timestamp_type", "values")

    def __init__(self, columns: Columns, base_offset: int, timestamp_type: int, start: int, stop: int) -> None:
        self.columns = columns
        self.base_offset = base_offset
        self.timestamp_type = timestamp_type
        self.start = start
        self.stop = stop
        self.count = stop - start
        self.keys, self.values, self.headers = columns.keys, columns.values, columns.headers
        if start > 0 or stop < columns.count:
            self.keys = self.keys[_data_slice(columns.key_lengths, start, stop, overhead=1)]
            self.values = self.values[_data_slice(columns.value_lengths, start, stop, overhead=1)]
            self.headers = self.headers[_data_slice(columns.header_lengths, start, stop, overhead=0)]

    @property
    def next_offset(self) -> int:
        """One above the last record's offset."""
        return self.offset_of(self.stop - 1) + 1

    def offset_of(self, row: int) -> int:
        """The offset of the record at index `row` of the stored batch."""
        deltas = self.columns.offset_deltas
        return self.base_offset + (row if deltas is None else int(integers_of(deltas)[row]))


def part_of(batch: RecordBatch, from_offset: int, until_offset: int) -> BatchPart | None:
    """Return the records of `batch` with offsets in the range; None if there are none or it is a control batch."""
    header = batch.header
    if header.is_control or header.record_count == 0:
        return None
    if header.next_offset > MAX_OFFSET:
        raise CorruptBatch(f"batch at offset {header.base_offset}: its last offset does not fit 64 bits")
    columns = columns_in(batch)
    first, end = max(from_offset - header.base_offset, 0), max(until_offset - header.base_offset, 0)
    if columns.offset_deltas is None:
        start, stop = min(first, columns.count), min(end, columns.count)
    else:
        deltas = integers_of(columns.offset_deltas).astype(np.int64)  # strictly increasing: one number is one record
        start, stop = (int(row) for row in np.searchsorted(deltas, (first, end)))
    if start >= stop:
        return None
    return BatchPart(columns, header.base_offset, int(header.is_log_append_time), start, stop)


def binary_array(
    parts: Sequence[BatchPart], columns: Sequence[IntColumn | None], data: Sequence[memoryview]
) -> pa.Array:
    """Keys or values. `columns` are lengths + 1, and 0 for null; a part without a column has only nulls."""
    if all(column is None for column in columns):
        return pa.nulls(_count(parts), pa.binary())
    count, data_bytes = _count(parts), sum(map(len, data))
    _check_data_bytes(data_bytes)
    common = _common_length(columns)
    if common is not None:
        buffers = [None, _regular_offsets(common, count, data_bytes), _joined_data(data)]
        return pa.Array.from_buffers(pa.binary(), count, buffers, null_count=0)
    lengths = joined_integers(parts, columns)
    null_count = count - int(np.count_nonzero(lengths))
    bitmap = bitmap_of(lengths) if null_count else None
    lengths -= 1
    if null_count:
        np.maximum(lengths, 0, out=lengths, where=lengths == -1)
    buffers = [bitmap, pa.py_buffer(arrow_offsets(lengths, data_bytes)), _joined_data(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers, null_count=null_count)


def _common_length(columns: Sequence[IntColumn | None]) -> int | None:
    """The length of all items; None if they differ or some are null."""
    first = columns[0]
    if first is None or first.width != 0 or first.constant == 0:
        return None
    wanted = bytes(first.data)
    if any(column is None or column.width != 0 or column.data != wanted for column in columns):
        return None
    return first.constant - 1


def _regular_offsets(length: int, count: int, data_bytes: int) -> pa.Buffer:
    """Arrow's offsets of `count` items of `length` in `data_bytes`."""
    if length * count != data_bytes:
        raise CorruptBatch(f"{count} items of {length} bytes, but there are {data_bytes} bytes of data")
    rows = 1 << count.bit_length()
    if rows > _MAX_REGULAR_ROWS or rows * length > MAX_DATA_BYTES:
        return pa.py_buffer(np.arange(count + 1, dtype=np.int32) * np.int32(length))
    return _cached_offsets(length, rows).slice(0, 4 * (count + 1))


@lru_cache(maxsize=4)
def _cached_offsets(length: int, rows: int) -> pa.Buffer:
    return pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * np.int32(length))


def text_array(array: pa.Array) -> pa.Array:
    """Keys or values as strings, in the same buffers if they are valid UTF-8.

    Otherwise each invalid sequence becomes U+FFFD, as in Spark; that makes a Python object of each record.
    """
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if item is None else item.decode(errors="replace") for item in array.to_pylist()]
        return pa.array(texts, pa.string())


def offsets_array(parts: Sequence[BatchPart]) -> pa.Array:
    count = _count(parts)
    if parts and all(part.columns.offset_deltas is None for part in parts):
        first, last = parts[0], parts[-1]
        start, stop = first.base_offset + first.start, last.base_offset + last.stop
        are_in_order = all(
            after.base_offset + after.start >= before.base_offset + before.stop for before, after in pairwise(parts)
        )
        if stop - start == count and are_in_order:
            return pa.array(np.arange(start, stop, dtype=np.int64))
    offsets = np.empty(count, np.int64)
    for start, end, part in _rows(parts):
        deltas = part.columns.offset_deltas
        if deltas is None:
            offsets[start:end] = np.arange(part.base_offset + part.start, part.base_offset + part.stop)
        else:
            offsets[start:end] = integers_of(deltas, part.start, part.stop)
            offsets[start:end] += part.base_offset
    return pa.array(offsets)


def timestamps_array(parts: Sequence[BatchPart]) -> pa.Array:
    """Microseconds. The decoder has checked that base and delta together fit 63 bits."""
    times = times_ms(parts)
    for start, end, part in _rows(parts):
        base_ms = part.columns.base_timestamp_ms
        if base_ms < -_MAX_TIMESTAMP_MS or base_ms + part.columns.timestamp_deltas_ms.bound > _MAX_TIMESTAMP_MS:
            _check_timestamps(part, times[start:end])
    times *= 1000
    return pa.Array.from_buffers(TIMESTAMP_TYPE, len(times), [None, pa.py_buffer(times)], null_count=0)


def times_ms(parts: Sequence[BatchPart]) -> Any:
    """Timestamps as an int64 array of milliseconds."""
    times = np.empty(_count(parts), np.int64)
    for start, end, part in _rows(parts):
        filled = times[start:end]
        deltas = part.columns.timestamp_deltas_ms
        if deltas.is_constant:
            filled[:] = part.columns.base_timestamp_ms + deltas.constant
            continue
        filled[:] = integers_of(deltas, part.start, part.stop)
        filled += part.columns.base_timestamp_ms
    return times


def _check_timestamps(part: BatchPart, times_ms: Any) -> None:
    is_beyond = (times_ms > _MAX_TIMESTAMP_MS) | (times_ms < -_MAX_TIMESTAMP_MS)
    if is_beyond.any():
        row = int(np.argmax(is_beyond))
        raise InvalidTimestamp(
            f"offset {offsets_array([part])[row]}: its timestamp, {times_ms[row]} ms, does not fit 64 bits of "
            "microseconds; leave out the column timestamp"
        )


def timestamp_types_array(parts: Sequence[BatchPart]) -> pa.Array:
    """0 for the producer's time, 1 for the time of appending."""
    types = np.array([part.timestamp_type for part in parts], np.int32)
    return pa.array(np.repeat(types, [part.count for part in parts]))


def repeated_string(text: bytes, count: int) -> pa.Array:
    _check_data_bytes(len(text) * count)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(text))
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text * count)], null_count=0
    )


def _count(parts: Sequence[BatchPart]) -> int:
    return sum(part.count for part in parts)


def _rows(parts: Sequence[BatchPart]) -> Iterator[tuple[int, int, BatchPart]]:
    """Each part with its first row in the array and the one after its last."""
    start = 0
    for part in parts:
        end = start + part.count
        yield start, end, part
        start = end


def joined_integers(parts: Sequence[BatchPart], columns: Sequence[IntColumn | None]) -> Any:
    """An int64 array of the integers of all parts, one after another; 0 if a batch has no such column."""
    joined = np.empty(_count(parts), np.int64)
    for (start, end, part), column in zip(_rows(parts), columns, strict=True):
        joined[start:end] = 0 if column is None else integers_of(column, part.start, part.stop)
    return joined


def arrow_memory(size_bytes: int) -> memoryview:
    """Memory from Arrow's pool, which reuses pages and does not clear them."""
    return memoryview(pa.allocate_buffer(size_bytes)).cast("B")


def _joined_data(data: Sequence[memoryview]) -> pa.Buffer:
    """The bytes of all, one after another; a single one is not copied.

    Arrow's pool reuses pages, while each large `bytes` would fault in new ones.
    """
    if len(data) == 1:
        return pa.py_buffer(data[0])
    joined = pa.allocate_buffer(sum(map(len, data)))
    view = memoryview(joined).cast("B")
    end = 0
    for piece in data:
        start, end = end, end + len(piece)
        view[start:end] = piece
    return joined


def bitmap_of(lengths: Any) -> pa.Buffer:
    """A validity bitmap: 1 where the length is not 0."""
    return pa.py_buffer(np.packbits(lengths != 0, bitorder="little"))


def _data_slice(lengths: IntColumn | None, start: int, stop: int, *, overhead: int) -> slice:
    """Where the data of records `start` to `stop` is. `overhead` is included in each length that is not null."""
    if lengths is None:
        return slice(0, 0)
    before = _data_bytes(lengths, 0, start, overhead)
    return slice(before, before + _data_bytes(lengths, start, stop, overhead))


def _data_bytes(lengths: IntColumn, start: int, stop: int, overhead: int) -> int:
    if lengths.is_constant:
        return max(lengths.constant - overhead, 0) * (stop - start)
    numbers = integers_of(lengths, start, stop)
    return int(numbers.sum(dtype=np.uint64)) - overhead * int(np.count_nonzero(numbers))


def arrow_offsets(lengths: Any, data_bytes: int) -> Any:
    """The int32 offsets of items of these lengths in `data_bytes`, after the checks that Arrow does not make."""
    _check_data_bytes(data_bytes)
    if (longest := int(lengths.view(np.uint64).max(initial=0))) > data_bytes:  # seen unsigned, a negative one is huge
        raise CorruptBatch(f"a length of {longest}, but {data_bytes} bytes of data")
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] != data_bytes:
        raise CorruptBatch(f"lengths add up to {offsets[-1]}, but there are {data_bytes} bytes of data")
    return offsets.astype(np.int32)


def _check_data_bytes(data_bytes: int) -> None:
    if data_bytes > MAX_DATA_BYTES:
        raise MessageTooLarge(f"{data_bytes} bytes in one Arrow column: at most {MAX_DATA_BYTES} can be addressed")
