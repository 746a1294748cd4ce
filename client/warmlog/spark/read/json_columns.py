"""JSON records as typed Arrow columns, parsed by Arrow: Python objects are made only for records that do not fit.

Each record should be one JSON object. Fields without a column are ignored, missing fields are null. A record does not
fit if it is not an object, or has a field twice, out of range or of another type than its column: then these columns
are null, or all if it is not an object. Types are strict: 5 is not a string, 1.0 not an integer. Timestamps and dates
are ISO 8601 text.

Arrow parses the records as lines, one object after another, so only the number of objects shows whether they match
the records. Hence it gets only records that begin with { and end with }. Such a record cannot merge with the next one:
after its last } no { may follow within an object, and a string cannot continue over the end of a line. So each record
is one object or more, and if there are as many objects as records, each is exactly one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

Array = Any
"""A numpy array; numpy's types are not more precise."""

_OBJECT = (ord("{"), ord("}"))
_NO_FIELDS = b"{}"


class JsonColumns:
    """Decodes records to columns of these names and types."""

    def __init__(self, fields: Sequence[tuple[str, pa.DataType]]) -> None:
        self._schema = pa.schema(fields)
        parsed = [(name, _parsed_type(kind)) for name, kind in fields]
        self._options = pj.ParseOptions(explicit_schema=pa.schema(parsed), unexpected_field_behavior="ignore")

    def decode(self, values: pa.Array) -> tuple[list[pa.Array], Array]:
        """Return the columns of `values` (binary), and for each record whether it is malformed.

        A null is a valid record without fields.
        """
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        does_fit = is_null | _are_braced(values)
        if not does_fit.all():
            values, does_fit = _stripped(values, does_fit)
        if is_null.any() or not does_fit.all():
            values = pc.if_else(pa.array(does_fit & ~is_null), values, _NO_FIELDS)
        columns, fits_too = self._parse(values)
        return columns, ~(does_fit & fits_too)

    def _parse(self, values: pa.Array) -> tuple[list[pa.Array], Array]:
        """Return the columns, and which records fit. If some do not, the halves are parsed, down to single records."""
        count = len(values)
        found = self._parsed_whole(values)
        if found is not None:
            return found, np.ones(count, bool)
        if count == 1:
            return self._fitting(values), np.zeros(1, bool)
        halves = [self._parse(part) for part in (values.slice(0, count // 2), values.slice(count // 2))]
        columns = [pa.concat_arrays(parts) for parts in zip(*(columns for columns, _ in halves), strict=True)]
        return columns, np.concatenate([fits for _, fits in halves])

    def _fitting(self, record: pa.Array) -> list[pa.Array]:
        """Return the columns of one record that does not fit; those that do not fit are null."""
        if len(self._schema) == 1:
            return [pa.nulls(1, kind) for kind in self._schema.types]
        return [JsonColumns([(field.name, field.type)])._parse(record)[0][0] for field in self._schema]

    def _parsed_whole(self, values: pa.Array) -> list[pa.Array] | None:
        """Return the columns; None if a record does not fit."""
        if not len(values):
            return [pa.nulls(0, kind) for kind in self._schema.types]
        text = pc.binary_join_element_wise(values, b"\n", b"").buffers()[2]
        reading = pj.ReadOptions(use_threads=False, block_size=text.size + 1)
        try:
            table = pj.read_json(pa.BufferReader(text), read_options=reading, parse_options=self._options)
            if table.num_rows != len(values):
                return None
            return [table.column(field.name).cast(field.type).combine_chunks() for field in self._schema]
        except pa.ArrowInvalid:
            return None


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    """Return the type for Arrow's parser: string, to be cast later, for types that it does not know."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_parsed_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_parsed_type(field.type)) for field in kind])
    return kind


def _are_braced(values: pa.Array) -> Array:
    """Return which records begin with { and end with }."""
    _, offsets_buffer, data_buffer = values.buffers()
    count = len(values)
    if not count or data_buffer is None or not data_buffer.size:
        return np.zeros(count, bool)
    offsets = np.frombuffer(offsets_buffer, np.int32)[values.offset : values.offset + count + 1]
    data = np.frombuffer(data_buffer, np.uint8)
    starts, ends = offsets[:-1], offsets[1:]
    firsts = data[np.minimum(starts, len(data) - 1)]
    lasts = data[np.maximum(ends - 1, 0)]
    return (ends - starts > 1) & (firsts == _OBJECT[0]) & (lasts == _OBJECT[1])


def _stripped(values: pa.Array, does_fit: Array) -> tuple[pa.Array, Array]:
    """Strip white space from the records that do not fit; return all records, and which fit now."""
    does_fit = does_fit.copy()
    items = {}
    for index in np.flatnonzero(~does_fit).tolist():
        item = values[index].as_py().strip(b" \t\r\n")
        if len(item) > 1 and (item[0], item[-1]) == _OBJECT:
            items[index] = item
            does_fit[index] = True
    if items:
        mask = np.zeros(len(values), bool)
        mask[list(items)] = True
        values = pc.replace_with_mask(values, pa.array(mask), pa.array(list(items.values()), values.type))
    return values, does_fit
