"""Spark rows as Arrow batches, for the streaming writer of Spark 4.0, which passes rows."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pyarrow as pa

ROWS = 10_000
"""As spark.sql.execution.arrow.maxRecordsPerBatch."""

_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<struct<key:string,value:binary>>": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}


def arrow_of_rows(rows: Iterator[Any], schema: Any) -> "Iterator[pa.RecordBatch]":
    """Yield the rows with the columns of `schema` (a StructType), of types that can be written, ROWS at a time."""
    fields = [pa.field(field.name, _TYPES[field.dataType.simpleString()]) for field in schema.fields]
    while some := list(islice(rows, ROWS)):
        columns = [pa.array([_plain(row[index]) for row in some], field.type) for index, field in enumerate(fields)]
        yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _plain(value: Any) -> Any:
    """Convert for Arrow: bytearray to bytes, rows of headers to dictionaries, a local time to an aware one."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [None if item is None else {"key": item[0], "value": _plain(item[1])} for item in value]
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.astimezone(UTC)
    return value
