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

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from io import BytesIO
from itertools import pairwise, repeat
from operator import add
from typing import Any, Generic, NamedTuple, TypeVar

from warmlog_protocol.batch.column_data import Columns, columns_of, decode_headers, empty_columns
from warmlog_protocol.batch.header import BatchHeader
from warmlog_protocol.batch.int_column import IntColumn, pack_ints
from warmlog_protocol.codec.compression import Codec, compress
from warmlog_protocol.codec.memory import LARGE_BYTES, Piece, joined
from warmlog_protocol.errors import CorruptBatch

BYTES_A_ROW = 64
"""The least memory of a decoded row: with a size limit, this limits the number of rows as well."""
ROWS_A_PIECE = 1024
"""Some 0.5 ms of processor time, to decode or to encode, unless they are large."""
LARGE_ROW_BYTES = 4096
"""Slices of a memoryview copy nothing, but take longer to create than slices of `bytes`, and 200 bytes each."""
MAX_HEADERS = 1_000_000
"""In one batch: a header of two bytes takes a hundred when decoded."""

_NO_ATTRIBUTES = _NO_HEADERS = b"\x00"
_NULL = b"\x01"
_MAX_VARINT_BYTES = 10
_ONE_BYTE = [bytes((byte,)) for byte in range(0x80)]
_TABLE_END = 1 << 13
"""Below it, varints have at most two bytes."""
_SECOND_BYTE = [(byte - 1) << 7 for byte in range(0x80)]
"""What the second byte of two adds to the first, whose bit 7 is set."""
_I64 = 1 << 64
_MIN_I64 = -(1 << 63)
_MAX_I64 = (1 << 63) - 1

Data = TypeVar("Data", bytes, memoryview)


class Rows(NamedTuple, Generic[Data]):
    """Some rows by field, one item a row. Timestamp deltas are in zigzag, as stored."""

    timestamp_deltas: list[int]
    offset_deltas: Sequence[int]
    keys: list[Data | None]
    values: list[Data | None]
    headers: list[Sequence[tuple[str, Data | None]]] | None
    """None if none of the rows has any."""


def encode_rows(
    columns: Columns, *, base_timestamp_ms: int, codec: Codec = Codec.NONE, rest: Callable[[], None] = lambda: None
) -> list[Piece]:
    """Return the body of `columns` in pieces, with timestamps relative to `base_timestamp_ms`.

    It is empty if there are no records. `rest` is called after each ROWS_A_PIECE rows.
    """
    pieces: list[Piece] = []
    read_key, read_value, read_headers = (
        BytesIO(data).read for data in (columns.keys, columns.values, columns.headers)
    )
    for start in range(0, columns.count, ROWS_A_PIECE):
        stop = min(start + ROWS_A_PIECE, columns.count)
        rows = _RowFields(stop - start)
        rows.add_timestamps(
            columns.timestamp_deltas_ms.part(start, stop), columns.base_timestamp_ms - base_timestamp_ms
        )
        deltas = columns.offset_deltas
        rows.add_numbers(range(start, stop) if deltas is None else deltas.part(start, stop).tolist())
        for lengths, read in ((columns.key_lengths, read_key), (columns.value_lengths, read_value)):
            rows.add_items(None if lengths is None else lengths.part(start, stop), read)
        lengths = columns.header_lengths
        rows.add_headers(None if lengths is None else map(read_headers, lengths.part(start, stop).tolist()))
        pieces.append(rows.packed())
        rest()
    return pieces if codec is Codec.NONE or not pieces else [compress(codec, joined(pieces), is_rows=True)]


class _RowFields:
    """The fields of `count` rows, added in the order of the format; each is a list with an item a row.

    Sizes are kept as one number for all rows as long as they are the same: that makes it twice as fast.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._fields: list[Sequence[bytes]] = []
        self._common_bytes = 0
        self._sizes: Iterable[int] | None = None
        """What the size of each row exceeds `_common_bytes` by."""
        self.add_same(_NO_ATTRIBUTES)

    def add_same(self, field: bytes) -> None:
        self._fields.append([field] * self._count)
        self._common_bytes += len(field)

    def add_timestamps(self, deltas: IntColumn, base: int) -> None:
        """Add timestamp deltas, to each of which `base` is added."""
        if deltas.is_constant:
            self.add_same(pack_varint(_wrap(base + deltas.constant)))
            return
        numbers = [base + delta for delta in deltas.tolist()] if base else deltas.tolist()
        if not _MIN_I64 <= min(numbers) <= max(numbers) <= _MAX_I64:
            numbers = list(map(_wrap, numbers))
        self.add_numbers(numbers)

    def add_numbers(self, numbers: Sequence[int]) -> None:
        field, size_bytes = _varints(numbers)
        self._fields.append(field)
        if size_bytes is None:
            self._add_sizes(map(len, field))
        else:
            self._common_bytes += size_bytes

    def add_items(self, lengths: IntColumn | None, read: Callable[[int], bytes]) -> None:
        """Add keys or values: their lengths, given plus one and 0 for null, and the bytes that `read` returns."""
        if lengths is None or (lengths.is_constant and not lengths.constant):
            self.add_same(_NULL)
        elif lengths.is_constant:
            length = lengths.constant - 1
            self.add_same(pack_varint(length))
            self._fields.append(list(map(read, repeat(length, self._count))))
            self._common_bytes += length
        else:
            stored = lengths.tolist()
            self._fields += (_varints(stored, -1)[0], [read(length - 1) if length else b"" for length in stored])
            if max(stored) <= _TABLE_END:
                item_bytes = _table()[1]
                self._add_sizes([item_bytes[length] for length in stored])
            else:
                self._add_sizes(map(len, self._fields[-1]))
                self._add_sizes(map(len, self._fields[-2]))

    def add_headers(self, encoded: Iterable[bytes] | None) -> None:
        """Add record headers, which are encoded as in columns; None if no row has any."""
        if encoded is None:
            self.add_same(_NO_HEADERS)
            return
        field = [_pack_headers(headers) if headers else _NO_HEADERS for headers in encoded]
        self._fields.append(field)
        self._add_sizes(map(len, field))

    def packed(self) -> Piece:
        """Return the rows, each after its size."""
        sizes = [0] * self._count if self._sizes is None else list(self._sizes)
        fields = (_varints(sizes, self._common_bytes)[0], *self._fields)
        parts: list[bytes] = [b""] * (self._count * len(fields))
        for number, field in enumerate(fields):
            parts[number :: len(fields)] = field
        size_bytes = sum(sizes) + self._common_bytes * self._count
        return b"".join(parts) if size_bytes <= LARGE_BYTES else joined(parts)

    def _add_sizes(self, sizes: Iterable[int]) -> None:
        self._sizes = sizes if self._sizes is None else map(add, self._sizes, sizes)


def check_row_count(header: BatchHeader, max_decompressed_bytes: int) -> None:
    """Raise CorruptBatch if the header states more rows than can be unpacked within this limit."""
    if header.record_count * BYTES_A_ROW > max_decompressed_bytes:
        raise CorruptBatch(f"{header.record_count} records: too many for {max_decompressed_bytes} bytes")


def decode_rows(header: BatchHeader, unpacked: memoryview) -> Columns:
    """Return the records in a body, which was decompressed, as columns: all of it checked, headers included.

    CorruptBatch for anything but the format above, and for offset deltas that do not increase or exceed the last one.
    """
    count = header.record_count
    if not count:
        if len(unpacked):
            raise CorruptBatch(f"no records, but a body of {len(unpacked)} bytes")
        return empty_columns(header.base_timestamp_ms)
    has_large_rows = len(unpacked) > max(LARGE_BYTES, count * LARGE_ROW_BYTES)
    data: Any = unpacked if has_large_rows else bytes(unpacked)
    (rows,) = read_rows(header, data, rows_a_piece=count)
    columns = columns_of(
        rows.values,
        keys=None if rows.keys.count(None) == count else rows.keys,
        timestamps_ms=0,
        headers=rows.headers,
        offset_deltas=None if isinstance(rows.offset_deltas, range) else rows.offset_deltas,
    )
    base_ms, deltas_ms = _times(header, rows.timestamp_deltas)
    least_ms = min(deltas_ms)
    columns.base_timestamp_ms = base_ms + least_ms
    columns.timestamp_deltas_ms = pack_ints([delta_ms - least_ms for delta_ms in deltas_ms] if least_ms else deltas_ms)
    if header.has_delete_horizon:
        columns.delete_horizon_ms = header.base_timestamp_ms
    return columns


def read_rows(header: BatchHeader, data: Data, rows_a_piece: int = ROWS_A_PIECE) -> Iterator[Rows[Data]]:
    """Yield the rows in `data`, some at a time, with the checks of `decode_rows`.

    Keys and values are slices of `data`: views without a copy if it is a memoryview.
    """
    position, last_delta, headers_left = 0, -1, MAX_HEADERS
    for start in range(0, header.record_count, rows_a_piece):
        numbers = range(start, min(start + rows_a_piece, header.record_count))
        rows, position = _read_piece(data, position, numbers, headers_left)
        if rows.headers is not None:
            headers_left -= sum(map(len, rows.headers))
        deltas = _offset_deltas(header, rows.offset_deltas, numbers, last_delta)
        last_delta = deltas[-1]
        yield rows._replace(offset_deltas=deltas)
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes after the last of {header.record_count} records")
    if header.has_delete_horizon and header.base_timestamp_ms < 0:
        raise CorruptBatch(f"delete horizon {header.base_timestamp_ms} is no timestamp")


def _read_piece(  # noqa: C901 - a call for each integer takes twice as long
    data: Data, position: int, numbers: range, headers_left: int
) -> tuple[Rows[Data], int]:
    """Return the rows with these numbers, which begin at `position`, and where they end. All deltas are in zigzag.

    Integers of one and two bytes, the most common, are read inline. If a key or value extends past the end of `data`,
    the position after it is not the record's end, and the row is refused.
    """
    timestamp_deltas: list[int] = []
    offset_deltas: list[int] = []
    keys: list[Data | None] = []
    values: list[Data | None] = []
    headers: list[Sequence[tuple[str, Data | None]]] = []
    add_timestamp, add_offset = timestamp_deltas.append, offset_deltas.append
    add_key, add_value, second_byte = keys.append, values.append, _SECOND_BYTE
    number = numbers.start
    try:
        for number in numbers:
            size = data[position]
            position += 1
            if size >= 0x80:
                if (byte := data[position]) < 0x80:
                    size += second_byte[byte]
                    position += 1
                else:
                    size, position = read_more(data, position, size)
            record_start = position
            delta = data[position + 1]  # one byte of unused attributes is skipped
            position += 2
            if delta >= 0x80:
                if (byte := data[position]) < 0x80:
                    delta += second_byte[byte]
                    position += 1
                else:
                    delta, position = read_more(data, position, delta)
            add_timestamp(delta)
            delta = data[position]
            position += 1
            if delta >= 0x80:
                if (byte := data[position]) < 0x80:
                    delta += second_byte[byte]
                    position += 1
                else:
                    delta, position = read_more(data, position, delta)
            add_offset(delta)
            item_size = data[position]
            position += 1
            if item_size >= 0x80:
                if (byte := data[position]) < 0x80:
                    item_size += second_byte[byte]
                    position += 1
                else:
                    item_size, position = read_more(data, position, item_size)
            if item_size & 1:  # zigzag: bit 0 is the sign
                add_key(None)
            else:
                start = position
                position += item_size >> 1
                add_key(data[start:position])
            item_size = data[position]
            position += 1
            if item_size >= 0x80:
                if (byte := data[position]) < 0x80:
                    item_size += second_byte[byte]
                    position += 1
                else:
                    item_size, position = read_more(data, position, item_size)
            if item_size & 1:
                add_value(None)
            else:
                start = position
                position += item_size >> 1
                add_value(data[start:position])
            if data[position]:
                found, position = _read_headers(data, position)
                headers_left -= len(found)
                if headers_left < 0:
                    raise CorruptBatch(f"more than {MAX_HEADERS} record headers up to byte {position}")
                headers += repeat((), number - numbers.start - len(headers))
                headers.append(found)
            else:
                position += 1
            if position - record_start << 1 != size:
                stated = size >> 1 ^ -(size & 1)
                raise CorruptBatch(f"record {number} of {stated} bytes, its fields take {position - record_start}")
    except IndexError:
        raise CorruptBatch(f"body of {len(data)} bytes ends within record {number}") from None
    if headers:
        headers += repeat((), len(numbers) - len(headers))
    return Rows(timestamp_deltas, offset_deltas, keys, values, headers or None), position


def row_times(header: BatchHeader, data: memoryview) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield offset deltas and timestamps, some rows at a time; the rest of each row is not read."""
    position, before = 0, -1
    for start in range(0, header.record_count, ROWS_A_PIECE):
        timestamp_deltas: list[int] = []
        offset_deltas: list[int] = []
        for _ in range(min(ROWS_A_PIECE, header.record_count - start)):
            timestamp_delta, offset_delta, position = _read_deltas(data, position)
            if not before < offset_delta <= header.last_offset_delta:
                last = header.last_offset_delta
                raise CorruptBatch(f"offset delta {offset_delta} after {before}, the last is {last}")
            before = offset_delta
            timestamp_deltas.append(timestamp_delta)
            offset_deltas.append(offset_delta)
        base_ms, deltas_ms = _times(header, timestamp_deltas)
        yield offset_deltas, [base_ms + delta_ms for delta_ms in deltas_ms]


def _read_deltas(data: memoryview, position: int) -> tuple[int, int, int]:
    """Timestamp delta in zigzag and offset delta of the row at `position`, and the position after the row."""
    try:
        size, start = read_varint(data, position)
        timestamp_delta, at = data[start + 1], start + 2  # one byte of unused attributes is skipped
        if timestamp_delta >= 0x80:
            timestamp_delta, at = read_more(data, at, timestamp_delta)
        offset_delta, at = read_varint(data, at)
    except IndexError:
        raise CorruptBatch(f"body of {len(data)} bytes ends within a record at byte {position}") from None
    end = start + size
    if not at <= end <= len(data):
        raise CorruptBatch(f"record of {size} bytes at byte {start}, {len(data) - start} left")
    return timestamp_delta, offset_delta, end


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


def _times(header: BatchHeader, deltas: list[int]) -> tuple[int, list[int]]:
    """Return a base time and what the rows' times exceed it by, for timestamp deltas in zigzag."""
    if header.is_log_append_time:
        return header.max_timestamp_ms, [0] * len(deltas)
    base_ms, bound = header.base_timestamp_ms, max(deltas)
    deltas_ms = [delta >> 1 ^ -(delta & 1) for delta in deltas] if bound else deltas
    if base_ms - bound < _MIN_I64 or base_ms + bound > _MAX_I64:
        return 0, [_wrap(base_ms + delta_ms) for delta_ms in deltas_ms]
    return base_ms, deltas_ms


def _offset_deltas(header: BatchHeader, deltas: Sequence[int], numbers: range, before: int) -> Sequence[int]:
    """Return the deltas of the rows with these numbers out of zigzag: the numbers themselves if none is left out.

    CorruptBatch if they do not increase from `before` on, or exceed the last one of the batch.
    """
    found: Sequence[int] = numbers
    if before >= numbers.start or deltas != list(range(2 * numbers.start, 2 * numbers.stop, 2)):
        found = [delta >> 1 ^ -(delta & 1) for delta in deltas]
        for one, after in pairwise((before, *found)):
            if after <= one:
                raise CorruptBatch(f"offset delta {after} after {one}")
    if found[-1] > header.last_offset_delta:
        raise CorruptBatch(f"offset delta {found[-1]} is above the last, {header.last_offset_delta}")
    return found


@cache
def _table() -> tuple[list[bytes], list[int]]:
    """Varints, `number` at index `number + 1`, from -1 to _TABLE_END - 1; how many bytes an item of this length takes.

    It takes 3 ms to make.
    """
    varints = [pack_varint(number) for number in range(-1, _TABLE_END)]
    return varints, [len(varint) + max(length, 0) for length, varint in enumerate(varints, -1)]


def _varints(numbers: Sequence[int], shift: int = 0) -> tuple[list[bytes], int | None]:
    """Return the varints of `number + shift` for each of `numbers`, and the size of each, None if sizes may differ."""
    shift += 1
    is_range = isinstance(numbers, range)
    least, most = (numbers[0], numbers[-1]) if is_range else (min(numbers), max(numbers))
    if len(numbers) == 1 or least + shift < 0 or most + shift > _TABLE_END:  # a marker needs no table
        return [pack_varint(number + shift - 1) for number in numbers], None
    table = _table()[0]
    if is_range:
        field = table[least + shift : most + shift + 1]
    else:
        field = [table[number + shift] for number in numbers] if shift else [table[number] for number in numbers]
    size_bytes = len(table[least + shift])
    return field, size_bytes if len(table[most + shift]) == size_bytes else None


def _pack_headers(encoded: bytes) -> bytes:
    """Return the headers of one record, `encoded` as in columns, as in a row."""
    headers = decode_headers(encoded)
    parts = [pack_varint(len(headers))]
    for name, value in headers:
        encoded_name = name.encode()
        parts += (pack_varint(len(encoded_name)), encoded_name)
        parts += (_NULL,) if value is None else (pack_varint(len(value)), value)
    return b"".join(parts)


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
