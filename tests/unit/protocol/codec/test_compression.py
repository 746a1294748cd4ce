"""Compression: round trips, what other libraries read and write, and refusing what is damaged or too large."""

import gzip
import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.protocol.batch_strategies import CODECS, DAMAGE, Damage
from warmlog_protocol.codec.compression import Codec, compress, decompress, decompress_rows
from warmlog_protocol.errors import CorruptBatch, InvalidConfig

compress_rows = partial(compress, is_rows=True)
LIMIT_BYTES = 200_000
REAL_CODECS = [codec for codec in Codec if codec is not Codec.NONE]
DATA = st.binary(max_size=300) | st.builds(
    lambda data, n: data * n, st.binary(min_size=1, max_size=30), st.integers(0, 5000)
)

every_codec = pytest.mark.parametrize("codec", REAL_CODECS, ids=lambda codec: codec.label)


@contextmanager
def allocating_at_most(limit_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= limit_bytes


@given(st.sampled_from(REAL_CODECS), DATA)
def test_columns_round_trip(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), size=len(data)) == data


@given(CODECS, DATA)
def test_rows_round_trip(codec: Codec, data: bytes) -> None:
    assert decompress_rows(codec, compress_rows(codec, data), limit_bytes=LIMIT_BYTES) == data


@given(CODECS, DATA, DAMAGE)
def test_damaged_data_is_a_corrupt_batch_or_within_the_limit(codec: Codec, data: bytes, damage: Damage) -> None:
    for pack in (compress, compress_rows):
        damaged = damage.apply(bytes(pack(codec, data)))
        with suppress(CorruptBatch):
            assert len(decompress_rows(codec, damaged, limit_bytes=LIMIT_BYTES)) <= LIMIT_BYTES
        if codec is not Codec.NONE:
            with suppress(CorruptBatch):
                assert len(decompress(codec, damaged, size=len(data))) == len(data)


@every_codec
@pytest.mark.parametrize("wrong_by", [-1, 1, 1000])
def test_a_wrong_size_is_a_corrupt_batch(codec: Codec, wrong_by: int) -> None:
    data = b"warm log " * 200
    with pytest.raises(CorruptBatch, match=codec.label):
        decompress(codec, compress(codec, data), size=len(data) + wrong_by)


@every_codec
@pytest.mark.parametrize(
    "unpack", [lambda c, d: decompress(c, d, size=900), lambda c, d: decompress_rows(c, d, limit_bytes=LIMIT_BYTES)]
)
def test_trailing_bytes_are_a_corrupt_batch(codec: Codec, unpack: Callable[[Codec, bytes], bytes]) -> None:
    with pytest.raises(CorruptBatch):
        unpack(codec, bytes(compress(codec, b"warm log " * 100)) + b"\x00")


@every_codec
@pytest.mark.parametrize("pack", [compress, compress_rows])
def test_a_bomb_is_refused_within_the_limit(codec: Codec, pack: Callable[[Codec, bytes], bytes]) -> None:
    bomb = pack(codec, bytes(40_000_000))
    with allocating_at_most(2 * LIMIT_BYTES + len(bomb)), pytest.raises(CorruptBatch):
        decompress_rows(codec, bomb, limit_bytes=LIMIT_BYTES)
    if pack is compress:
        with allocating_at_most(2 * LIMIT_BYTES), pytest.raises(CorruptBatch):
            decompress(codec, bomb, size=LIMIT_BYTES)


@every_codec
def test_rows_may_be_exactly_as_large_as_the_limit(codec: Codec) -> None:
    data = os.urandom(1000) * 200
    packed = compress_rows(codec, data)
    assert decompress_rows(codec, packed, limit_bytes=len(data)) == data
    with pytest.raises(CorruptBatch, match="limit"):
        decompress_rows(codec, packed, limit_bytes=len(data) - 1)


def test_uncompressed_rows_over_the_limit_are_refused() -> None:
    with pytest.raises(CorruptBatch, match="limit of 3"):
        decompress_rows(Codec.NONE, b"abcd", limit_bytes=3)


def test_rows_grow_the_buffer_until_they_fit() -> None:
    data = bytes(1_500_000)
    packed = compress_rows(Codec.ZSTD, data)
    assert len(packed) < 1000
    assert decompress_rows(Codec.ZSTD, packed, limit_bytes=2_000_000) == data


def test_rows_in_raw_snappy_are_read_as_librdkafka_writes_them() -> None:
    data = b"warm log " * 100
    assert decompress_rows(Codec.SNAPPY, compress(Codec.SNAPPY, data), limit_bytes=LIMIT_BYTES) == data


def test_rows_in_snappy_are_framed_as_java_reads_them() -> None:
    packed = compress_rows(Codec.SNAPPY, bytes(100_000))
    assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    sizes = []
    position = 16
    while position < len(packed):
        size = int.from_bytes(packed[position : position + 4], "big")
        sizes.append(len(decompress_rows(Codec.SNAPPY, packed[position + 4 :][:size], limit_bytes=LIMIT_BYTES)))
        position += 4 + size
    assert sizes == [32768, 32768, 32768, 1696]


def test_concatenated_snappy_streams_are_read() -> None:
    packed = compress_rows(Codec.SNAPPY, b"warm") + compress_rows(Codec.SNAPPY, b"log")
    assert decompress_rows(Codec.SNAPPY, packed, limit_bytes=LIMIT_BYTES) == b"warmlog"


@pytest.mark.parametrize(
    "chunk", [b"\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x09abc", b"\x00\x00\x00\x00", b"\x82SNAPPY\x00"]
)
def test_malformed_snappy_framing_is_a_corrupt_batch(chunk: bytes) -> None:
    with pytest.raises(CorruptBatch, match="snappy"):
        decompress_rows(Codec.SNAPPY, compress_rows(Codec.SNAPPY, b"warm") + chunk, limit_bytes=LIMIT_BYTES)


def test_lz4_blocks_are_independent_because_java_reads_no_others() -> None:
    flags = compress_rows(Codec.LZ4, b"warm log " * 100)[4]
    assert flags & 0x20


def test_gzip_is_what_the_standard_library_reads_and_writes() -> None:
    data = b"warm log " * 100
    assert gzip.decompress(compress(Codec.GZIP, data)) == data
    members = gzip.compress(data) + gzip.compress(b"more")
    assert decompress_rows(Codec.GZIP, members, limit_bytes=LIMIT_BYTES) == data + b"more"


@pytest.mark.parametrize("codec", list(Codec))
def test_a_codec_is_found_by_its_label_in_any_case(codec: Codec) -> None:
    assert Codec.from_name(codec.label) is codec
    assert Codec.from_name(codec.label.upper()) is codec


def test_an_unknown_codec_names_the_known_ones() -> None:
    with pytest.raises(
        InvalidConfig, match="unknown compression 'brotli': choose one of none, gzip, snappy, lz4, zstd"
    ):
        Codec.from_name("brotli")
