"""The records of one batch by column: the output of both decoders and the input of both encoders.

Lengths are integer columns and data is one buffer per column, so Arrow can wrap them; the methods return Python lists
with one item per record.

The headers of one record are named values beside its key and value. In columns they are one msgpack array of
[name, value] pairs, or no bytes if there are none; names are UTF-8 strings, values binary or nil. Order is kept and
names may repeat, as in Kafka.
"""

from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import accumulate, compress, islice, repeat
from operator import ge

import msgspec

from warmlog_protocol.batch.int_column import PIECE_VALUES, IntColumn, pack_ints
from warmlog_protocol.codec.memory import LARGE_BYTES, joined
from warmlog_protocol.codec.msgpack import encode
from warmlog_protocol.errors import CorruptBatch

Header = tuple[str, bytes | None]

_MIN_I64 = -(1 << 63)
_MAX_I64 = (1 << 63) - 1
_NOTHING = memoryview(b"")
_decode = msgspec.msgpack.Decoder(tuple[Header, ...]).decode


class Columns(msgspec.Struct, eq=False):
    """`count` records. A record's timestamp is `base_timestamp_ms` plus its delta, even if the broker set it.

    Key and value lengths are one more than the length, and 0 for null. A column is None if it holds no information:
    `offset_deltas` that are 0, 1, 2, …, `key_lengths` when every key is null, `header_lengths` when no headers exist.
    """

    count: int
    base_timestamp_ms: int
    timestamp_deltas_ms: IntColumn
    value_lengths: IntColumn
    values: memoryview
    key_lengths: IntColumn | None = None
    keys: memoryview = _NOTHING
    header_lengths: IntColumn | None = None
    headers: memoryview = _NOTHING
    offset_deltas: IntColumn | None = None
    delete_horizon_ms: int | None = None

    def offset_delta_list(self) -> Sequence[int]:
        """Each record's offset minus the batch's base offset."""
        return range(self.count) if self.offset_deltas is None else self.offset_deltas.tolist()

    def timestamp_list(self) -> list[int]:
        """Each record's timestamp, milliseconds since the epoch."""
        base = self.base_timestamp_ms
        deltas = self.timestamp_deltas_ms
        if deltas.is_constant:
            return [base + deltas.constant] * self.count
        return [base + delta for delta in deltas.tolist()]

    def key_list(self) -> list[bytes | None]:
        """Each record's key."""
        return [None] * self.count if self.key_lengths is None else _split(self.keys, self.key_lengths)

    def value_list(self) -> list[bytes | None]:
        """Each record's value; None is a tombstone."""
        return _split(self.values, self.value_lengths)

    def header_list(self) -> list[tuple[Header, ...]]:
        """Each record's headers. CorruptBatch if they are malformed, which is only checked here."""
        if self.header_lengths is None:
            return [()] * self.count
        read = BytesIO(self.headers).read
        return [decode_headers(read(length)) for length in self.header_lengths]

    def parts(self) -> Iterator["Columns"]:
        """The records without headers, at most PIECE_VALUES at a time, in place; offset deltas are unchanged."""
        if self.count <= PIECE_VALUES:
            yield self
            return
        keys_start = values_start = 0
        for start in range(0, self.count, PIECE_VALUES):
            stop = min(start + PIECE_VALUES, self.count)
            key_lengths = None if self.key_lengths is None else self.key_lengths.part(start, stop)
            value_lengths = self.value_lengths.part(start, stop)
            keys_stop = keys_start + (0 if key_lengths is None else data_bytes(key_lengths))
            values_stop = values_start + data_bytes(value_lengths)
            yield Columns(
                stop - start,
                base_timestamp_ms=self.base_timestamp_ms,
                timestamp_deltas_ms=self.timestamp_deltas_ms.part(start, stop),
                value_lengths=value_lengths,
                values=self.values[values_start:values_stop],
                key_lengths=key_lengths,
                keys=self.keys[keys_start:keys_stop],
                offset_deltas=pack_ints(range(start, stop))
                if self.offset_deltas is None
                else self.offset_deltas.part(start, stop),
                delete_horizon_ms=self.delete_horizon_ms,
            )
            keys_start, values_start = keys_stop, values_stop

    def select(self, keep: Sequence[object]) -> "Columns":
        """Return the records for which `keep`, one item per record, is true; at least one must be.

        No object is created per record, and headers are not decoded.
        """
        offset_deltas = pack_ints(list(compress(self.offset_delta_list(), keep)))
        timestamp_deltas_ms = self.timestamp_deltas_ms.select(keep)
        earliest_ms = min(timestamp_deltas_ms)
        if earliest_ms:
            timestamp_deltas_ms = pack_ints([delta - earliest_ms for delta in timestamp_deltas_ms.tolist()])
        selected = Columns(
            offset_deltas.count,
            base_timestamp_ms=self.base_timestamp_ms + earliest_ms,
            timestamp_deltas_ms=timestamp_deltas_ms,
            value_lengths=self.value_lengths.select(keep),
            values=_select_data(self.values, self.value_lengths, keep),
            offset_deltas=offset_deltas,
            delete_horizon_ms=self.delete_horizon_ms,
        )
        if self.key_lengths is not None and (key_lengths := self.key_lengths.select(keep)).largest():
            selected.key_lengths, selected.keys = key_lengths, _select_data(self.keys, self.key_lengths, keep)
        if self.header_lengths is not None and (header_lengths := self.header_lengths.select(keep)).largest():
            read = BytesIO(self.headers).read
            kept = compress(map(read, self.header_lengths), keep)
            selected.header_lengths, selected.headers = header_lengths, memoryview(b"".join(kept))
        return selected


def data_bytes(lengths: IntColumn) -> int:
    """How many bytes of data a column of lengths + 1 describes, nulls being 0."""
    return lengths.total() - (lengths.count - lengths.zeros())


def empty_columns(base_timestamp_ms: int) -> Columns:
    """The columns of a batch without records."""
    nothing = pack_ints(())
    return Columns(
        0, base_timestamp_ms=base_timestamp_ms, timestamp_deltas_ms=nothing, value_lengths=nothing, values=_NOTHING
    )


def columns_of(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamps_ms: int | Sequence[int],
    headers: Sequence[Sequence[Header] | None] | None = None,
    offset_deltas: Sequence[int] | None = None,
) -> Columns:
    """Return the columns of at least one record, given as lists of one item per record; one timestamp may apply to all.

    ValueError for lists of different lengths or numbers out of range, TypeError for items that are not bytes.
    """
    count = len(values)
    if not count:
        raise ValueError("a batch is made of at least one record")
    base_timestamp_ms, timestamp_deltas_ms = _pack_timestamps(timestamps_ms, count)
    value_lengths, value_data = pack_bytes(values)
    columns = Columns(
        count,
        base_timestamp_ms=base_timestamp_ms,
        timestamp_deltas_ms=timestamp_deltas_ms,
        value_lengths=value_lengths,
        values=memoryview(value_data),
    )
    if keys is not None:
        _check_count("keys", keys, count)
        key_lengths, key_data = pack_bytes(keys)
        if not (key_lengths.is_constant and key_lengths.constant == 0):
            columns.key_lengths, columns.keys = key_lengths, memoryview(key_data)
    if headers is not None and any(headers):
        _check_count("headers", headers, count)
        encoded = list(map(encode_headers, headers))
        columns.header_lengths, columns.headers = pack_ints(list(map(len, encoded))), memoryview(b"".join(encoded))
    if offset_deltas is not None:
        _check_count("offset deltas", offset_deltas, count)
        columns.offset_deltas = _pack_offset_deltas(offset_deltas)
    return columns


def pack_bytes(items: Sequence[bytes | None]) -> tuple[IntColumn, bytes | memoryview]:
    """The column of lengths + 1 and the data of `items`, of which some may be None."""
    try:
        lengths = list(map(len, items))  # type: ignore[arg-type]
    except TypeError:  # some are None: the common case pays nothing for it
        some = [item for item in items if item is not None]
        return pack_ints([0 if item is None else len(item) + 1 for item in items]), _join(some, sum(map(len, some)))
    first = lengths[0]
    if lengths[-1] == first and lengths.count(first) == len(lengths):
        return IntColumn.constant_of(first + 1, len(lengths)), _join(items, first * len(lengths))
    data = _join(items, sum(lengths))
    return pack_ints([length + 1 for length in lengths]), data


def _join(items: Sequence[bytes | None], size_bytes: int) -> bytes | memoryview:
    data = b"".join(items) if size_bytes <= LARGE_BYTES else joined(items)  # type: ignore[arg-type]
    if len(data) != size_bytes:  # a memoryview of items of several bytes: its length is not its size
        raise TypeError("keys and values are bytes or None")
    return data


def _check_count(name: str, items: Sequence[object], count: int) -> None:
    if len(items) != count:
        raise ValueError(f"{len(items)} {name} for {count} values")


def _pack_timestamps(timestamps_ms: int | Sequence[int], count: int) -> tuple[int, IntColumn]:
    """The smallest timestamp and the column of differences from it."""
    if isinstance(timestamps_ms, int):
        smallest = largest = timestamps_ms
    else:
        _check_count("timestamps", timestamps_ms, count)
        smallest, largest = min(timestamps_ms), max(timestamps_ms)
    if smallest < _MIN_I64 or largest > _MAX_I64:
        raise ValueError(f"timestamps {smallest} to {largest} do not fit 64 bits")
    if isinstance(timestamps_ms, int) or smallest == largest:
        return smallest, IntColumn.constant_of(0, count)
    return smallest, pack_ints([timestamp_ms - smallest for timestamp_ms in timestamps_ms])


def _pack_offset_deltas(offset_deltas: Sequence[int]) -> IntColumn | None:
    if offset_deltas[0] < 0 or any(map(ge, offset_deltas, islice(offset_deltas, 1, None))):
        raise ValueError("offset deltas must be increasing, from 0 on")
    if offset_deltas[-1] == len(offset_deltas) - 1:
        return None
    return pack_ints(offset_deltas)


def _split(data: memoryview, lengths: IntColumn) -> list[bytes | None]:
    """One item per record, copied out of `data`. Reading from a BytesIO takes half the time of slicing."""
    read = BytesIO(data).read
    items: list[bytes | None]
    if lengths.is_constant:
        length = lengths.constant - 1
        items = [None] * lengths.count if length < 0 else list(map(read, repeat(length, lengths.count)))
    elif lengths.zeros():
        items = [read(length - 1) if length else None for length in lengths.tolist()]
    else:
        items = list(map(read, [length - 1 for length in lengths.tolist()]))
    return items


def _select_data(data: memoryview, lengths: IntColumn, keep: Sequence[object]) -> memoryview:
    """The data of the kept records, without gaps; `lengths` are one more than the length, 0 for null."""
    sizes = [length - 1 if length else 0 for length in lengths]
    if len(data) <= LARGE_BYTES:
        return memoryview(b"".join(compress(map(BytesIO(data).read, sizes), keep)))
    ends = list(accumulate(sizes))
    return memoryview(joined(data[end - size : end] for size, end in compress(zip(sizes, ends, strict=True), keep)))


def encode_headers(headers: Sequence[Header] | None) -> bytes:
    """Encode `headers`, as no bytes if there are none. TypeError for a name or value of another type."""
    if not headers:
        return b""
    for name, value in headers:
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes | bytearray | memoryview)):
            raise TypeError(f"a header is a str and bytes or None, not {name!r:.40} and {value!r:.40}")
    return encode(headers)


def decode_headers(data: bytes) -> tuple[Header, ...]:
    """Decode the headers in `data`; CorruptBatch if it is not an array of pairs of a name and a value."""
    if not data:
        return ()
    try:
        return _decode(data)
    except (msgspec.DecodeError, ValueError) as error:  # ValueError: a name that is not UTF-8
        raise CorruptBatch(f"record headers: {error}") from error
