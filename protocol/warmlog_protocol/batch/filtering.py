"""Batches rewritten by the broker: with some records removed, or compressed by another codec.

The magic stays: columns are filtered column by column, rows are decoded and encoded again. Offsets, timestamps, codec,
producer fields and leader epoch stay, and so does the last offset delta: the batch covers the same offsets. The base
and the max timestamp are those of the remaining records.

A delete horizon is the time from which tombstones, or the marker of a transaction without records, may be removed.
Attributes bit 6 is set if there is one; rows have it in the base timestamp, columns in their body (see `header` and
`columns`).
"""

import sys
from collections.abc import Sequence

from msgspec.structs import replace

from warmlog_protocol.batch.batch import RecordBatch, empty_batch, seal_columns, seal_rows
from warmlog_protocol.batch.columns import repack_columns
from warmlog_protocol.batch.header import CODEC_BITS, HEADER_BYTES, MAGIC_COLUMNS, seal_pieces
from warmlog_protocol.codec.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, Codec, compress
from warmlog_protocol.errors import MessageTooLarge


def filter_batch(batch: RecordBatch, keep: Sequence[object], *, delete_horizon_ms: int | None = None) -> bytes:
    """Return the batch with the records for which `keep`, one item per record, is true; unchanged if all are kept.

    If none is kept it is the batch's header with count 0. `delete_horizon_ms` sets the horizon, which otherwise stays.
    CorruptBatch if the body is malformed.
    """
    header, columns = batch.header, batch.columns
    if len(keep) != columns.count:
        raise ValueError(f"{len(keep)} marks for {columns.count} records")
    keeps_all = all(keep)
    if keeps_all and (delete_horizon_ms is None or not columns.count):
        return bytes(batch.buffer)
    if not any(keep):
        return empty_batch(header)
    kept = columns if keeps_all else columns.select(keep)
    if delete_horizon_ms is not None:
        kept = replace(kept, delete_horizon_ms=delete_horizon_ms)
    if not header.is_log_append_time:
        largest_ms = kept.base_timestamp_ms + kept.timestamp_deltas_ms.largest()
        header = header._replace(max_timestamp_ms=largest_ms)
    return seal_columns(header, kept) if header.magic == MAGIC_COLUMNS else seal_rows(header, kept)


def recompress_batch(batch: RecordBatch, codec: Codec, *, max_bytes: int = sys.maxsize) -> bytes:
    """Return the batch compressed by `codec`; unchanged if it is already, is empty, or is a control batch.

    The records are not decoded. CorruptBatch if the body cannot be unpacked, MessageTooLarge if the result is larger
    than `max_bytes`.
    """
    header = batch.header
    if header.codec is codec or not header.record_count or header.is_control:
        return bytes(batch.buffer)
    unpacked = batch.unpack(DEFAULT_MAX_DECOMPRESSED_BYTES)
    if header.magic == MAGIC_COLUMNS:
        pieces = repack_columns(header, batch.buffer[HEADER_BYTES:], unpacked, codec)
    else:
        pieces = [compress(codec, unpacked, is_rows=True)]
    size_bytes = HEADER_BYTES + sum(map(len, pieces))
    if size_bytes > max_bytes:
        raise MessageTooLarge(f"a batch of {size_bytes} bytes after compression by {codec.label}")
    return b"".join(seal_pieces(header._replace(attributes=header.attributes & ~CODEC_BITS | codec), pieces))
