"""Arrow columns as record batches: the reverse of `arrow`, with no Python object for each record but for headers.

A batch made here has the same bytes as one that `encode_batch` makes of the same records: lengths come from Arrow's
offsets by numpy, and data is copied from Arrow's buffers as it lies there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from warmlog.errors import InvalidRecord, InvalidTimestamp
from warmlog.record_input import HEADER_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES
from warmlog_protocol.batch import (
    MAGIC_COLUMNS,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    Columns,
    IntColumn,
    seal_columns,
)
from warmlog_protocol.batch.record_headers import encode_headers
from warmlog_protocol.compression import Codec

Array = Any
"""A numpy array; numpy's own types say little more here."""

US_PER_MS = 1000
_NOTHING = memoryview(b"")
_WIDTHS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Records as Arrow columns of one length; `keys` and `headers` are None where no record has any.

    `values` and `keys` are binary or string, with small or large offsets; `headers` are lists of structs of a name and
    a value; `timestamps` are microseconds, or None: then the time of encoding is taken, as for a null in them.
    """

    values: pa.Array
    keys: pa.Array | None = None
    headers: pa.Array | None = None
    timestamps: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> "ArrowRows":
        """Records `start` to `stop`, in the same memory."""
        return self._each(lambda column: column.slice(start, stop - start))

    def take(self, rows: Array) -> "ArrowRows":
        """The records of these numbers, copied."""
        indices = pa.array(rows)
        return self._each(lambda column: column.take(indices))

    def sizes_bytes(self) -> Array:
        """The most that each record takes in a batch, as `record_input.content_bytes` has it, and its overhead."""
        sizes = _lengths(self.values) + RECORD_OVERHEAD_BYTES
        if self.keys is not None:
            sizes += _lengths(self.keys)
        if self.headers is not None:
            sizes += _header_sizes(self.headers)
        return sizes

    def _each(self, change: Any) -> "ArrowRows":
        columns = (self.values, self.keys, self.headers, self.timestamps)
        return ArrowRows(*(None if column is None else change(column) for column in columns))


def encode_arrow(
    parts: Sequence[ArrowRows],
    *,
    now_ms: int,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytes:
    """One columnar batch of the records of all `parts`, at least one.

    Raises as `columns_of_arrow`, and MessageTooLarge for 2 GiB.
    """
    columns = columns_of_arrow(parts, now_ms)
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        partition_leader_epoch=NO_LEADER_EPOCH,
        magic=MAGIC_COLUMNS,
        crc=0,
        attributes=codec,
        last_offset_delta=columns.count - 1,
        base_timestamp_ms=columns.base_timestamp_ms,
        max_timestamp_ms=columns.base_timestamp_ms + _largest(columns.timestamp_deltas_ms),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=columns.count,
    )
    return seal_columns(header, columns)


def columns_of_arrow(parts: Sequence[ArrowRows], now_ms: int) -> Columns:
    """The records of all `parts`, at least one, as the columns of one batch.

    Raises InvalidTimestamp for a time before 1970, InvalidRecord for a header without a name.
    """
    count = sum(map(len, parts))
    assert count > 0, "a batch is made of at least one record"
    base_timestamp_ms, timestamp_deltas_ms = _timestamps([(part.timestamps, len(part)) for part in parts], now_ms)
    value_lengths, values = _data([(part.values, len(part)) for part in parts])
    columns = Columns(
        count,
        base_timestamp_ms=base_timestamp_ms,
        timestamp_deltas_ms=timestamp_deltas_ms,
        value_lengths=pack_array(value_lengths),
        values=values,
    )
    if any(part.keys is not None for part in parts):
        key_lengths, keys = _data([(part.keys, len(part)) for part in parts])
        if key_lengths.any():
            columns.key_lengths, columns.keys = pack_array(key_lengths), keys
    if any(part.headers is not None for part in parts):
        encoded = [item for part in parts for item in _encoded_headers(part)]
        if any(encoded):
            lengths = np.fromiter(map(len, encoded), np.int64, count)
            columns.header_lengths, columns.headers = pack_array(lengths), memoryview(b"".join(encoded))
    return columns


def pack_array(values: Array) -> IntColumn:
    """`values`, none below 0, in the least width that holds them all: what `pack_ints` makes of a list."""
    smallest, largest = int(values.min()), int(values.max())
    if smallest == largest:
        return IntColumn.constant_of(smallest, len(values))
    width = next(width for width in _WIDTHS if largest < 1 << 8 * width)
    return IntColumn(width, values.astype(f"<u{width}").tobytes(), len(values))


def _largest(column: IntColumn) -> int:
    """The largest value, without the list of them all that the column itself would make."""
    return column.constant if column.is_constant else int(np.frombuffer(column.data, f"<u{column.width}").max())


def offsets_and_data(array: pa.Array) -> tuple[Array, memoryview]:
    """Where each item of a binary or string array begins and the last one ends, and the memory that this refers to."""
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    _, offsets, data = array.buffers()
    if len(array) == 0 or offsets is None:
        return np.zeros(len(array) + 1, np.int64), _NOTHING
    found = np.frombuffer(offsets, np.int64 if wide else np.int32)
    return found[array.offset : array.offset + len(array) + 1], _NOTHING if data is None else memoryview(data)


def is_empty_or_null(array: pa.Array) -> Array:
    """Which items hold no byte: a boolean each."""
    return _lengths(array) == 0


def _lengths(array: pa.Array) -> Array:
    """The length of each item, 0 of a null, whatever Arrow has behind it; int64."""
    if array.null_count == len(array):  # also an array of the type null, which has no offsets
        return np.zeros(len(array), np.int64)
    offsets, _ = offsets_and_data(array)
    lengths = np.diff(offsets).astype(np.int64)
    if array.null_count:
        lengths[_is_null(array)] = 0
    return lengths


def _data(parts: Sequence[tuple[pa.Array | None, int]]) -> tuple[Array, memoryview]:
    """Lengths + 1, 0 for null, and the bytes of keys or values; a part without the column has nulls."""
    lengths: list[Array] = []
    pieces: list[memoryview] = []
    for array, count in parts:
        if array is None or array.null_count == count:
            lengths.append(np.zeros(count, np.int64))
            continue
        own = _lengths(array)
        offsets, data = offsets_and_data(array)
        if array.null_count:
            if int(own.sum()) != int(offsets[-1] - offsets[0]):  # there are bytes behind its nulls
                offsets, data = offsets_and_data(array.drop_null())
            own += 1
            own[_is_null(array)] = 0
        else:
            own += 1
        lengths.append(own)
        pieces.append(data[int(offsets[0]) : int(offsets[-1])])
    joined = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
    return (lengths[0] if len(lengths) == 1 else np.concatenate(lengths)), joined


def _is_null(array: pa.Array) -> Array:
    return array.is_null().to_numpy(zero_copy_only=False)


def _timestamps(parts: Sequence[tuple[pa.Array | None, int]], now_ms: int) -> tuple[int, IntColumn]:
    """The smallest timestamp and the differences from it."""
    count = sum(own for _, own in parts)
    if all(array is None for array, _ in parts):
        return now_ms, IntColumn.constant_of(0, count)
    times = np.concatenate([_milliseconds(array, own, now_ms) for array, own in parts])
    smallest = int(times.min())
    if smallest < 0:
        raise InvalidTimestamp(f"a timestamp of {smallest} ms lies before 1970, where the timestamps of records begin")
    return smallest, pack_array(times - smallest)


def _milliseconds(array: pa.Array | None, count: int, now_ms: int) -> Array:
    if array is None:
        return np.full(count, now_ms, np.int64)
    times = array.cast(pa.int64()).fill_null(now_ms * US_PER_MS).to_numpy()
    return np.floor_divide(times, US_PER_MS)


def _header_sizes(headers: pa.Array) -> Array:
    """The most that the headers of each record take; nothing of it is known to be right yet."""
    names, values = headers.flatten().flatten()
    each = _lengths(names) + _lengths(values) + HEADER_OVERHEAD_BYTES
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(each)])
    counts = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(counts, dtype=np.int64)
    return sums[ends] - sums[ends - counts]


def _encoded_headers(part: ArrowRows) -> list[bytes]:
    if part.headers is None:
        return [b""] * len(part)
    return [encode_headers(_pairs(item)) if item else b"" for item in part.headers.to_pylist()]


def _pairs(headers: Sequence[dict[str, Any] | None]) -> list[tuple[str, bytes | None]]:
    pairs = []
    for header in headers:
        if header is None or (name := next(iter(header.values()))) is None:
            raise InvalidRecord("a header without a name: each is a struct of a key and a value, and the key not null")
        pairs.append((name, list(header.values())[1]))
    return pairs
