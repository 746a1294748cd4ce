"""Record headers as Arrow lists of names and values, many records at a time.

A record's headers are a msgpack array of pairs (see `warmlog_protocol.batch.column_data`). Where a pair begins
depends on those before it in the same record, but not on other records: so the first pair of all records is read at
once, then the second, and so on. Rare forms (more than 15 headers, a name of 256 bytes, a value of 64 KiB) and damage
are left to the decoder that goes record by record and reports errors.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from warmlog.arrow.columns import BatchPart, arrow_offsets, bitmap_of, joined_integers
from warmlog_protocol.batch.column_data import decode_headers
from warmlog_protocol.errors import CorruptBatch

HEADERS_TYPE = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

_FIXARRAY, _MOST_PAIRS = 0x90, 15
_PAIR = _FIXARRAY | 2
_FIXSTR, _LONGEST_FIXSTR, _STR8 = 0xA0, 31, 0xD9
_NIL, _BIN8, _BIN16 = 0xC0, 0xC4, 0xC5
_MARKER_BYTES = 3
"""The longest marker read here, of a bin16: reading may look so far beyond a record's end."""


class _Items(NamedTuple):
    """The first byte and the length of names or values; 0 for null."""

    starts: Any
    lengths: Any
    is_null: Any = None


class _Headers(NamedTuple):
    """How many headers each record has, and the names and values of all records."""

    counts: Any
    names: pa.Array
    values: pa.Array


def headers_array(parts: Sequence[BatchPart]) -> pa.Array:
    """Lists of names and values, null for a record without headers. Raises CorruptBatch if they are malformed."""
    if not parts:
        return pa.array([], HEADERS_TYPE)
    found = [_headers_of(part) for part in parts]
    counts = np.concatenate([headers.counts for headers in found])
    names = pa.concat_arrays([headers.names for headers in found])
    values = pa.concat_arrays([headers.values for headers in found])
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type))
    bitmap = None if counts.all() else bitmap_of(counts)
    buffers = [bitmap, pa.py_buffer(arrow_offsets(counts, len(pairs)))]
    return pa.Array.from_buffers(HEADERS_TYPE, len(counts), buffers, children=[pairs])


def _headers_of(part: BatchPart) -> _Headers:
    column = part.columns.header_lengths
    if column is None:
        return _Headers(np.zeros(part.count, np.int64), pa.array([], pa.string()), pa.array([], pa.binary()))
    lengths = joined_integers([part], [column])
    return _side_by_side(part.headers, lengths) or _one_by_one(part, lengths)


def _side_by_side(data: memoryview, lengths: Any) -> _Headers | None:
    """The headers of records of these `lengths` in `data`; None if some have a rare form or are damaged."""
    ends = np.cumsum(lengths)
    view = np.zeros(len(data) + _MARKER_BYTES, np.uint8)
    view[: len(data)] = np.frombuffer(data, np.uint8)
    has_any = np.flatnonzero(lengths)
    positions, counts = ends - lengths, np.zeros(len(lengths), np.int64)
    counts[has_any] = view[positions[has_any]].astype(np.int64) - _FIXARRAY
    if counts.min(initial=0) < 0 or counts.max(initial=0) > _MOST_PAIRS:
        return None
    positions[has_any] += 1
    first = np.cumsum(counts) - counts  # the index of each record's first header among all
    total = int(counts.sum())
    names = _Items(np.zeros(total, np.int64), np.zeros(total, np.int64))
    values = _Items(np.zeros(total, np.int64), np.zeros(total, np.int64), np.zeros(total, np.bool_))
    for number in range(counts.max(initial=0)):
        records = np.flatnonzero(counts > number)
        after = _read_pairs(view, positions[records], ends[records], first[records] + number, names, values)
        if after is None:
            return None
        positions[records] = after
    if (positions != ends).any():
        return None
    try:
        texts = _binary_array(view, names).cast(pa.string())
    except pa.ArrowInvalid:  # a name that is not UTF-8
        return None
    return _Headers(counts, texts, _binary_array(view, values))


def _read_pairs(view: Any, positions: Any, ends: Any, rows: Any, names: _Items, values: _Items) -> Any:
    """Read the pairs at `positions` into `rows` of `names` and `values`; return the positions after them.

    None if one goes beyond its end or has a rare form.
    """
    markers = view[positions + 1]
    is_short = (markers & ~np.uint8(_LONGEST_FIXSTR)) == _FIXSTR
    if not ((view[positions] == _PAIR) & (is_short | (markers == _STR8))).all():
        return None
    names.starts[rows] = positions + np.where(is_short, 2, 3)
    names.lengths[rows] = np.where(is_short, markers & _LONGEST_FIXSTR, view[positions + 2])
    positions = names.starts[rows] + names.lengths[rows]
    if (positions >= ends).any():
        return None
    markers, low, high = view[positions], view[positions + 1], view[positions + 2]
    is_nil, is_long = markers == _NIL, markers == _BIN16
    if not (is_nil | is_long | (markers == _BIN8)).all():
        return None
    values.is_null[rows] = is_nil
    values.starts[rows] = positions + np.where(is_nil, 1, np.where(is_long, 3, 2))
    wide = low.astype(np.int64) << 8 | high
    values.lengths[rows] = np.where(is_nil, 0, np.where(is_long, wide, low))
    positions = values.starts[rows] + values.lengths[rows]
    return None if (positions > ends).any() else positions


def _binary_array(view: Any, items: _Items) -> pa.Array:
    total = int(items.lengths.sum())
    offsets = arrow_offsets(items.lengths, total)
    moves = np.repeat(items.starts - offsets[:-1], items.lengths)
    data = view[moves + np.arange(total)]
    is_null = items.is_null
    bitmap = None if is_null is None or not is_null.any() else bitmap_of(~is_null)
    return pa.Array.from_buffers(pa.binary(), len(items.lengths), [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)])


def _one_by_one(part: BatchPart, lengths: Any) -> _Headers:
    """The headers of any records, by way of Python objects. Raises CorruptBatch with what is malformed."""
    lists = []
    position = 0
    for length in lengths.tolist():
        try:
            lists.append(decode_headers(bytes(part.headers[position : position + length])))
        except CorruptBatch as error:
            raise CorruptBatch(f"batch at offset {part.base_offset}: {error}") from error
        position += length
    names = pa.array([name for headers in lists for name, _ in headers], pa.string())
    values = pa.array([value for headers in lists for _, value in headers], pa.binary())
    return _Headers(np.fromiter(map(len, lists), np.int64, len(lists)), names, values)
