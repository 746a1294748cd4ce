"""Batches whose header and CRC are right, and whose body is not what it says: for whoever opens it."""

from collections.abc import Callable
from functools import cache
from random import Random

from warmlog_protocol.batch import encode_batch, read_batch, to_rows
from warmlog_protocol.batch.header import HEADER_BYTES, MAGIC_COLUMNS, BatchHeader, read_header, seal_batch
from warmlog_protocol.codec.compression import Codec, compress, decompress, decompress_rows
from warmlog_protocol.errors import CorruptBatch

PREFIX_BYTES = 5
"""In front of columns: which there are, and how large they are when not compressed."""
COUNTS = (0, 1, 4, 6, 1000, 70_000, 2**24 - 1, 2**24, 2**31 - 1)
SIZES = (0, 1, 2**16, 2**27 - 1, 2**27, 2**27 + 1, 2**31, 2**32 - 1)
BOMB_BYTES = {Codec.GZIP: 48 << 20, Codec.SNAPPY: 16 << 20, Codec.LZ4: 100 << 20, Codec.ZSTD: 120 << 20}
"""What a batch of less than 1 MiB becomes by each codec, as far as it gets."""
ROW_BOMB_BYTES = 16 << 20
_PLAIN_LIMIT_BYTES = 1 << 20

Change = Callable[[BatchHeader, bytes, Random], tuple[BatchHeader, bytes]]


def change_inside(header: BatchHeader, body: bytes, luck: Random) -> tuple[BatchHeader, bytes]:
    """Bytes of the decompressed body are others, and it is packed again."""
    try:
        plain = bytearray(_unpack(header, body))
    except CorruptBatch:
        return header, body
    for _ in range(luck.randint(1, 4)):
        place = luck.randrange(len(plain)) if plain else 0
        kind = luck.randrange(4)
        if kind == 0:
            plain[place : place + 1] = bytes((luck.choice((0, 1, 2, 3, 4, 8, 9, 0x7F, 0x80, 0xFF)),))
        elif kind == 1:
            del plain[place : place + luck.randint(1, 9)]
        elif kind == 2:
            plain[place:place] = luck.randbytes(luck.choice((1, 8, 300)))
        else:
            plain += plain[: luck.randrange(len(plain) + 1)]
    return header, _pack(header, body[:1], bytes(plain))


def lie_about_count(header: BatchHeader, body: bytes, luck: Random) -> tuple[BatchHeader, bytes]:
    """Header and last offset agree on a number of records that the body does not hold."""
    count = luck.choice(COUNTS)
    return header._replace(record_count=count, last_offset_delta=count - 1), body


def lie_about_size(header: BatchHeader, body: bytes, luck: Random) -> tuple[BatchHeader, bytes]:
    """Columns are said to become larger, or smaller, than they do; rows lose or gain an end."""
    if header.magic == MAGIC_COLUMNS:
        return header, body[:1] + luck.choice(SIZES).to_bytes(4, "little") + body[PREFIX_BYTES:]
    return header, body[: luck.randrange(len(body) + 1)] + luck.randbytes(luck.choice((0, 7)))


def take_another_codec(header: BatchHeader, body: bytes, luck: Random) -> tuple[BatchHeader, bytes]:
    """The attributes name a codec that did not make the body."""
    return header._replace(attributes=header.attributes & ~0b111 | luck.choice(list(Codec))), body


def constant_millions(header: BatchHeader, body: bytes, luck: Random) -> tuple[BatchHeader, bytes]:
    """Millions of records in columns of width 0: a few bytes that stand for as many values as one likes."""
    count = luck.choice((100_000, 2**22, 2**24 - 1, 2**24))
    value = luck.choice((0, 1, 2, 2**32, 2**63)).to_bytes(8, "little")
    plain = (b"\x00" + bytes(8)) + (b"\x00" + value) * luck.choice((1, 2, 3))
    present = luck.choice((0, 1, 2, 3, 7))
    header = header._replace(
        magic=MAGIC_COLUMNS, record_count=count, last_offset_delta=count - 1, attributes=int(Codec.NONE)
    )
    return header, _pack(header, bytes((present,)), plain)


CHANGES: tuple[Change, ...] = (
    change_inside,
    change_inside,
    change_inside,
    lie_about_count,
    lie_about_size,
    take_another_codec,
    constant_millions,
)


def changed_body(batch: bytes, luck: Random) -> bytes:
    """`batch` with one of the changes, and a CRC that is right."""
    header, body = luck.choice(CHANGES)(read_header(batch), batch[HEADER_BYTES:], luck)
    return seal_batch(header, body)


@cache
def bomb(codec: Codec, *, is_rows: bool) -> bytes:
    """A batch of less than 1 MiB that becomes as large as it can be made, or larger than it may be."""
    size_bytes = min(BOMB_BYTES[codec], ROW_BOMB_BYTES) if is_rows else BOMB_BYTES[codec]
    columns = encode_batch([bytes(size_bytes)], keys=[b"k"], timestamps_ms=1_700_000_000_000, codec=codec)
    return to_rows(read_batch(columns)) if is_rows else columns


@cache
def row_bomb() -> bytes:
    """Rows that say nothing, as many as fit: each becomes a hundred times as large as an object."""
    columns = encode_batch([b""] * 100_000, timestamps_ms=1_700_000_000_000, codec=Codec.ZSTD)
    return to_rows(read_batch(columns))


def any_bomb(luck: Random) -> bytes:
    """One of them."""
    codec = luck.choice(list(BOMB_BYTES))
    return luck.choice((bomb(codec, is_rows=False), bomb(codec, is_rows=True), row_bomb()))


def _unpack(header: BatchHeader, body: bytes) -> bytes:
    if header.magic != MAGIC_COLUMNS:
        return decompress_rows(header.codec, body, limit_bytes=_PLAIN_LIMIT_BYTES)
    size = int.from_bytes(body[1:PREFIX_BYTES], "little")
    if header.codec is Codec.NONE:
        return body[PREFIX_BYTES:]
    return decompress(header.codec, body[PREFIX_BYTES:], size=min(size, _PLAIN_LIMIT_BYTES))


def _pack(header: BatchHeader, present: bytes, plain: bytes) -> bytes:
    if header.magic != MAGIC_COLUMNS:
        return bytes(compress(header.codec, plain, is_rows=True))
    return present + len(plain).to_bytes(4, "little") + compress(header.codec, plain)
