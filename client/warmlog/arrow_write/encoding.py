"""Encodes Arrow columns as record batches: the reverse of `arrow`, without a Python object per record except headers.

A batch has the same bytes as `encode_batch` gives for the same records. Lengths are computed from Arrow's offsets by
numpy; data stays in Arrow's buffers, so a batch consists of pieces that are sent one after another.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from warmlog.arrow.int_array import pack_array
from warmlog.arrow_write.key_hash import Array
from warmlog.arrow_write.rows import BytesColumn, RowSpan
from warmlog.errors import InvalidRecord, InvalidTimestamp
from warmlog_protocol.batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    Columns,
    IntColumn,
    Piece,
    seal_in_pieces,
)
from warmlog_protocol.batch.column_data import encode_headers
from warmlog_protocol.batch.header import TRANSACTIONAL_BIT
from warmlog_protocol.codec.compression import Codec

US_PER_MS = 1000
LEAST_PIECE_BYTES = 4 * 1024
"""Smaller pieces are cheaper to copy than to send one by one."""
_NOTHING = memoryview(b"")


def encode_arrow(
    spans: Sequence[RowSpan],
    *,
    now_ms: int,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
) -> list[Piece]:
    """Encode the records of all `spans`, at least one, as one columnar batch in pieces.

    Raises InvalidTimestamp for a time before 1970, InvalidRecord for a header without a name, and MessageTooLarge from
    2 GiB on.
    """
    columns, data = _columns_and_data(spans, now_ms)
    header = BatchHeader(
        attributes=codec | (TRANSACTIONAL_BIT if is_transactional else 0),
        last_offset_delta=columns.count - 1,
        max_timestamp_ms=columns.base_timestamp_ms + columns.timestamp_deltas_ms.largest(),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    return seal_in_pieces(header, columns, data)


def _columns_and_data(spans: Sequence[RowSpan], now_ms: int) -> tuple[Columns, list[Piece]]:
    """The integer columns of one batch, and its data: all keys, then all values, then all headers."""
    count = sum(span.count for span in spans)
    assert count > 0, "a batch has at least one record"
    base_timestamp_ms, timestamp_deltas_ms = _timestamps(spans, count, now_ms)
    value_lengths, data = _lengths_and_data([(span, span.rows.values) for span in spans])
    columns = Columns(
        count,
        base_timestamp_ms=base_timestamp_ms,
        timestamp_deltas_ms=timestamp_deltas_ms,
        value_lengths=pack_array(value_lengths),
        values=_NOTHING,
    )
    if any(span.rows.keys is not None for span in spans):
        key_lengths, keys = _lengths_and_data([(span, span.rows.keys) for span in spans])
        if key_lengths.any():
            columns.key_lengths = pack_array(key_lengths)
            data = keys + data
    if any(span.rows.headers is not None for span in spans):
        encoded = [item for span in spans for item in _encoded_headers(span)]
        if any(encoded):
            columns.header_lengths = pack_array(np.fromiter(map(len, encoded), np.int64, count))
            data.append(b"".join(encoded))
    return columns, data


def _lengths_and_data(parts: Sequence[tuple[RowSpan, BytesColumn | None]]) -> tuple[Array, list[Piece]]:
    """Lengths + 1, or 0 for null, and the bytes of keys or values. A span without the column has nulls."""
    lengths: list[Array] = []
    pieces: list[Piece] = []
    for span, column in parts:
        if column is None:
            lengths.append(np.zeros(span.count, np.int32))
        else:
            lengths.append(column.lengths[span.start : span.stop])
            pieces.append(column.data(span.start, span.stop))
    if len(pieces) > 1 and sum(map(len, pieces)) < len(pieces) * LEAST_PIECE_BYTES:
        pieces = [b"".join(pieces)]
    return (lengths[0] if len(lengths) == 1 else np.concatenate(lengths)), pieces


def _timestamps(spans: Sequence[RowSpan], count: int, now_ms: int) -> tuple[int, IntColumn]:
    """The smallest timestamp and the differences from it."""
    if all(span.rows.timestamps is None for span in spans):
        return now_ms, IntColumn.constant_of(0, count)
    parts = []
    for span in spans:
        if span.rows.timestamps is None:
            parts.append(np.full(span.count, now_ms, np.int64))
        else:
            own = span.rows.timestamps.slice(span.start, span.count)
            times_us = own.cast(pa.int64()).fill_null(now_ms * US_PER_MS).to_numpy()
            parts.append(np.floor_divide(times_us, US_PER_MS))
    times = np.concatenate(parts)
    smallest = int(times.min())
    if smallest < 0:
        raise InvalidTimestamp(f"a timestamp of {smallest} ms is before 1970: 0 or later expected")
    return smallest, pack_array(times - smallest)


def _encoded_headers(span: RowSpan) -> list[bytes]:
    if span.rows.headers is None:
        return [b""] * span.count
    own = span.rows.headers.slice(span.start, span.count).to_pylist()
    return [encode_headers(_pairs(item)) if item else b"" for item in own]


def _pairs(headers: Sequence[dict[str, Any] | None]) -> list[tuple[str, bytes | None]]:
    pairs = []
    for header in headers:
        if header is None or (name := next(iter(header.values()))) is None:
            raise InvalidRecord("a header without a name: a struct of a key that is not null and a value expected")
        pairs.append((name, list(header.values())[1]))
    return pairs
