"""The 61-byte header that every record batch starts with: Kafka's v2 header, field by field.

All integers are big-endian::

     0  i64  base offset                 set by the broker; not covered by the CRC
     8  i32  batch length                bytes after this field: the whole batch is 12 longer
    12  i32  partition leader epoch      set by the broker (-1 from producers); not covered by the CRC
    16  i8   magic                       2: Kafka's rows, 3: warmlog's columns
    17  u32  CRC-32C                     of byte 21 to the end of the batch
    21  i16  attributes                  bits 0-2 codec, 3 append time, 4 transactional, 5 control, 6 delete horizon
    23  i32  last offset delta           kept by compaction, even when the last record goes
    27  i64  base timestamp              magic 3: the smallest in the batch; magic 2: the first record's, or, when
                                         attributes bit 6 is set, the delete horizon; rows count from either
    35  i64  max timestamp               with attributes bit 3 the time of appending, which is then every record's
    43  i64  producer id                 -1 for none
    51  i16  producer epoch              -1 for none
    53  i32  base sequence               -1 for none; record i has (base + i) mod 2^31
    57  i32  record count                0 in a batch that compaction has emptied
    61  ...  body

Base offset and leader epoch are before the bytes that the CRC covers, so the broker sets them without changing the CRC.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.codec.crc32c import crc32c
from warmlog_protocol.codec.memory import Piece
from warmlog_protocol.errors import CorruptBatch, MessageTooLarge

Buffer = bytes | bytearray | memoryview

HEADER_BYTES = 61
LENGTH_OVERHEAD_BYTES = 12
CRC_START = 21

MAGIC_ROWS = 2
MAGIC_COLUMNS = 3

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
LAST_PRODUCER_EPOCH = 2**15 - 2
"""Of a producer, one below the largest i16, as in Kafka; after that it gets a new id. Markers may have one more."""
NO_SEQUENCE = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1

CODEC_BITS = 0b111
APPEND_TIME_BIT = 1 << 3
TRANSACTIONAL_BIT = 1 << 4
CONTROL_BIT = 1 << 5
DELETE_HORIZON_BIT = 1 << 6

MOST_COLUMN_BITS = 0b111
"""The first byte of columns is at most this; that of a row that is not compressed is its size, and greater."""
_LEAST_COLUMNS_BYTES = 10
_LEAST_ROW_BYTES = 6
_ROW_FRAMES: dict[int, bytes] = {
    Codec.GZIP: b"\x1f\x8b",
    Codec.SNAPPY: b"\x82SNA",
    Codec.LZ4: b"\x04\x22\x4d\x18",
    Codec.ZSTD: b"\x28\xb5\x2f\xfd",
}
"""How compressed rows begin."""
_LZ4 = int(Codec.LZ4)  # its frame may look like the beginning of columns

SEQUENCE_MASK = 0x7FFFFFFF
_MIN_LENGTH = HEADER_BYTES - LENGTH_OVERHEAD_BYTES
_MAX_LENGTH = 0x7FFFFFFF

_HEADER = Struct(">qiibIhiqqqhii")
_PREFIX = Struct(">qiibI")
_COVERED = Struct(">hiqqqhii")
_APPEND_TIME = Struct(">hiqq")
_PRODUCER = Struct(">qhi")
_PRODUCER_START = 43

_CODECS = tuple(Codec)
_unpack_header = _HEADER.unpack_from
_new_tuple = tuple.__new__


class BatchHeader(NamedTuple):
    """The fields of one header, in the order of the bytes. The defaults are for those that a seal sets, or are none."""

    base_offset: int = 0
    batch_length: int = 0
    partition_leader_epoch: int = NO_LEADER_EPOCH
    magic: int = MAGIC_COLUMNS
    crc: int = 0
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp_ms: int = NO_TIMESTAMP
    max_timestamp_ms: int = NO_TIMESTAMP
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    record_count: int = 0

    @property
    def size_bytes(self) -> int:
        """The whole batch, header included."""
        return self.batch_length + LENGTH_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """The codec of the body; CorruptBatch for the three numbers without a codec."""
        return codec_of(self.attributes)

    @property
    def is_log_append_time(self) -> bool:
        """Whether every record's timestamp is the max timestamp, set by the broker when it appended the batch."""
        return self.attributes & APPEND_TIME_BIT != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def has_producer(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """The last record's sequence number, which wraps from 2^31 - 1 to 0; NO_SEQUENCE if the batch has none.

        Counted by the last offset delta, which compaction keeps, not by the remaining records.
        """
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK


def codec_of(attributes: int) -> Codec:
    """The codec in bits 0-2 of `attributes`."""
    number = attributes & CODEC_BITS
    if number >= len(_CODECS):
        raise CorruptBatch(f"attributes {attributes:#06x} name codec {number}, which does not exist")
    return _CODECS[number]


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header at `position`. Reads only its 61 bytes: the batch may extend past the buffer.

    Raises CorruptBatch for fewer than 61 bytes, a length below 49, a magic other than 2 and 3, and a negative offset or
    count. The CRC is left to `check_crc`.
    """
    if position < 0 or len(buffer) - position < HEADER_BYTES:
        raise CorruptBatch(f"a batch header takes {HEADER_BYTES} bytes, {len(buffer) - position} left at {position}")
    header = _new_tuple(BatchHeader, _unpack_header(buffer, position))
    base_offset, length, _, magic, _, _, last_offset_delta, _, _, _, _, _, record_count = header
    if length < _MIN_LENGTH:
        raise CorruptBatch(f"batch at offset {base_offset}: length {length} is below {_MIN_LENGTH}, a header alone")
    if magic not in (MAGIC_ROWS, MAGIC_COLUMNS):
        raise CorruptBatch(f"batch at offset {base_offset}: magic {magic} is neither {MAGIC_ROWS} nor {MAGIC_COLUMNS}")
    if base_offset < 0 or last_offset_delta < 0 or record_count < 0:
        raise CorruptBatch(
            f"negative count: base offset {base_offset}, last offset delta {last_offset_delta}, records {record_count}"
        )
    return header


def pack_header(header: BatchHeader) -> bytes:
    """Encode `header` as its 61 bytes. The caller sets length and CRC."""
    return _HEADER.pack(*header)


def seal_batch(header: BatchHeader, body: bytes) -> bytes:
    """Return the whole batch: `header` with the length and CRC for `body`, then `body`."""
    return b"".join(seal_pieces(header, (body,)))


def seal_pieces(header: BatchHeader, body: Sequence[Piece]) -> list[Piece]:
    """As `seal_batch`, in pieces: the header, then the pieces of `body`."""
    covered = _COVERED.pack(*header[5:])
    crc = crc32c(covered)
    for piece in body:
        crc = crc32c(piece, crc)
    return [_prefix(header, len(covered) + sum(map(len, body)), crc) + covered, *body]


def check_magic(header: BatchHeader, buffer: Buffer, position: int = 0) -> None:
    """Raise CorruptBatch if the body of the batch at `position` has the other format than its magic.

    The CRC does not cover the magic, so a flipped bit turns rows into columns. Seven bytes of the body distinguish
    them, except rows in one raw block of snappy, which Kafka's Java clients never write, with the magic of columns. A
    body that fits neither format passes.
    """
    body, body_bytes = position + HEADER_BYTES, header.batch_length - _MIN_LENGTH
    may_be_columns = body_bytes >= _LEAST_COLUMNS_BYTES and buffer[body] <= MOST_COLUMN_BITS
    codec = header.attributes & CODEC_BITS
    if header.magic == MAGIC_COLUMNS:
        if (may_be_columns and codec != _LZ4) or not body_bytes:
            return
        is_wrong = _begins_with_row(buffer, body, body_bytes, codec)
    else:
        is_wrong = may_be_columns and not _begins_with_row(buffer, body, body_bytes, codec)
    if is_wrong:
        raise CorruptBatch(f"batch at offset {header.base_offset}: magic {header.magic}, a body of the other format")


def _begins_with_row(buffer: Buffer, start: int, body_bytes: int, codec: int) -> bool:
    """Whether the body at `start` begins as compressed rows do, or with a row's size and attributes."""
    if codec:
        frame = _ROW_FRAMES.get(codec)
        return frame is not None and bytes(buffer[start : start + len(frame)]) == frame
    size = 0
    for number, byte in enumerate(buffer[start : start + min(5, body_bytes - 1)]):
        size |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            fits = size % 2 == 0 and _LEAST_ROW_BYTES <= size // 2 < body_bytes - number
            return fits and buffer[start + number + 1] == 0
    return False


def check_crc(header: BatchHeader, buffer: Buffer, position: int = 0) -> None:
    """Raise CorruptBatch unless the batch at `position` is complete, and CRC and magic fit its body."""
    end = position + header.size_bytes
    if end > len(buffer):
        raise CorruptBatch(
            f"batch at offset {header.base_offset}: {header.size_bytes} bytes expected, "
            f"{max(len(buffer) - position, 0)} found"
        )
    with memoryview(buffer) as view:
        found = crc32c(view[position + CRC_START : end])
    if found != header.crc:
        raise CorruptBatch(f"batch at offset {header.base_offset}: CRC {header.crc:08x} expected, {found:08x} found")
    check_magic(header, buffer, position)


def placement_prefix(header: BatchHeader, base_offset: int, leader_epoch: int) -> bytes:
    """Return the first 21 bytes of the batch, with a new base offset and leader epoch. The CRC does not cover them."""
    return _PREFIX.pack(base_offset, header.batch_length, leader_epoch, header.magic, header.crc)


def stamp_append_time(batch: bytes, now_ms: int) -> bytes:
    """Return `batch` with `now_ms` as every record's timestamp, for topics with message.timestamp.type=LogAppendTime.

    Sets attributes bit 3, the max timestamp and the CRC, and in columns the base timestamp. In rows the base timestamp
    stays, as in Kafka: it may be a delete horizon, and the timestamps in the rows are relative to it.
    """
    header = read_header(batch)
    base_timestamp_ms = now_ms if header.magic == MAGIC_COLUMNS else header.base_timestamp_ms
    stamped = _APPEND_TIME.pack(
        header.attributes | APPEND_TIME_BIT, header.last_offset_delta, base_timestamp_ms, now_ms
    )
    return _with_covered(header, stamped + batch[CRC_START + len(stamped) :])


def restamp_producer(batch: bytes, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """Return `batch` with other producer fields and a new CRC."""
    producer = _PRODUCER.pack(producer_id, producer_epoch, base_sequence)
    covered = batch[CRC_START:_PRODUCER_START] + producer + batch[_PRODUCER_START + len(producer) :]
    return _with_covered(read_header(batch), covered)


def _with_covered(header: BatchHeader, covered: bytes) -> bytes:
    return _prefix(header, len(covered), crc32c(covered)) + covered


def _prefix(header: BatchHeader, covered_bytes: int, crc: int) -> bytes:
    length = covered_bytes + CRC_START - LENGTH_OVERHEAD_BYTES
    if length > _MAX_LENGTH:
        raise MessageTooLarge(f"a batch of {length} bytes, at most {_MAX_LENGTH} are possible")
    return _PREFIX.pack(header.base_offset, length, header.partition_leader_epoch, header.magic, crc)
