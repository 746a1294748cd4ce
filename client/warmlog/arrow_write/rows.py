"""Arrow columns, prepared once, so that batches can be cut out of them without work per record.

`ArrowRows` are the columns as Arrow has them. `PreparedRows` are the same with lengths, offsets and sizes as numpy
arrays. A `RowSpan` is a range of these rows. Data stays in Arrow's buffers.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from warmlog.arrow_write.key_hash import Array
from warmlog.errors import InvalidRecord
from warmlog.producer.record_input import HEADER_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES

_NOTHING = np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Records as Arrow columns of one length; `keys` and `headers` are None if no record has any.

    `values` and `keys` are binary or string, with small or large offsets; `headers` are lists of structs of a name and
    a value; `timestamps` are microseconds. Without them, and for a null, the time of encoding is used.
    """

    values: pa.Array
    keys: pa.Array | None = None
    headers: pa.Array | None = None
    timestamps: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Array) -> "ArrowRows":
        """Copy the records of these row numbers."""
        indices = pa.array(rows)
        columns = (self.values, self.keys, self.headers, self.timestamps)
        return ArrowRows(*(None if column is None else column.take(indices) for column in columns))


def with_offsets(column: pa.Array) -> pa.Array:
    """Convert views in `column`, which DataFusion and Polars use for strings, to arrays with offsets."""
    wanted = _type_with_offsets(column.type)
    return column if wanted == column.type else column.cast(wanted)


def _type_with_offsets(found: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(found):
        return pa.large_string()
    if pa.types.is_binary_view(found):
        return pa.large_binary()
    if pa.types.is_list(found):
        return pa.list_(found.value_field.with_type(_type_with_offsets(found.value_type)))
    if pa.types.is_large_list(found) or pa.types.is_list_view(found) or pa.types.is_large_list_view(found):
        return pa.large_list(found.value_field.with_type(_type_with_offsets(found.value_type)))
    if pa.types.is_struct(found):
        return pa.struct([field.with_type(_type_with_offsets(field.type)) for field in found])
    return found


class BytesColumn(NamedTuple):
    """A binary or string column: item i is `content[offsets[i] : offsets[i + 1]]`, with no gaps between items."""

    lengths: Array
    """Each item's length + 1, or 0 for null, as in a batch."""
    offsets: Array
    content: Array
    """The bytes of Arrow's buffer."""

    @classmethod
    def of(cls, array: pa.Array) -> "BytesColumn":
        """From `array`, without a copy if it has no null. InvalidRecord unless it is string or binary."""
        if array.null_count == len(array):  # also an array of the type null, which has no offsets
            return cls(np.zeros(len(array), np.int32), np.zeros(len(array) + 1, np.int32), _NOTHING)
        is_null = None
        if array.null_count:
            is_null = array.is_null().to_numpy(zero_copy_only=False)
            array = array.fill_null(b"")  # a null in Arrow may have bytes
        is_wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
        if not (is_wide or pa.types.is_binary(array.type) or pa.types.is_string(array.type)):
            raise InvalidRecord(f"keys, values and names must be string or binary, not {array.type}")
        _, offset_buffer, data = array.buffers()
        offsets: Array = np.frombuffer(offset_buffer, np.int64 if is_wide else np.int32)
        offsets = offsets[array.offset : array.offset + len(array) + 1]
        lengths = offsets[1:] - offsets[:-1]
        lengths += 1
        if is_null is not None:
            lengths[is_null] = 0
        return cls(lengths, offsets, _NOTHING if data is None else np.frombuffer(data, np.uint8))

    def data(self, start: int, stop: int) -> Array:
        """The bytes of items `start` to `stop`, in the same memory."""
        return self.content[self.offsets[start] : self.offsets[stop]]


class PreparedRows:
    """`ArrowRows` that are ready to be cut into batches."""

    __slots__ = ("count", "ends_bytes", "headers", "keys", "timestamps", "values")

    def __init__(self, rows: ArrowRows) -> None:
        self.count = len(rows)
        self.values = BytesColumn.of(rows.values)
        has_keys = rows.keys is not None and rows.keys.null_count < self.count
        self.keys = BytesColumn.of(rows.keys) if has_keys else None
        self.headers = rows.headers
        self.timestamps = rows.timestamps
        ends: Array = np.arange(self.count + 1, dtype=np.int64) * RECORD_OVERHEAD_BYTES
        for column in (self.values, self.keys):
            if column is not None:
                ends += column.offsets
                ends -= int(column.offsets[0])
        if rows.headers is not None:
            ends += _header_ends(rows.headers)
        self.ends_bytes = ends
        """For each row an upper bound on the size of all rows before it in a batch, and last that of all rows; without
        BATCH_OVERHEAD_BYTES. See `record_input.content_bytes`."""

    @property
    def largest_bytes(self) -> int:
        """Upper bound on the size of the largest row."""
        return int(np.diff(self.ends_bytes).max(initial=0))

    def span(self, start: int = 0, stop: int | None = None) -> "RowSpan":
        """Rows `start` to `stop`, exclusive; by default all."""
        return RowSpan(self, start, self.count if stop is None else stop)


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Adjacent rows; `stop` is exclusive."""

    rows: PreparedRows
    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.start


def _header_ends(headers: pa.Array) -> Array:
    """Upper bounds on the size of the headers of all rows before each one. They are not validated yet."""
    names, values = headers.flatten().flatten()
    each = np.full(len(names), HEADER_OVERHEAD_BYTES, np.int64)
    for column in (names, values):
        each += np.maximum(BytesColumn.of(column).lengths, 1)
        each -= 1
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(each)])
    counts = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return sums[np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])]
