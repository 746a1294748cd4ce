"""Record batches, in columns (magic 3) and in rows (magic 2): the bytes that a producer seals are stored and read.

`header` is common to both formats, `columns` and `rows` are their bodies, `batch` encodes, reads and converts whole
batches, `filtering` rewrites them.
"""

from warmlog_protocol.batch.batch import (
    NeedsMemory as NeedsMemory,
    RecordBatch as RecordBatch,
    empty_batch as empty_batch,
    encode_batch as encode_batch,
    encode_end_txn_marker as encode_end_txn_marker,
    iter_batches as iter_batches,
    read_batch as read_batch,
    seal_columns as seal_columns,
    seal_in_pieces as seal_in_pieces,
    seal_rows as seal_rows,
    to_columns as to_columns,
    to_rows as to_rows,
)
from warmlog_protocol.batch.column_data import Columns as Columns, columns_of as columns_of
from warmlog_protocol.batch.columns import decode_columns as decode_columns, encode_columns as encode_columns
from warmlog_protocol.batch.control import ControlType as ControlType, EndTxnMarker as EndTxnMarker
from warmlog_protocol.batch.filtering import filter_batch as filter_batch, recompress_batch as recompress_batch
from warmlog_protocol.batch.header import (
    CRC_START as CRC_START,
    HEADER_BYTES as HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES as LENGTH_OVERHEAD_BYTES,
    MAGIC_COLUMNS as MAGIC_COLUMNS,
    MAGIC_ROWS as MAGIC_ROWS,
    NO_LEADER_EPOCH as NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH as NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID as NO_PRODUCER_ID,
    NO_SEQUENCE as NO_SEQUENCE,
    NO_TIMESTAMP as NO_TIMESTAMP,
    BatchHeader as BatchHeader,
    check_crc as check_crc,
    pack_header as pack_header,
    placement_prefix as placement_prefix,
    read_header as read_header,
    restamp_producer as restamp_producer,
    seal_batch as seal_batch,
    stamp_append_time as stamp_append_time,
)
from warmlog_protocol.batch.int_column import IntColumn as IntColumn
from warmlog_protocol.batch.column_data import Header as Header
from warmlog_protocol.batch.rows import decode_rows as decode_rows, encode_rows as encode_rows
from warmlog_protocol.codec.memory import Piece as Piece
