"""Record batches: encoded from lists, read from buffers, converted between columns and rows.

A batch is a header (see `header`) and a body: columns (magic 3, see `columns`) or rows (magic 2, see `rows`). Its bytes
are the same on the wire, on disk and in the reader.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from struct import Struct

from warmlog_protocol.batch.column_data import Columns, Header, columns_of
from warmlog_protocol.batch.columns import (
    columns_bytes,
    decode_columns,
    encode_columns,
    encode_columns_in_pieces,
    read_times,
    unpack_columns,
)
from warmlog_protocol.batch.control import (
    ControlType,
    EndTxnMarker,
    pack_end_txn_marker,
    read_control_type,
    read_end_txn_marker,
)
from warmlog_protocol.batch.header import (
    APPEND_TIME_BIT,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC_COLUMNS,
    MAGIC_ROWS,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    check_crc,
    read_header,
    seal_batch,
    seal_pieces,
)
from warmlog_protocol.batch.int_column import PIECE_VALUES, IntColumn
from warmlog_protocol.batch.rows import check_row_count, decode_rows, encode_rows, read_rows, row_times
from warmlog_protocol.codec.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, Codec, decompress_rows
from warmlog_protocol.codec.memory import Piece
from warmlog_protocol.errors import CorruptBatch, WarmlogError

RECORD_BYTES = 64
"""The least that a record counts when a body is unpacked within limited memory: this bounds the time as well."""

_LENGTH = Struct(">8xi")


def encode_batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamps_ms: int | Sequence[int],
    headers: Sequence[Sequence[Header] | None] | None = None,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    offset_deltas: Sequence[int] | None = None,
) -> bytes:
    """Encode a columnar batch of at least one record, from lists of one item each. A single timestamp applies to all.

    ValueError for lists of different lengths or numbers out of range, TypeError for items that are not bytes,
    MessageTooLarge above the largest length of a batch (2 GiB).
    """
    columns = columns_of(values, keys=keys, timestamps_ms=timestamps_ms, headers=headers, offset_deltas=offset_deltas)
    header = BatchHeader(
        base_offset=base_offset,
        partition_leader_epoch=leader_epoch,
        attributes=codec | (TRANSACTIONAL_BIT if is_transactional else 0),
        last_offset_delta=columns.count - 1 if offset_deltas is None else offset_deltas[-1],
        max_timestamp_ms=columns.base_timestamp_ms + columns.timestamp_deltas_ms.largest(),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    return seal_columns(header, columns)


def seal_columns(header: BatchHeader, columns: Columns) -> bytes:
    """Encode `columns` as a columnar batch, with the codec, offsets, max timestamp… of `header`."""
    body = encode_columns(columns, last_offset_delta=header.last_offset_delta, codec=header.codec)
    return seal_batch(_header_of(columns, header, MAGIC_COLUMNS, columns.base_timestamp_ms), body)


def seal_in_pieces(header: BatchHeader, columns: Columns, data: Sequence[Piece]) -> list[Piece]:
    """As `seal_columns`, in pieces and with `data` instead of that of `columns`, which have at least one record.

    `data` is all keys, then all values, then all headers, and is not copied unless it is compressed.
    """
    body = encode_columns_in_pieces(columns, data, last_offset_delta=header.last_offset_delta, codec=header.codec)
    return seal_pieces(_header_of(columns, header, MAGIC_COLUMNS, columns.base_timestamp_ms), body)


def seal_rows(header: BatchHeader, columns: Columns, rest: Callable[[], None] = lambda: None) -> bytes:
    """Encode `columns` as a batch of rows, with the codec, offsets, max timestamp… of `header`.

    `rest` is called in between, some 0.5 ms of processor time after the last.
    """
    base_timestamp_ms = columns.base_timestamp_ms
    if columns.delete_horizon_ms is not None:
        base_timestamp_ms = columns.delete_horizon_ms
    elif columns.count:
        base_timestamp_ms += next(iter(columns.timestamp_deltas_ms))
    body = encode_rows(columns, base_timestamp_ms=base_timestamp_ms, codec=header.codec, rest=rest)
    return b"".join(seal_pieces(_header_of(columns, header, MAGIC_ROWS, base_timestamp_ms), body))


def encode_end_txn_marker(
    marker: EndTxnMarker,
    *,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """The control batch that ends a producer's transaction in one partition."""
    key, value = pack_end_txn_marker(marker)
    header = BatchHeader(
        base_offset=base_offset,
        partition_leader_epoch=leader_epoch,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        max_timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
    return seal_rows(header, columns_of([value], keys=[key], timestamps_ms=timestamp_ms))


def empty_batch(header: BatchHeader) -> bytes:
    """The batch of `header` without its records: offsets, max timestamp, producer fields and magic stay."""
    attributes = header.attributes & (APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    return seal_batch(header._replace(attributes=attributes, base_timestamp_ms=NO_TIMESTAMP, record_count=0), b"")


def _header_of(columns: Columns, header: BatchHeader, magic: int, base_timestamp_ms: int) -> BatchHeader:
    """`header` with the fields that depend on the records and their format; length and CRC come with the body."""
    attributes = header.attributes
    if columns.count:
        attributes &= ~DELETE_HORIZON_BIT
        attributes |= 0 if columns.delete_horizon_ms is None else DELETE_HORIZON_BIT
    return header._replace(
        magic=magic, attributes=attributes, base_timestamp_ms=base_timestamp_ms, record_count=columns.count
    )


class NeedsMemory(WarmlogError):
    """A body was not decompressed: it needs `size_bytes`, which is more than currently allowed."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"decompressing a batch takes up to {size_bytes} bytes")
        self.size_bytes = size_bytes


class RecordBatch:
    """A batch in a buffer, decoded when its records are first used.

    `buffer` is a view of the batch's bytes in the buffer given to `read_batch`, which must not change meanwhile.
    """

    __slots__ = ("_column_type", "_columns", "_max_decompressed_bytes", "_unpacked", "buffer", "header")

    def __init__(
        self,
        header: BatchHeader,
        buffer: memoryview,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        column_type: type[IntColumn] = IntColumn,
    ) -> None:
        self.header = header
        self.buffer = buffer
        self._max_decompressed_bytes = max_decompressed_bytes
        self._column_type = column_type
        self._columns: Columns | None = None
        self._unpacked: memoryview | None = None

    @property
    def base_offset(self) -> int:
        return self.header.base_offset

    @property
    def last_offset(self) -> int:
        return self.header.last_offset

    @property
    def next_offset(self) -> int:
        return self.header.next_offset

    @property
    def size_bytes(self) -> int:
        return self.header.size_bytes

    @property
    def record_count(self) -> int:
        return self.header.record_count

    def unpack(self, memory_bytes: int) -> memoryview:
        """Return the decompressed body; it is decompressed at most once.

        Raises NeedsMemory if its size, or RECORD_BYTES for each record, exceeds `memory_bytes`, and CorruptBatch,
        which names the offsets, if it exceeds the limit or the body is malformed.
        """
        if self._unpacked is None:
            header, body, limit = self.header, self.buffer[HEADER_BYTES:], self._max_decompressed_bytes
            if not header.record_count:
                return body
            try:
                if header.magic == MAGIC_COLUMNS:
                    unpacked_bytes = columns_bytes(header, body, limit)
                else:
                    check_row_count(header, limit)
                    unpacked_bytes = 0
                needed_bytes = max(unpacked_bytes, min(RECORD_BYTES * header.record_count, limit))
                if needed_bytes > memory_bytes:
                    raise NeedsMemory(needed_bytes)
                if header.magic == MAGIC_COLUMNS:
                    self._unpacked = unpack_columns(header, body)
                else:
                    self._unpacked = self._unpack_rows(body, memory_bytes)
            except CorruptBatch as error:
                raise self._located(error) from error
        return self._unpacked

    def _unpack_rows(self, body: memoryview, memory_bytes: int) -> memoryview:
        """Decompress rows. Their decompressed size is not known beforehand, so limits are tried."""
        codec, limit = self.header.codec, self._max_decompressed_bytes
        if codec is not Codec.NONE and memory_bytes < limit:
            try:
                return decompress_rows(codec, body, limit_bytes=memory_bytes)
            except CorruptBatch:
                raise NeedsMemory(limit) from None
        return decompress_rows(codec, body, limit_bytes=limit)

    @property
    def columns(self) -> Columns:
        """The records by column. CorruptBatch, naming the offsets, when the body is malformed."""
        if self._columns is None:
            header, body = self.header, self.buffer[HEADER_BYTES:]
            unpacked = self.unpack(self._max_decompressed_bytes)
            try:
                if header.magic == MAGIC_COLUMNS:
                    self._columns = decode_columns(header, body, unpacked, self._column_type)
                else:
                    self._columns = decode_rows(header, unpacked)
                    self._unpacked = None
            except CorruptBatch as error:
                raise self._located(error) from error
        return self._columns

    def find_time(
        self, timestamp_ms: int, first_offset: int, rest: Callable[[], None] = lambda: None
    ) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record from `first_offset` on with `timestamp_ms` or a later one, or None.

        Only timestamps and offsets are read, some at a time, and `rest` is called in between. CorruptBatch if they are
        malformed.
        """
        header = self.header
        if not header.record_count:
            return None
        unpacked = self.unpack(self._max_decompressed_bytes)
        first_delta = first_offset - header.base_offset
        try:
            base_ms, pieces = self._times(unpacked)
            for offset_deltas, times_ms in pieces:
                if offset_deltas[-1] >= first_delta and max(times_ms) >= timestamp_ms - base_ms:
                    for offset_delta, time_ms in zip(offset_deltas, times_ms, strict=True):
                        if offset_delta >= first_delta and time_ms >= timestamp_ms - base_ms:
                            return base_ms + time_ms, header.base_offset + offset_delta
                rest()
        except CorruptBatch as error:
            raise self._located(error) from error
        return None

    def largest_time(self, first_offset: int, rest: Callable[[], None] = lambda: None) -> int:
        """The largest timestamp of the records from `first_offset` on, NO_TIMESTAMP without one; as `find_time`."""
        unpacked = self.unpack(self._max_decompressed_bytes)
        first_delta, largest_ms = first_offset - self.header.base_offset, NO_TIMESTAMP
        try:
            base_ms, pieces = self._times(unpacked)
            for offset_deltas, times_ms in pieces:
                skipped = bisect_left(offset_deltas, first_delta)
                largest_ms = max(largest_ms, max(times_ms[skipped:], default=NO_TIMESTAMP - base_ms) + base_ms)
                rest()
        except CorruptBatch as error:
            raise self._located(error) from error
        return largest_ms

    def _times(self, unpacked: memoryview) -> tuple[int, Iterable[tuple[Sequence[int], Sequence[int]]]]:
        """A base time, and pieces of the records: offsets relative to the base offset, times to the base time."""
        if self.header.magic == MAGIC_ROWS:
            return 0, row_times(self.header, unpacked)
        offset_deltas, base_timestamp_ms, deltas_ms, _ = read_times(self.header, self.buffer[HEADER_BYTES:], unpacked)
        offsets: Iterable[Sequence[int]]
        if offset_deltas is None:
            offsets = (
                range(start, min(start + PIECE_VALUES, deltas_ms.count))
                for start in range(0, deltas_ms.count, PIECE_VALUES)
            )
        else:
            offsets = offset_deltas.pieces()
        return base_timestamp_ms, zip(offsets, deltas_ms.pieces(), strict=True)

    def null_keys(self, named: int) -> tuple[int, list[int]]:
        """Return how many records have no key, and the indexes of the first `named` of them.

        Checks all of the body, as `columns` does, and uses no memory except for the decompressed body.
        """
        header = self.header
        if header.magic == MAGIC_COLUMNS or not header.record_count:
            lengths = self.columns.key_lengths
            if lengths is None:
                return header.record_count, list(range(header.record_count)[:named])
            count = lengths.zeros()
            values = chain.from_iterable(lengths.pieces()) if count else ()
            return count, list(islice((index for index, length in enumerate(values) if not length), min(named, count)))
        count = 0
        first: list[int] = []
        try:
            start = 0
            for rows in read_rows(header, self.unpack(self._max_decompressed_bytes)):
                nulls = [index for index, key in enumerate(rows.keys, start) if key is None]
                count += len(nulls)
                first += nulls[: max(0, named - len(first))]
                start += len(rows.keys)
        except CorruptBatch as error:
            raise self._located(error) from error
        return count, first

    def offsets(self) -> list[int]:
        """Each record's offset."""
        base = self.header.base_offset
        columns = self.columns
        if columns.offset_deltas is None:
            return list(range(base, base + columns.count))
        return [base + delta for delta in columns.offset_deltas.tolist()]

    def timestamps_ms(self) -> list[int]:
        """Each record's timestamp: the producer's, or the append time if the topic uses that."""
        return self.columns.timestamp_list()

    def keys(self) -> list[bytes | None]:
        return self.columns.key_list()

    def values(self) -> list[bytes | None]:
        return self.columns.value_list()

    def headers(self) -> list[tuple[Header, ...]]:
        """Each record's headers. CorruptBatch, which names the offsets, if they are malformed."""
        try:
            return self.columns.header_list()
        except CorruptBatch as error:
            raise self._located(error) from error

    @property
    def control_type(self) -> ControlType | None:
        """The type of a control batch; None for a batch of data, and for one that compaction emptied."""
        if not self.header.is_control or not self.header.record_count:
            return None
        return read_control_type(self.keys()[0])

    def end_txn_marker(self) -> EndTxnMarker:
        """The marker in a control batch of type ABORT or COMMIT. CorruptBatch if it has none."""
        if self.control_type is None:
            raise CorruptBatch(f"batch at offset {self.base_offset} is no control batch")
        return read_end_txn_marker(self.keys()[0], self.values()[0])

    def __repr__(self) -> str:
        return f"RecordBatch({self.base_offset}..{self.last_offset}, {self.record_count} records)"

    def _located(self, error: CorruptBatch) -> CorruptBatch:
        return CorruptBatch(f"batch at offsets {self.base_offset} to {self.last_offset}: {error}")


def read_batch(
    buffer: Buffer,
    position: int = 0,
    *,
    verify_crc: bool = True,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    column_type: type[IntColumn] = IntColumn,
) -> RecordBatch:
    """Return the batch at `position`. CorruptBatch if it is cut off or, with `verify_crc`, its CRC is wrong.

    The body is not decoded until its records are used; its integers become columns of `column_type`.
    """
    header = read_header(buffer, position)
    end = position + header.size_bytes
    if verify_crc or end > len(buffer):
        check_crc(header, buffer, position)
    return RecordBatch(header, memoryview(buffer)[position:end], max_decompressed_bytes, column_type)


def iter_batches(buffer: Buffer) -> Iterator[RecordBatch]:
    """Iterate over the batches, without one that is cut off at the end, as Kafka's consumers do.

    CorruptBatch at the first damaged batch.
    """
    position = 0
    while len(buffer) - position >= HEADER_BYTES:
        (length,) = _LENGTH.unpack_from(buffer, position)
        if position + length + LENGTH_OVERHEAD_BYTES > len(buffer):
            return
        batch = read_batch(buffer, position)
        yield batch
        position += batch.size_bytes


def to_rows(batch: RecordBatch, rest: Callable[[], None] = lambda: None) -> bytes:
    """Return the batch with its records as rows; the same bytes if it has rows already. `rest`: as for `seal_rows`."""
    return bytes(batch.buffer) if batch.header.magic == MAGIC_ROWS else seal_rows(batch.header, batch.columns, rest)


def to_columns(batch: RecordBatch) -> bytes:
    """Return the batch with its records in columns; the same bytes if it has columns already or is a control batch."""
    if batch.header.magic == MAGIC_COLUMNS or batch.header.is_control:
        return bytes(batch.buffer)
    return seal_columns(batch.header, batch.columns)
