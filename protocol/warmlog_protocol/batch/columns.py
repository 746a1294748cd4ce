"""The body of a columnar batch (magic 3): warmlog's own format, which Arrow reads without parsing each record.

Everything is little-endian; n is the record count of the batch's header::

    u8   columns present: bit 0 keys, bit 1 headers, bit 2 offset deltas; other bits are refused
    u32  size of the rest when not compressed
    u64  delete horizon, milliseconds since the epoch       only when attributes bit 6 is set (after compaction)
    the rest, compressed as a whole by the codec in attributes bits 0-2 (see `codec.compression`):
      integer columns, each: u8 width (0, 1, 2, 4 or 8), then n unsigned integers of that width
                             (width 0: one u64, the value of every record)
        offset deltas        only when n differs from lastOffsetDelta + 1; strictly increasing, at most lastOffsetDelta
        timestamp deltas     milliseconds since baseTimestamp, which is the smallest timestamp in the batch
        key lengths + 1      0 means a null key             (absent when no record has a key)
        value lengths + 1    0 means a null value (a tombstone)
        header lengths       bytes of the record's msgpack array, 0 for none (absent when no record has headers)
      data: all keys, then all values, then all headers (see `column_data`), each concatenated without gaps

A writer uses the least width that holds a column; a reader accepts any. With attributes bit 3 (append time), readers
ignore the timestamp deltas: every record has maxTimestamp. A batch that compaction emptied has n = 0 and no body.
Control batches are never columnar.

A column of width 0 describes any number of records in nine bytes, so a size limit alone would not bound a reader's
memory. Therefore n is limited as well, to the number of pointers that fit into the largest body allowed.
"""

from collections.abc import Sequence
from struct import Struct

from warmlog_protocol.batch.column_data import Columns, data_bytes, empty_columns
from warmlog_protocol.batch.header import BatchHeader
from warmlog_protocol.batch.int_column import IntColumn, pack_ints, read_column
from warmlog_protocol.codec.compression import Codec, compress, decompress
from warmlog_protocol.codec.memory import Piece, joined
from warmlog_protocol.errors import CorruptBatch, MessageTooLarge

HAS_KEYS = 1 << 0
HAS_HEADERS = 1 << 1
HAS_OFFSET_DELTAS = 1 << 2

_PREFIX = Struct("<BI")
_HORIZON = Struct("<Q")
_MAX_SIZE = (1 << 32) - 1
_MAX_I64 = (1 << 63) - 1
_POINTER_BYTES = 8
_WIDTH_BYTES = {width: bytes((width,)) for width in (0, 1, 2, 4, 8)}


def encode_columns(columns: Columns, *, last_offset_delta: int, codec: Codec = Codec.NONE) -> bytes:
    """Encode `columns`, as an empty body if there are no records. MessageTooLarge if the size does not fit 32 bits."""
    if not columns.count:
        return b""
    prefix, parts = _lay_out(columns, (columns.keys, columns.values, columns.headers), last_offset_delta)
    return b"".join((prefix, *parts)) if codec is Codec.NONE else prefix + compress(codec, joined(parts))


def encode_columns_in_pieces(
    columns: Columns, data: Sequence[Piece], *, last_offset_delta: int, codec: Codec = Codec.NONE
) -> list[Piece]:
    """As `encode_columns`, in pieces, and with `data` (all keys, all values, all headers) instead of that of `columns`.

    There must be at least one record.
    """
    prefix, parts = _lay_out(columns, data, last_offset_delta)
    if codec is not Codec.NONE:
        return [prefix, compress(codec, joined(parts))]
    integers = len(parts) - len(data)
    return [b"".join((prefix, *parts[:integers])), *data]


def _lay_out(columns: Columns, data: Sequence[Piece], last_offset_delta: int) -> tuple[bytes, list[Piece]]:
    """Return the part before the compressed one, and the pieces of the compressed one: integer columns, then `data`."""
    present = 0
    parts: list[Piece] = []
    if columns.count != last_offset_delta + 1:
        present |= HAS_OFFSET_DELTAS
        _add_column(parts, columns.offset_deltas or pack_ints(range(columns.count)))
    _add_column(parts, columns.timestamp_deltas_ms)
    if columns.key_lengths is not None:
        present |= HAS_KEYS
        _add_column(parts, columns.key_lengths)
    _add_column(parts, columns.value_lengths)
    if columns.header_lengths is not None:
        present |= HAS_HEADERS
        _add_column(parts, columns.header_lengths)
    parts += data
    size = sum(map(len, parts))
    if size > _MAX_SIZE:
        raise MessageTooLarge(f"records of {size} bytes in one batch, at most {_MAX_SIZE} are possible")
    horizon = b"" if columns.delete_horizon_ms is None else _HORIZON.pack(columns.delete_horizon_ms)
    return _PREFIX.pack(present, size) + horizon, parts


def columns_bytes(header: BatchHeader, body: memoryview, max_decompressed_bytes: int) -> int:
    """Return how much memory unpacking takes: 0 if the columns are read in place.

    CorruptBatch for a size or a record count over the limit, and for a body that cannot be columns.
    """
    if header.is_control:
        raise CorruptBatch("a control batch in columns")
    if header.record_count * _POINTER_BYTES > max_decompressed_bytes:
        raise CorruptBatch(f"{header.record_count} records: too many for {max_decompressed_bytes} bytes")
    position = _rest_position(header)
    if len(body) < position:
        raise CorruptBatch(f"body of {len(body)} bytes, at least {position} expected")
    present, size = _PREFIX.unpack_from(body)
    if present & ~(HAS_KEYS | HAS_HEADERS | HAS_OFFSET_DELTAS):
        raise CorruptBatch(f"columns present {present:#04x}: unknown bits")
    if size > max_decompressed_bytes:
        raise CorruptBatch(f"columns of {size} bytes are over the limit of {max_decompressed_bytes}")
    if header.codec is not Codec.NONE:
        return int(size)
    if len(body) - position != size:
        raise CorruptBatch(f"body: {size} bytes expected, {len(body) - position} found")
    return 0


def unpack_columns(header: BatchHeader, body: memoryview) -> memoryview:
    """Return the decompressed integer columns and data of a `body` that `columns_bytes` has checked."""
    _, size = _PREFIX.unpack_from(body)
    rest = body[_rest_position(header) :]
    return rest if header.codec is Codec.NONE else decompress(header.codec, rest, size=size)


def decode_columns(
    header: BatchHeader, body: memoryview, unpacked: memoryview, column_type: type[IntColumn] = IntColumn
) -> Columns:
    """Return the columns in `body`, which `unpack_columns` has unpacked: all of it checked, and read in place.

    Integers become columns of `column_type`; a subclass may check them faster. CorruptBatch for anything but the format
    above.
    """
    if not header.record_count:
        if len(body):
            raise CorruptBatch(f"no records, but a body of {len(body)} bytes")
        return empty_columns(header.base_timestamp_ms)
    delete_horizon_ms = None
    if header.has_delete_horizon:
        (delete_horizon_ms,) = _HORIZON.unpack_from(body, _PREFIX.size)
        if delete_horizon_ms > _MAX_I64:
            raise CorruptBatch(f"delete horizon {delete_horizon_ms} is no timestamp")
    count = header.record_count
    key_lengths = header_lengths = None
    offset_deltas, base_timestamp_ms, timestamp_deltas_ms, position = read_times(header, body, unpacked, column_type)
    if body[0] & HAS_KEYS:
        key_lengths, position = read_column(unpacked, position, count, column_type)
    value_lengths, position = read_column(unpacked, position, count, column_type)
    if body[0] & HAS_HEADERS:
        header_lengths, position = read_column(unpacked, position, count, column_type)
    keys, values, headers = _split_data(unpacked[position:], key_lengths, value_lengths, header_lengths)
    return Columns(
        count,
        base_timestamp_ms=base_timestamp_ms,
        timestamp_deltas_ms=timestamp_deltas_ms,
        value_lengths=value_lengths,
        values=values,
        key_lengths=key_lengths,
        keys=keys,
        header_lengths=header_lengths,
        headers=headers,
        offset_deltas=offset_deltas,
        delete_horizon_ms=delete_horizon_ms,
    )


def read_times(
    header: BatchHeader, body: memoryview, unpacked: memoryview, column_type: type[IntColumn] = IntColumn
) -> tuple[IntColumn | None, int, IntColumn, int]:
    """Return offset deltas (None: 0, 1, 2, …), base timestamp, timestamp deltas, and where the next column begins."""
    count = header.record_count
    position = 0
    offset_deltas = None
    if body[0] & HAS_OFFSET_DELTAS:
        offset_deltas, position = read_column(unpacked, position, count, column_type)
    _check_offset_deltas(header, offset_deltas)
    timestamp_deltas_ms, position = read_column(unpacked, position, count, column_type)
    base_timestamp_ms = header.base_timestamp_ms
    if header.is_log_append_time:
        base_timestamp_ms, timestamp_deltas_ms = header.max_timestamp_ms, IntColumn.constant_of(0, count)
    _check_timestamps(base_timestamp_ms, timestamp_deltas_ms)
    return offset_deltas, base_timestamp_ms, timestamp_deltas_ms, position


def repack_columns(header: BatchHeader, body: memoryview, unpacked: memoryview, codec: Codec) -> list[Piece]:
    """Return the body with the same columns, compressed by `codec`, in pieces. The columns are not decoded."""
    return [body[: _rest_position(header)], compress(codec, unpacked)]


def _add_column(parts: list[Piece], column: IntColumn) -> None:
    parts += (_WIDTH_BYTES[column.width], column.data)


def _rest_position(header: BatchHeader) -> int:
    """The position at which the compressed part of a body begins."""
    return _PREFIX.size + (_HORIZON.size if header.has_delete_horizon else 0)


def _split_data(
    data: memoryview, key_lengths: IntColumn | None, value_lengths: IntColumn, header_lengths: IntColumn | None
) -> tuple[memoryview, memoryview, memoryview]:
    """Return the keys, values and headers that `data` consists of."""
    keys_bytes = 0 if key_lengths is None else data_bytes(key_lengths)
    values_bytes = data_bytes(value_lengths)
    headers_bytes = 0 if header_lengths is None else header_lengths.total()
    if keys_bytes + values_bytes + headers_bytes != len(data):
        raise CorruptBatch(
            f"keys of {keys_bytes}, values of {values_bytes} and headers of {headers_bytes} bytes, "
            f"but {len(data)} bytes of data"
        )
    headers_start = keys_bytes + values_bytes
    return data[:keys_bytes], data[keys_bytes:headers_start], data[headers_start:]


def _check_offset_deltas(header: BatchHeader, deltas: IntColumn | None) -> None:
    last = header.last_offset_delta
    if deltas is None:
        if header.record_count != last + 1:
            raise CorruptBatch(f"{header.record_count} records up to offset delta {last}, but no offset deltas")
        return
    if not deltas.is_increasing():
        raise CorruptBatch("offset deltas are not increasing")
    if deltas.largest() > last:
        raise CorruptBatch(f"offset delta {deltas.largest()} is above the last, {last}")


def _check_timestamps(base_timestamp_ms: int, deltas: IntColumn) -> None:
    """Raise CorruptBatch if a timestamp exceeds 64 bits; usually the width alone rules that out."""
    if base_timestamp_ms + deltas.bound > _MAX_I64 and base_timestamp_ms + deltas.largest() > _MAX_I64:
        raise CorruptBatch(f"timestamp {base_timestamp_ms} + {deltas.largest()} does not fit 64 bits")
