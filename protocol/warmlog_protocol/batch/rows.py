"""The body of a batch of rows (magic 2), as Kafka writes and reads it.

One record after another, as many as the batch's header says, compressed as a whole by the codec in attributes bits 0-2.
All integers are varints, see below::

    varint   size of what follows
    i8       attributes, unused
    varlong  timestamp delta: to the header's base timestamp, which is the first record's, or the delete horizon when
             attributes bit 6 is set; may be negative; sums wrap at 64 bits, as Java's do
    varint   offset delta: to the header's base offset
    varint   key size, -1 (read: any negative number) for null; then the key
    varint   value size, -1 for null; then the value
    varint   number of headers; each: varint name size, UTF-8 name; varint value size, -1 for null; then the value

With attributes bit 3 (append time), readers ignore the timestamp deltas: every record has the max timestamp.

A varint is Kafka's: zigzag, then groups of seven bits, the lowest first, bit 7 set on all but the last. Zigzag puts the
sign into bit 0, so that small negative numbers stay short: 0, -1, 1, -2 become 0, 1, 2, 3. A varint holds 32 bits and a
varlong 64; for numbers that fit both, the bytes are the same.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from warmlog_protocol.batch.column_data import Columns, columns_of, empty_columns
from warmlog_protocol.batch.header import BatchHeader
from warmlog_protocol.codec.compression import Codec, compress_rows
from warmlog_protocol.codec.memory import LARGE_BYTES
from warmlog_protocol.errors import CorruptBatch

BYTES_A_ROW = 64
"""The least memory of a decoded row: with a size limit, this limits the number of rows as well."""
ROWS_A_PIECE = 1024
LARGE_ROW_BYTES = 4096
"""Slices of a memoryview copy nothing, but take longer to create than slices of `bytes`, and 200 bytes each."""
MAX_HEADERS = 1_000_000
"""In one batch: a header of two bytes takes a hundred when decoded."""

_NO_ATTRIBUTES = b"\x00"
_NULL = b"\x01"
_NO_HEADERS = ()
_MAX_VARINT_BYTES = 10
_ONE_BYTE = [bytes((byte,)) for byte in range(0x80)]
_I64 = 1 << 64
_MIN_I64 = -(1 << 63)
_MAX_I64 = (1 << 63) - 1

Data = TypeVar("Data", bytes, memoryview)
Row = tuple[int, int, Data | None, Data | None, Sequence[tuple[str, Data | None]]]
"""Timestamp delta, offset delta, key, value and headers."""


def encode_rows(columns: Columns, *, base_timestamp_ms: int, codec: Codec = Codec.NONE) -> bytes:
    """Encode `columns`, with timestamps relative to `base_timestamp_ms`, as an empty body if there are no records."""
    if not columns.count:
        return b""
    rows = map(
        _pack_row,
        [_wrap(timestamp_ms - base_timestamp_ms) for timestamp_ms in columns.timestamp_list()],
        columns.offset_delta_list(),
        columns.key_list(),
        columns.value_list(),
        columns.header_list(),
    )
    parts: list[bytes] = []
    for row in rows:
        parts += (pack_varint(len(row)), row)
    return compress_rows(codec, b"".join(parts))


def check_row_count(header: BatchHeader, max_decompressed_bytes: int) -> None:
    """Raise CorruptBatch if the header states more rows than can be unpacked within this limit."""
    if header.record_count * BYTES_A_ROW > max_decompressed_bytes:
        raise CorruptBatch(f"{header.record_count} records: too many for {max_decompressed_bytes} bytes")


def decode_rows(header: BatchHeader, unpacked: memoryview) -> Columns:
    """Return the records in a body, which was decompressed, as columns: all of it checked, headers included.

    CorruptBatch for anything but the format above, and for offset deltas that do not increase or exceed the last one.
    """
    if not header.record_count:
        if len(unpacked):
            raise CorruptBatch(f"no records, but a body of {len(unpacked)} bytes")
        return empty_columns(header.base_timestamp_ms)
    has_large_rows = len(unpacked) > max(LARGE_BYTES, header.record_count * LARGE_ROW_BYTES)
    rows: Iterator[Row[Any]] = read_rows(header, unpacked) if has_large_rows else read_rows(header, bytes(unpacked))
    timestamp_deltas, offset_deltas, keys, values, headers = zip(*rows, strict=True)
    columns = columns_of(
        values,
        keys=keys,
        timestamps_ms=_timestamps_ms(header, timestamp_deltas),
        headers=headers,
        offset_deltas=_checked_offset_deltas(header, offset_deltas),
    )
    if header.has_delete_horizon:
        columns.delete_horizon_ms = header.base_timestamp_ms
        _check_delete_horizon(header)
    return columns


def _pack_row(
    timestamp_delta_ms: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
) -> bytes:
    """Encode one record without its size."""
    parts = [_NO_ATTRIBUTES, pack_varint(timestamp_delta_ms), pack_varint(offset_delta)]
    parts += (_NULL,) if key is None else (pack_varint(len(key)), key)
    parts += (_NULL,) if value is None else (pack_varint(len(value)), value)
    parts.append(pack_varint(len(headers)))
    for name, header_value in headers:
        encoded_name = name.encode()
        parts += (pack_varint(len(encoded_name)), encoded_name)
        parts += (_NULL,) if header_value is None else (pack_varint(len(header_value)), header_value)
    return b"".join(parts)


def read_rows(header: BatchHeader, data: Data) -> Iterator[Row[Data]]:
    """Yield the rows in `data`, which holds nothing else. The deltas are as stored.

    Keys and values are slices of `data`: views without a copy if it is a memoryview.
    """
    position = 0
    headers_left = MAX_HEADERS
    for number in range(header.record_count):
        try:
            row, position = _read_row(data, position)
        except IndexError:
            raise CorruptBatch(f"body of {len(data)} bytes ends within record {number}") from None
        if row[-1]:
            headers_left -= len(row[-1])
            if headers_left < 0:
                raise CorruptBatch(f"more than {MAX_HEADERS} record headers up to byte {position}")
        yield row
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes after the last of {header.record_count} records")


def check_rows(header: BatchHeader, data: memoryview) -> Iterator[Row[memoryview]]:
    """Yield the rows with all the checks of `decode_rows`, holding no more than one of them."""
    before = -1
    for row in read_rows(header, data):
        offset_delta = row[1]
        if not before < offset_delta <= header.last_offset_delta:
            raise _wrong_offset_delta(header, before, offset_delta)
        before = offset_delta
        yield row
    if header.has_delete_horizon:
        _check_delete_horizon(header)


def row_times(header: BatchHeader, data: memoryview) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield offset deltas and timestamps, some rows at a time; the rest of each row is not read."""
    position, before = 0, -1
    for start in range(0, header.record_count, ROWS_A_PIECE):
        timestamp_deltas: list[int] = []
        offset_deltas: list[int] = []
        for _ in range(min(ROWS_A_PIECE, header.record_count - start)):
            timestamp_delta, offset_delta, position = _read_deltas(data, position)
            if not before < offset_delta <= header.last_offset_delta:
                raise _wrong_offset_delta(header, before, offset_delta)
            before = offset_delta
            timestamp_deltas.append(timestamp_delta)
            offset_deltas.append(offset_delta)
        timestamps_ms = _timestamps_ms(header, timestamp_deltas)
        yield offset_deltas, [timestamps_ms] * len(offset_deltas) if isinstance(timestamps_ms, int) else timestamps_ms


def _read_deltas(data: memoryview, position: int) -> tuple[int, int, int]:
    """Timestamp delta and offset delta of the row at `position`, and the position after the row."""
    try:
        size, start = read_varint(data, position)
        timestamp_delta, at = read_varint(data, start + 1)  # one byte of unused attributes is skipped
        offset_delta, at = read_varint(data, at)
    except IndexError:
        raise CorruptBatch(f"body of {len(data)} bytes ends within a record at byte {position}") from None
    end = start + size
    if not at <= end <= len(data):
        raise CorruptBatch(f"record of {size} bytes at byte {start}, {len(data) - start} left")
    return timestamp_delta, offset_delta, end


def _read_row(data: Data, position: int) -> tuple[Row[Data], int]:
    """The row at `position`, and the position after it. IndexError when `data` ends within an integer.

    One-byte integers, the most common, are read inline: a call for each takes nearly twice as long. If a key or value
    extends past the end of `data`, the position after it is not the record's end, and the row is refused.
    """
    size, position = read_varint(data, position)
    end = position + size
    if size < 0 or end > len(data):
        raise CorruptBatch(f"record of {size} bytes, {len(data) - position} left")
    timestamp_delta, position = data[position + 1], position + 2  # one byte of unused attributes is skipped
    if timestamp_delta >= 0x80:
        timestamp_delta, position = read_more(data, position, timestamp_delta)
    offset_delta, position = data[position], position + 1
    if offset_delta >= 0x80:
        offset_delta, position = read_more(data, position, offset_delta)
    key = value = None
    key_size, position = data[position], position + 1
    if key_size >= 0x80:
        key_size, position = read_more(data, position, key_size)
    if not key_size & 1:  # zigzag: bit 0 is the sign
        key, position = data[position : position + (key_size >> 1)], position + (key_size >> 1)
    value_size, position = data[position], position + 1
    if value_size >= 0x80:
        value_size, position = read_more(data, position, value_size)
    if not value_size & 1:
        value, position = data[position : position + (value_size >> 1)], position + (value_size >> 1)
    headers, position = _read_headers(data, position) if data[position] else (_NO_HEADERS, position + 1)
    if position != end:
        raise CorruptBatch(f"record of {size} bytes, its fields take {size + position - end}")
    return (
        timestamp_delta >> 1 ^ -(timestamp_delta & 1),
        offset_delta >> 1 ^ -(offset_delta & 1),
        key,
        value,
        headers,
    ), end


def _read_headers(data: Data, position: int) -> tuple[Sequence[tuple[str, Data | None]], int]:
    count, position = read_varint(data, position)
    if not 0 <= count <= MAX_HEADERS:
        raise CorruptBatch(f"{count} headers before byte {position}")
    headers: list[tuple[str, Data | None]] = []
    for _ in range(count):
        name, position = _read_bytes(data, position)
        value, position = _read_bytes(data, position)
        if name is None:
            raise CorruptBatch(f"record header without a name before byte {position}")
        try:
            headers.append((str(name, "utf-8"), value))
        except UnicodeDecodeError as error:
            raise CorruptBatch(f"record header's name {bytes(name)!r:.80}: {error}") from error
    return headers, position


def _read_bytes(data: Data, position: int) -> tuple[Data | None, int]:
    size, position = read_varint(data, position)
    if size < 0:
        return None, position
    if position + size > len(data):
        raise CorruptBatch(f"{size} bytes expected at byte {position}, {len(data) - position} left")
    return data[position : position + size], position + size


def _timestamps_ms(header: BatchHeader, deltas: Sequence[int]) -> int | list[int]:
    if header.is_log_append_time:
        return header.max_timestamp_ms
    base = header.base_timestamp_ms
    if base + min(deltas) < _MIN_I64 or base + max(deltas) > _MAX_I64:
        return [_wrap(base + delta) for delta in deltas]
    return [base + delta for delta in deltas]


def _checked_offset_deltas(header: BatchHeader, deltas: Sequence[int]) -> Sequence[int] | None:
    """Return the deltas, None if they are 0, 1, 2, …; CorruptBatch if they do not increase or exceed the last."""
    if deltas[-1] > header.last_offset_delta:
        raise CorruptBatch(f"offset delta {deltas[-1]} is above the last, {header.last_offset_delta}")
    if deltas == tuple(range(len(deltas))):
        return None
    for before, delta in pairwise((-1, *deltas)):
        if delta <= before:
            raise CorruptBatch(f"offset delta {delta} after {before}")
    return deltas


def _wrong_offset_delta(header: BatchHeader, before: int, delta: int) -> CorruptBatch:
    return CorruptBatch(f"offset delta {delta} after {before}, the last is {header.last_offset_delta}")


def _check_delete_horizon(header: BatchHeader) -> None:
    if header.base_timestamp_ms < 0:
        raise CorruptBatch(f"delete horizon {header.base_timestamp_ms} is no timestamp")


def _wrap(number: int) -> int:
    """`number` modulo 2^64, as a signed integer of 64 bits."""
    return (number - _MIN_I64) % _I64 + _MIN_I64


def pack_varint(value: int) -> bytes:
    """Return `value`, which must fit in 64 bits, as a zigzag varint."""
    zigzag = value << 1 if value >= 0 else ~(value << 1)
    if zigzag < 0x80:
        return _ONE_BYTE[zigzag]
    if zigzag < 0x4000:
        return bytes((zigzag & 0x7F | 0x80, zigzag >> 7))
    groups = bytearray()
    while zigzag >= 0x80:
        groups.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    groups.append(zigzag)
    return bytes(groups)


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the number at `position` and where it ends. CorruptBatch past 64 bits, IndexError if `data` ends."""
    zigzag = data[position]
    position += 1
    if zigzag >= 0x80:
        zigzag, position = read_more(data, position, zigzag)
    return zigzag >> 1 ^ -(zigzag & 1), position


def read_more(data: bytes | memoryview, position: int, first: int) -> tuple[int, int]:
    """Return the number, still in zigzag, whose first byte was `first` with bit 7 set, and the position after it.

    CorruptBatch past 64 bits, IndexError if `data` ends.
    """
    group = data[position]
    position += 1
    zigzag = first & 0x7F | (group & 0x7F) << 7
    if group < 0x80:
        return zigzag, position
    for shift in range(14, 7 * _MAX_VARINT_BYTES, 7):
        group = data[position]
        position += 1
        zigzag |= (group & 0x7F) << shift
        if group < 0x80 and not zigzag >> 64:
            return zigzag, position
    raise CorruptBatch(f"integer before byte {position} does not fit 64 bits")
