"""Record batches, in columns (magic 3) and in rows (magic 2): the bytes that a producer seals are stored and read.

`header` is common to both formats, `columns` and `rows` are their bodies, `batch` encodes, reads and converts whole
batches, `filtering` rewrites them.
"""

from warmlog_protocol.batch.batch import (
    NeedsMemory,
    RecordBatch,
    empty_batch,
    encode_batch,
    encode_end_txn_marker,
    iter_batches,
    read_batch,
    seal_columns,
    seal_in_pieces,
    seal_rows,
    to_columns,
    to_rows,
)
from warmlog_protocol.batch.column_data import Columns, columns_of
from warmlog_protocol.batch.columns import decode_columns, encode_columns
from warmlog_protocol.batch.control import ControlType, EndTxnMarker
from warmlog_protocol.batch.filtering import filter_batch, recompress_batch
from warmlog_protocol.batch.header import (
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC_COLUMNS,
    MAGIC_ROWS,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    check_crc,
    pack_header,
    placement_prefix,
    read_header,
    restamp_producer,
    seal_batch,
    stamp_append_time,
)
from warmlog_protocol.batch.int_column import IntColumn
from warmlog_protocol.batch.record_headers import Header
from warmlog_protocol.batch.rows import decode_rows, encode_rows
from warmlog_protocol.codec.crc import Piece

__all__ = [
    "CRC_START",
    "HEADER_BYTES",
    "LENGTH_OVERHEAD_BYTES",
    "MAGIC_COLUMNS",
    "MAGIC_ROWS",
    "NO_LEADER_EPOCH",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "BatchHeader",
    "Columns",
    "ControlType",
    "EndTxnMarker",
    "Header",
    "IntColumn",
    "NeedsMemory",
    "Piece",
    "RecordBatch",
    "check_crc",
    "columns_of",
    "decode_columns",
    "decode_rows",
    "empty_batch",
    "encode_batch",
    "encode_columns",
    "encode_end_txn_marker",
    "encode_rows",
    "filter_batch",
    "iter_batches",
    "pack_header",
    "placement_prefix",
    "read_batch",
    "read_header",
    "recompress_batch",
    "restamp_producer",
    "seal_batch",
    "seal_columns",
    "seal_in_pieces",
    "seal_rows",
    "stamp_append_time",
    "to_columns",
    "to_rows",
]
