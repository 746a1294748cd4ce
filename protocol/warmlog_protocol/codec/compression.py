"""The five codecs of a record batch, and the limits that are checked before decompression.

Columns (magic 3) state their size, so they are decompressed into a buffer of exactly that size. Rows (magic 2) do not,
so the buffer grows in steps up to a limit. No content of a batch makes either allocate more than the limit.

======  ======  ===================================  ==========================================================
number  codec   columns (magic 3)                    rows (magic 2), as Kafka's clients write and read them
======  ======  ===================================  ==========================================================
0       none
1       gzip    one or more members                  the same
2       snappy  one raw block                        written in xerial's framing; read in that or as one raw block
3       lz4     one or more frames, magic 184D2204   the same; written with independent blocks: Java reads no others
4       zstd    one or more frames, magic FD2FB528   the same
======  ======  ===================================  ==========================================================

Xerial's framing (the Java library snappy-java), big-endian::

    8 bytes  82 53 4E 41 50 50 59 00         "\\x82SNAPPY\\x00"
    i32      version, i32 lowest version that can read it: 1, 1
    chunks, each: i32 size, then a raw snappy block of that many bytes; concatenated streams repeat the 16 bytes
"""

from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from functools import partial
from struct import Struct
from typing import Any

import cramjam

from warmlog_protocol.codec.memory import Buffer, zeroed_memory
from warmlog_protocol.errors import CorruptBatch, InvalidConfig

# The limit on one batch in a reader's memory: far more than a batch of the usual 1 MiB decompresses to.
DEFAULT_MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024

# The default levels of each library, and of Kafka. lz4 1 is its fast mode, six times as fast as the lowest level of its
# high-compression mode.
_GZIP_LEVEL = 6
_LZ4_LEVEL = 1
_ZSTD_LEVEL = 3

_XERIAL_HEADER = b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_MAGIC = _XERIAL_HEADER[:8]
_XERIAL_CHUNK_BYTES = 32 * 1024  # what snappy-java cuts by default
_XERIAL_SIZE = Struct(">i")

_LZ4_PIECE_BYTES = 1024 * 1024
_FIRST_GUESS_BYTES = 64 * 1024
_GUESS_FACTOR = 4


class Codec(IntEnum):
    """Bits 0-2 of a batch's attributes; the names are those of Kafka's `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def label(self) -> str:
        """The name in settings and on the command line: "none", "gzip", "snappy", "lz4" or "zstd"."""
        return self.name.lower()

    @classmethod
    def from_name(cls, name: str) -> "Codec":
        """The codec of this label, upper or lower case. InvalidConfig, which lists the labels, if there is none."""
        for codec in cls:
            if codec.label == name.lower():
                return codec
        known = ", ".join(codec.label for codec in cls)
        raise InvalidConfig(f"unknown compression {name!r}: choose one of {known}")


def compress(codec: Codec, data: Buffer, *, is_rows: bool = False) -> Buffer:
    """Return `data` compressed for columns, or for rows: these differ for snappy only, which Kafka frames.

    With NONE, `data` itself.
    """
    if codec is Codec.NONE:
        return data
    if not is_rows or codec is not Codec.SNAPPY:
        return memoryview(_COMPRESS[codec](data))
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_CHUNK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_CHUNK_BYTES]))
        parts += (_XERIAL_SIZE.pack(len(block)), block)
    return b"".join(parts)


def decompress(codec: Codec, data: Buffer, *, size: int) -> memoryview:
    """Return the decompressed `data` of columns, with a `codec` other than NONE.

    CorruptBatch if it is damaged or not `size` bytes, which are allocated: the caller checks them against the limit.
    """
    output = zeroed_memory(size)
    if (found := _decompress_into(codec, data, output)) != size:
        raise CorruptBatch(f"{codec.label} body: {size} bytes expected, {found} found")
    return output.toreadonly()


def decompress_rows(codec: Codec, data: Buffer, *, limit_bytes: int) -> memoryview:
    """Return the decompressed `data`, whose size is not known; with NONE, `data` itself.

    CorruptBatch if it is damaged or larger than `limit_bytes`; the two cannot always be distinguished.
    """
    if codec is Codec.NONE:
        if len(data) > limit_bytes:
            raise CorruptBatch(f"body of {len(data)} bytes is over the limit of {limit_bytes}")
        return memoryview(data)
    if codec is Codec.SNAPPY:
        return _decompress_snappy(memoryview(data), limit_bytes)
    guess = max(_FIRST_GUESS_BYTES, _GUESS_FACTOR * len(data))
    while guess < limit_bytes:
        with suppress(CorruptBatch):  # probably too small a guess
            return _decompress_at_most(codec, data, guess)
        guess *= _GUESS_FACTOR
    try:
        return _decompress_at_most(codec, data, limit_bytes)
    except CorruptBatch as error:
        raise CorruptBatch(f"{error}; the limit is {limit_bytes} bytes") from None


def _decompress_at_most(codec: Codec, data: Buffer, size: int) -> memoryview:
    output = zeroed_memory(size)
    return output[: _decompress_into(codec, data, output)].toreadonly()


def _decompress_snappy(data: memoryview, limit_bytes: int) -> memoryview:
    """The raw blocks of `data`, one after another, each of which begins with its decompressed size."""
    blocks = _xerial_blocks(data) if data[:8] == _XERIAL_MAGIC else [data]
    try:
        sizes = [int(cramjam.snappy.decompress_raw_len(block)) for block in blocks]
    except Exception as error:  # see _decompress_into
        raise CorruptBatch(f"snappy body: {error}") from error
    size = sum(sizes)
    if size > limit_bytes:
        raise CorruptBatch(f"snappy body: {size - limit_bytes} bytes over the limit")
    output = zeroed_memory(size)
    start = 0
    for block, block_size in zip(blocks, sizes, strict=True):
        found = _decompress_into(Codec.SNAPPY, block, output[start : start + block_size])
        if found != block_size:
            raise CorruptBatch(f"snappy body: {block_size} bytes expected, {found} found")
        start += block_size
    return output.toreadonly()


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    """The raw snappy blocks of a stream in xerial's framing. CorruptBatch if the framing is malformed."""
    blocks = []
    position = 0
    while position < len(data):
        if data[position : position + 8] == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            continue
        start = position + _XERIAL_SIZE.size
        if start > len(data):
            raise CorruptBatch(f"snappy body: chunk cut off at byte {position} of {len(data)}")
        (size,) = _XERIAL_SIZE.unpack_from(data, position)
        position = start + size
        if size < 0 or position > len(data):
            raise CorruptBatch(f"snappy body: chunk of {size} bytes, {len(data) - start} left")
        blocks.append(data[start:position])
    if position != len(data):
        raise CorruptBatch("snappy body: stream header cut off")
    return blocks


def _decompress_into(codec: Codec, data: Buffer, output: memoryview) -> int:
    """Return how many bytes of `output` were filled. CorruptBatch if `data` is damaged, too large or too long."""
    try:
        return int(_DECOMPRESS_INTO[codec](data, output))
    except Exception as error:  # cramjam has one class for most errors; all of them are caused by these bytes
        raise CorruptBatch(f"{codec.label} body: {error}") from error


def _compress_lz4(data: Buffer) -> cramjam.Buffer:
    # No content checksum: the batch's CRC-32C covers these bytes.
    compressor = cramjam.lz4.Compressor(level=_LZ4_LEVEL, content_checksum=False, block_linked=False)
    for start in range(0, len(data), _LZ4_PIECE_BYTES):  # a call holds the interpreter lock
        compressor.compress(bytes(data[start : start + _LZ4_PIECE_BYTES]))
    return compressor.finish()


_COMPRESS: dict[Codec, Callable[[Buffer], cramjam.Buffer]] = {
    Codec.GZIP: partial(cramjam.gzip.compress, level=_GZIP_LEVEL),
    Codec.SNAPPY: cramjam.snappy.compress_raw,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: partial(cramjam.zstd.compress, level=_ZSTD_LEVEL),
}

_DECOMPRESS_INTO: dict[Codec, Callable[[Any, memoryview], int]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.SNAPPY: cramjam.snappy.decompress_raw_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}
