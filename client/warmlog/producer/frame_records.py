"""Rows of tables and DataFrames as records: each value is one JSON object. pyarrow is imported when one is passed."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from warmlog.producer.arrow_columns import (
    bytes_of_array,
    check_polars_type,
    check_timestamps,
    decoded,
    is_bytes,
    is_pandas,
    is_text,
    pyarrow_for,
    timestamps_of_array,
)
from warmlog.producer.bulk_records import BulkRecords
from warmlog.producer.delivery import RecordMetadataRanges
from warmlog.producer.producer_batch import NS_PER_MS

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_SLICE = 64 * 1024
"""How many rows of a frame are Python objects at a time."""


@dataclass(frozen=True, slots=True)
class FrameRows:
    """A frame whose columns have been checked, to be read once."""

    batches: "pa.RecordBatchReader"
    columns: list[str]
    """Those in the value."""
    key: str | None
    timestamp: str | None

    @classmethod
    def of(cls, frame: Any, key: str | None, timestamp: str | None, columns: Sequence[str] | None) -> "FrameRows":
        """Check the arguments of `send_frame`: TypeError or ValueError."""
        batches = _reader(frame)
        if isinstance(columns, str):
            raise TypeError(f"columns={columns!r}: a list of names expected, such as [{columns!r}]")
        names = batches.schema.names
        rows = cls(batches, list(names if columns is None else columns), key, timestamp)
        if not rows.columns:
            raise ValueError("no column is left for the value: at least one expected")
        used = [name for name in (*rows.columns, key, timestamp) if name is not None]
        for name in used:
            if names.count(name) != 1:
                found = "more than one column has the name" if name in names else "there is no column"
                raise ValueError(f"{found} {name!r}; the frame has {names}")
            if type(frame).__module__.startswith("polars"):
                check_polars_type(f"column {name!r}", frame.schema[name])
        if key is not None:
            _check_key(key, batches.schema.field(key).type)
        if timestamp is not None:
            check_timestamps(f"timestamp={timestamp!r}", batches.schema.field(timestamp).type)
        return rows

    def slices(self) -> Iterator[BulkRecords]:
        """Yield the rows in order, at most ROWS_PER_SLICE at a time."""
        for batch in self.batches:
            for start in range(0, batch.num_rows, ROWS_PER_SLICE):
                yield self._records(batch.slice(start, ROWS_PER_SLICE))

    def _records(self, batch: "pa.RecordBatch") -> BulkRecords:
        now_ms = time.time_ns() // NS_PER_MS
        keys = times = None
        if self.key is not None:
            keys = bytes_of_array(f"key={self.key!r}", key_column(self.key, batch.column(self.key)))
        if self.timestamp is not None:
            times = timestamps_of_array(f"timestamp={self.timestamp!r}", batch.column(self.timestamp), now_ms)
        values: list[bytes] = json_objects(batch, self.columns).to_numpy(zero_copy_only=False).tolist()
        return BulkRecords.check(values, keys, None, times, now_ms)


def json_objects(batch: "pa.RecordBatch", names: Sequence[str]) -> "pa.Array":
    """Join the columns, each of which is JSON then, to an object for each row."""
    import pyarrow as pa
    from pyarrow import compute

    if not names:
        return pa.repeat(pa.scalar(b"{}", pa.large_binary()), batch.num_rows)
    pieces: list[Any] = []
    before = b"{"
    for name in names:
        column, quote = _json_column(name, batch.column(name))
        pieces += [pa.scalar(before + msgspec.json.encode(name) + b":" + quote, pa.large_binary()), column]
        before = quote + b","
    ends = (pa.scalar(text, pa.large_binary()) for text in (quote + b"}", b""))
    return compute.binary_join_element_wise(*pieces, *ends)


async def send_rows(
    topic: str, rows: FrameRows, send: Callable[[BulkRecords], Awaitable[RecordMetadataRanges]]
) -> RecordMetadataRanges:
    """Send slice after slice with `send`, and join the results. The slices are encoded in a thread."""
    count = 0
    batches: list[tuple[int, int, int]] = []
    slices = rows.slices()

    def next_slice() -> BulkRecords | None:
        return next(slices, None)

    try:
        records = await asyncio.to_thread(next_slice)
        if records is None:
            await send(BulkRecords([], None, None, 0))  # an unknown topic is an error for an empty frame, too
        while records is not None:
            sent = await send(records)
            count += sent.count
            batches += [(partition, each.start, len(each)) for partition, own in sent.ranges.items() for each in own]
            records = await asyncio.to_thread(next_slice)
    except Exception as error:
        error.add_note(f"{count} rows before it are acknowledged")
        raise
    return RecordMetadataRanges(topic, count, RecordMetadataRanges.of(topic, batches).ranges)


def _reader(frame: Any) -> Any:
    name = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}"
    is_frame = is_pandas("DataFrame", frame)
    if not is_frame and not hasattr(frame, "__arrow_c_stream__") and not hasattr(frame, "__arrow_c_array__"):
        hint = ": collect() it" if name == "polars.LazyFrame" else ""
        raise TypeError(f"a DataFrame of pandas or polars, or a table of Arrow expected, not {name}{hint}")
    pa = pyarrow_for(f"a {name}")
    try:
        if is_frame:
            named = [level for level in frame.index.names if level is not None and level not in frame.columns]
            columns = frame.reset_index(named) if named else frame
            return pa.Table.from_pandas(columns, preserve_index=False).to_reader()
        if hasattr(frame, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(frame)
        return pa.Table.from_batches([pa.record_batch(frame)]).to_reader()
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise TypeError(f"{name} is no table that Arrow can hold: {error}") from None


def _check_key(name: str, found: "pa.DataType") -> None:
    from pyarrow import types

    inner = found.value_type if types.is_dictionary(found) else found
    if not (is_text(inner) or is_bytes(inner) or types.is_integer(inner) or types.is_null(inner)):
        raise TypeError(f"key={name!r}: a column of text, bytes or integers expected, not of {found}")


def key_column(name: str, column: Any) -> "pa.Array":
    """The keys as text or bytes; TypeError if the column has neither, nor integers."""
    import pyarrow as pa

    _check_key(name, column.type)
    column = decoded(column)
    return column.cast(pa.string()) if pa.types.is_integer(column.type) else column


def _json_type(found: "pa.DataType") -> "pa.DataType":
    """The type to convert to for JSON: text for bytes, microseconds for nanoseconds."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(found):
        return _json_type(found.value_type)
    if is_text(found) or is_bytes(found):
        return pa.large_string()
    if types.is_timestamp(found):
        return pa.timestamp("us", found.tz)
    if types.is_time64(found):
        return pa.time64("us")
    if types.is_duration(found):
        return pa.duration("us")
    if types.is_struct(found):
        return pa.struct([field.with_type(_json_type(field.type)) for field in found])
    if types.is_map(found):
        return pa.map_(_json_type(found.key_type), _json_type(found.item_type))
    if types.is_list_view(found) or types.is_large_list_view(found):  # pyarrow 26 loses items when it casts them
        raise ValueError(f"a column of {found} has no form in JSON: cast it to a list first, or see columns=")
    if hasattr(found, "value_field"):  # the other types of lists
        return pa.large_list(_json_type(found.value_type))
    return found


def _json_column(name: str, column: Any) -> "tuple[pa.Array, bytes]":
    """The column as JSON, a text for each item, and what comes before and after each."""
    import pyarrow as pa
    from pyarrow import compute, types

    column = decoded(column)
    end = pa.scalar("", pa.large_string())
    text = None
    if types.is_floating(column.type):
        text = compute.if_else(compute.is_finite(column), column.cast(pa.large_string()), None)
        is_whole = compute.invert(compute.match_substring_regex(text, "[.e]"))
        whole = compute.binary_join_element_wise(text, pa.scalar(".0", pa.large_string()), end)
        text = compute.if_else(is_whole, whole, text)
    elif types.is_integer(column.type):
        text = column.cast(pa.large_string())
    elif is_text(column.type):
        plain = column.cast(pa.large_string())
        if not _has_escapes(plain):
            if not plain.null_count:
                return plain.cast(pa.large_binary()), b'"'
            quote = pa.scalar('"', pa.large_string())
            text = compute.binary_join_element_wise(quote, plain, quote, end)
    if text is not None:
        return compute.fill_null(text, "null").cast(pa.large_binary()), b""
    encode = msgspec.json.Encoder().encode
    return pa.array(list(map(encode, _plain_items(name, column))), pa.large_binary()), b""


def _has_escapes(texts: "pa.LargeStringArray") -> bool:
    """Whether a text has what JSON writes otherwise: a control character, a quotation mark or a backslash."""
    import numpy as np

    _, ends, data = texts.buffers()
    if data is None or not len(texts):
        return False
    first, last = np.frombuffer(ends, np.int64)[[texts.offset, texts.offset + len(texts)]]
    content = np.frombuffer(data, np.uint8)[first:last]
    return bool(((content < 0x20) | (content == ord('"')) | (content == ord("\\"))).any())


def _plain_items(name: str, column: Any) -> list[Any]:
    """The column as a list of what msgspec writes as JSON."""
    import pyarrow as pa
    from pyarrow.compute import CastOptions

    column = decoded(column)
    wanted = _json_type(column.type)
    try:
        if is_bytes(column.type):
            column = column.cast(pa.large_binary())
        if column.type != wanted:
            column = column.cast(options=CastOptions(wanted, allow_time_truncate=True))
        is_number = pa.types.is_integer(wanted) or pa.types.is_floating(wanted)
        is_plain = pa.types.is_large_string(wanted) or (is_number and not column.null_count)
        found: list[Any] = column.to_numpy(zero_copy_only=False).tolist() if is_plain else column.to_pylist()
    except (pa.ArrowException, OverflowError, ValueError, KeyError) as error:  # KeyError: an unknown time zone
        raise ValueError(f"column {name!r} of {column.type} has no form in JSON: {error}; see columns=") from None
    return found
