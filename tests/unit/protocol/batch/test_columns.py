"""The columnar body: its bytes as the specification has them, everything that is refused, and damage."""

import struct
import tracemalloc
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.protocol.batch_strategies import CODECS, DAMAGE, MAX_I64, Damage, Records, lists_of, records
from warmlog_protocol.batch import (
    HEADER_BYTES,
    BatchHeader,
    Columns,
    IntColumn,
    columns_of,
    decode_columns,
    encode_batch,
    encode_columns,
    int_column,
    read_batch,
    read_header,
    seal_batch,
)
from warmlog_protocol.batch.columns import columns_bytes, unpack_columns
from warmlog_protocol.batch.int_column import pack_ints
from warmlog_protocol.codec.compression import Codec, compress, decompress
from warmlog_protocol.errors import CorruptBatch

LIMIT_BYTES = 1_000_000
APPEND_TIME, CONTROL, DELETE_HORIZON = 8, 32, 64


def header_of(count: int, **fields: int) -> BatchHeader:
    header = BatchHeader(0, 0, -1, 3, 0, 0, max(count - 1, 0), 1000, 1000, -1, -1, -1, count)
    return header._replace(**fields)


def decode(header: BatchHeader, body: bytes, limit_bytes: int = LIMIT_BYTES) -> Columns:
    view = memoryview(body)
    if header.record_count:
        columns_bytes(header, view, limit_bytes)
    return decode_columns(header, view, unpack_columns(header, view) if header.record_count else view)


def same(value: int) -> bytes:
    """An integer column of width 0."""
    return b"\x00" + struct.pack("<Q", value)


def body_of(*rest: bytes, present: int = 0, size: int | None = None) -> bytes:
    data = b"".join(rest)
    return struct.pack("<BI", present, len(data) if size is None else size) + data


def read_by_the_book(batch: bytes) -> tuple[list[Any], ...]:
    """The specification word by word, slow and trusting: offsets, timestamps, keys, values, headers."""
    header = read_header(batch)
    count = header.record_count
    present, size = struct.unpack_from("<BI", batch, HEADER_BYTES)
    rest = batch[HEADER_BYTES + 5 :]
    if header.codec is not Codec.NONE:
        rest = decompress(header.codec, rest, size=size)
    assert len(rest) == size

    def take(length: int) -> bytes:
        nonlocal rest
        taken, rest = rest[:length], rest[length:]
        assert len(taken) == length
        return taken

    def take_column() -> list[int]:
        width = take(1)[0]
        if width == 0:
            return [int.from_bytes(take(8), "little")] * count
        return [int.from_bytes(take(width), "little") for _ in range(count)]

    def take_data(lengths: list[int]) -> list[bytes | None]:
        return [take(length - 1) if length else None for length in lengths]

    offset_deltas = take_column() if present & 4 else range(count)
    timestamp_deltas = take_column()
    key_lengths = take_column() if present & 1 else [0] * count
    value_lengths = take_column()
    header_lengths = take_column() if present & 2 else [0] * count
    keys, values = take_data(key_lengths), take_data(value_lengths)
    headers = [take(length) for length in header_lengths]
    assert rest == b""
    return (
        [header.base_offset + delta for delta in offset_deltas],
        [header.base_timestamp_ms + delta for delta in timestamp_deltas],
        keys,
        values,
        [tuple(map(tuple, msgspec.msgpack.decode(blob))) if blob else () for blob in headers],
    )


# --- what is written ------------------------------------------------------------------------------------------------


def test_the_bytes_of_a_batch_with_every_column() -> None:
    batch = encode_batch(
        [b"v1", None, b""],
        keys=[b"k", None, b""],
        timestamps_ms=[1005, 1000, 1300],
        headers=[[], [("h", b"x"), ("n", None)], None],
        offset_deltas=[0, 2, 7],
        base_offset=5,
        leader_epoch=3,
        producer_id=7,
        producer_epoch=1,
        base_sequence=10,
    )
    body = (
        "07" "25000000"  # every column is there; 37 bytes
        "01" "000207"  # offset deltas
        "02" "0500" "0000" "2c01"  # timestamp deltas, two bytes because of 300
        "01" "020001"  # key lengths + 1
        "01" "030001"  # value lengths + 1
        "01" "000b00"  # header lengths
        "6b" "7631" "92" "92a168c40178" "92a16ec0"  # keys, values, headers
    )  # fmt: skip
    assert batch[HEADER_BYTES:].hex() == body
    assert batch[:17].hex() == "0000000000000005" "0000005b" "00000003" "03"  # fmt: skip
    assert batch[21:HEADER_BYTES].hex() == (
        "0000" "00000007" "00000000000003e8" "0000000000000514" "0000000000000007" "0001" "0000000a" "00000003"
    )  # fmt: skip


def test_the_bytes_of_the_commonest_batch() -> None:
    batch = encode_batch([b"warm", b"logs"], timestamps_ms=1_700_000_000_000)
    assert batch[HEADER_BYTES:] == body_of(same(0), same(5), b"warmlogs")


def test_a_batch_of_columns_is_the_same_bytes_for_ever() -> None:
    batch = encode_batch([b"test"], timestamps_ms=1_700_000_000_000)
    assert batch.hex() == (
        "00000000000000000000004cffffffff03b1bcee3c" "0000000000000000018bcfe568000000018bcfe56800"
        "ffffffffffffffffffffffffffff00000001" "0016000000" "000000000000000000" "000500000000000000" "74657374"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "width"),
    [
        ([7, 7], 0),
        ([0, 255], 1),
        ([0, 256], 2),
        ([0, 2**16 - 1], 2),
        ([0, 2**16], 4),
        ([2**32 - 1, 0], 4),
        ([2**32, 0], 8),
        ([2**64 - 1, 0], 8),
        ([2**64 - 1], 0),
        ([], 0),
    ],
)
def test_a_column_takes_the_least_width_that_holds_it(values: list[int], width: int) -> None:
    column = pack_ints(values)
    assert column.width == width
    assert column.tolist() == list(column) == values
    assert len(column.data) == (width * len(values) or 8)


@pytest.mark.parametrize("values", [[-1, 0], [0, -1], [2**64, 0], [-1], [2**64]])
def test_a_column_refuses_what_is_not_unsigned_of_64_bits(values: list[int]) -> None:
    with pytest.raises(ValueError, match="is not an unsigned integer of 64 bits"):
        pack_ints(values)


def test_a_machine_of_the_other_byte_order_turns_columns_around(monkeypatch: pytest.MonkeyPatch) -> None:
    here = pack_ints([1, 256])
    monkeypatch.setattr(int_column, "_SWAP", not int_column._SWAP)
    there = pack_ints([1, 256])
    assert there.tolist() == [1, 256]
    assert bytes(there.data) == b"".join(bytes(here.data)[i : i + 2][::-1] for i in (0, 2))


def test_a_column_is_read_with_numpy_as_it_lies() -> None:
    numpy = pytest.importorskip("numpy")
    column = pack_ints([1, 2, 70_000])
    assert numpy.frombuffer(column.data, dtype=f"<u{column.width}").tolist() == [1, 2, 70_000]


@given(records(), CODECS)
def test_every_batch_says_by_the_book_what_was_put_in(made: Records, codec: Codec) -> None:
    assert read_by_the_book(made.encode(codec)) == made.lists()


@given(records(), CODECS)
def test_every_batch_gives_back_what_was_put_in(made: Records, codec: Codec) -> None:
    batch = read_batch(made.encode(codec))
    assert lists_of(batch) == made.lists()
    assert batch.header.base_timestamp_ms == min(made.timestamps_ms)
    assert batch.header.max_timestamp_ms == max(made.timestamps_ms)


@given(records(), CODECS)
def test_decoded_columns_are_encoded_to_the_same_body(made: Records, codec: Codec) -> None:
    batch = read_batch(made.encode(codec))
    body = encode_columns(batch.columns, last_offset_delta=batch.header.last_offset_delta, codec=codec)
    assert body == batch.buffer[HEADER_BYTES:]


def test_columns_that_say_nothing_are_left_out() -> None:
    columns = columns_of([b"a", b"b"], keys=[None, None], timestamps_ms=5, headers=[[], None], offset_deltas=[0, 1])
    assert columns.key_lengths is columns.header_lengths is columns.offset_deltas is None


def test_offset_deltas_are_written_when_the_last_records_are_gone() -> None:
    columns = columns_of([b"a", b"b"], timestamps_ms=1000)
    body = encode_columns(columns, last_offset_delta=7)
    assert body == body_of(b"\x01\x00\x01", same(0), same(2), b"ab", present=4)
    assert list(decode(header_of(2, last_offset_delta=7), body).offset_delta_list()) == [0, 1]


def test_a_delete_horizon_comes_before_what_is_compressed() -> None:
    columns = columns_of([b"a" * 500], timestamps_ms=1000)
    columns.delete_horizon_ms = 123_456
    body = encode_columns(columns, last_offset_delta=0, codec=Codec.ZSTD)
    rest = same(0) + same(501) + b"a" * 500
    assert body == struct.pack("<BIQ", 0, len(rest), 123_456) + compress(Codec.ZSTD, rest)
    decoded = decode(header_of(1, attributes=DELETE_HORIZON | Codec.ZSTD), body)
    assert decoded.delete_horizon_ms == 123_456
    assert decoded.value_list() == [b"a" * 500]


@pytest.mark.parametrize(
    ("records_made", "error", "message"),
    [
        ({"values": [], "timestamps_ms": 0}, ValueError, "at least one record"),
        ({"values": [b"a"], "timestamps_ms": [1, 2]}, ValueError, "2 timestamps for 1 values"),
        ({"values": [b"a"], "timestamps_ms": 0, "keys": []}, ValueError, "0 keys for 1 values"),
        ({"values": [b"a"], "timestamps_ms": 0, "headers": [[("a", b"")], []]}, ValueError, "2 headers for 1 values"),
        ({"values": [b"a"], "timestamps_ms": 0, "offset_deltas": [1, 2]}, ValueError, "2 offset deltas for 1 values"),
        ({"values": [b"a", b"b"], "timestamps_ms": 0, "offset_deltas": [1, 1]}, ValueError, "must be increasing"),
        ({"values": [b"a", b"b"], "timestamps_ms": 0, "offset_deltas": [-1, 1]}, ValueError, "must be increasing"),
        ({"values": [b"a"], "timestamps_ms": 2**63}, ValueError, "do not fit 64 bits"),
        ({"values": [b"a", b"b"], "timestamps_ms": [0, -(2**63) - 1]}, ValueError, "do not fit 64 bits"),
        ({"values": ["a"], "timestamps_ms": 0}, TypeError, "str found"),
        ({"values": [None, "a"], "timestamps_ms": 0}, TypeError, "str found"),
        ({"values": [memoryview(b"abcd").cast("H")], "timestamps_ms": 0}, TypeError, "bytes or None"),
        ({"values": [b"a"], "timestamps_ms": 0, "headers": [[("a", "b")]]}, TypeError, "a header is a str and bytes"),
        ({"values": [b"a"], "timestamps_ms": 0, "headers": [[(b"a", b"b")]]}, TypeError, "a header is a str and bytes"),
    ],
)
def test_what_makes_no_batch_is_refused(records_made: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        encode_batch(**records_made)


# --- what is refused ------------------------------------------------------------------------------------------------

ONE = header_of(1)
TWO = header_of(2)


@pytest.mark.parametrize(
    ("header", "body", "message"),
    [
        (ONE, b"", "body of 0 bytes, at least 5"),
        (ONE, b"\x00\x00\x00\x00", "body of 4 bytes, at least 5"),
        (ONE._replace(attributes=DELETE_HORIZON), body_of(b"1234567"), "body of 12 bytes, at least 13"),
        (ONE, body_of(same(0), same(2), b"a", present=8), "unknown bits"),
        (ONE, body_of(same(0), same(2), b"a", present=0x80), "unknown bits"),
        (ONE, body_of(same(0), same(2), b"a", size=18), "18 bytes expected, 19 found"),
        (ONE, body_of(same(0), same(2), b"a", size=20), "20 bytes expected, 19 found"),
        (ONE, body_of(same(0), same(2), b"a", size=LIMIT_BYTES + 1), "over the limit"),
        (ONE, body_of(), "column expected at byte 0, where the body ends"),
        (ONE, body_of(same(0)), "column expected at byte 9, where the body ends"),
        (ONE, body_of(b"\x03abc", same(2), b"a"), "width 3 does not exist"),
        (ONE, body_of(b"\x10" + bytes(16), same(2), b"a"), "width 16 does not exist"),
        (ONE, body_of(b"\x08" + bytes(7)), "8 bytes expected, 7 left"),
        (TWO, body_of(b"\x02" + bytes(3)), "4 bytes expected, 3 left"),
        (ONE, body_of(b"\x00" + bytes(7)), "8 bytes expected, 7 left"),
        (ONE, body_of(same(0), same(3), b"a"), "values of 2 and headers of 0 bytes, but 1 bytes of data"),
        (ONE, body_of(same(0), same(1), b"a"), "values of 0 and headers of 0 bytes, but 1 bytes of data"),
        (ONE, body_of(same(0), same(0), b"a"), "values of 0 and headers of 0 bytes, but 1 bytes of data"),
        (ONE, body_of(same(0), same(2**64 - 1), b"a"), "but 1 bytes of data"),
        (TWO, body_of(same(0), b"\x08" + b"\xff" * 16, b"a"), "but 1 bytes of data"),
        (ONE, body_of(same(0), same(2), same(2), b"a", present=1), "keys of 1, values of 1"),
        (ONE, body_of(same(0), same(1), same(2), b"a", present=2), "headers of 2 bytes, but 1 bytes"),
        (header_of(1, last_offset_delta=1), body_of(same(0), same(2), b"a"), "but no offset deltas"),
        (header_of(2, last_offset_delta=0), body_of(same(0), same(1)), "but no offset deltas"),
        (header_of(2, last_offset_delta=9), body_of(same(3), same(0), same(1), present=4), "not increasing"),
        (header_of(2, last_offset_delta=9), body_of(b"\x01\x05\x04", same(0), same(1), present=4), "not increasing"),
        (header_of(2, last_offset_delta=9), body_of(b"\x01\x05\x0a", same(0), same(1), present=4), "10 is above"),
        (ONE, body_of(same(2**63 - 1000), same(1)), "does not fit 64 bits"),
        (TWO, body_of(b"\x08" + bytes(8) + b"\xff" * 8, same(1)), "does not fit 64 bits"),
        (header_of(2, base_timestamp_ms=MAX_I64 - 1), body_of(b"\x01\x00\x02", same(1)), "does not fit 64 bits"),
        (header_of(0), b"\x00", "no records, but a body of 1 bytes"),
        (ONE._replace(attributes=CONTROL), body_of(same(0), same(2), b"a"), "a control batch in columns"),
        (ONE._replace(attributes=7), body_of(same(0), same(2), b"a"), "codec 7"),
        (ONE._replace(attributes=DELETE_HORIZON), body_of(b"\xff" * 8, size=0), "is no timestamp"),
        (header_of(2**31 - 1), body_of(same(0), same(1)), "too many"),
        (header_of(LIMIT_BYTES // 8 + 1), body_of(same(0), same(1)), "too many"),
    ],
)  # fmt: skip
def test_a_malformed_body_is_a_corrupt_batch(header: BatchHeader, body: bytes, message: str) -> None:
    with pytest.raises(CorruptBatch, match=message):
        decode(header, body)


def test_what_is_allowed_though_no_writer_does_it() -> None:
    wide = body_of(
        b"\x08" + struct.pack("<2Q", 0, 1),
        b"\x04" + struct.pack("<2I", 0, 9),
        same(0),
        b"\x02\x02\x00\x03\x00",
        same(0),
        b"abb",
        present=7,
    )
    columns = decode(TWO, wide)
    assert columns.value_list() == [b"a", b"bb"]
    assert columns.key_list() == [None, None]
    assert columns.timestamp_list() == [1000, 1009]
    assert columns.offset_delta_list() == [0, 1]


def test_the_timestamp_column_is_ignored_where_the_broker_took_the_time() -> None:
    header = TWO._replace(attributes=APPEND_TIME, max_timestamp_ms=MAX_I64)
    columns = decode(header, body_of(b"\x08" + b"\xff" * 16, same(1)))
    assert columns.timestamp_list() == [MAX_I64, MAX_I64]


def test_an_emptied_batch_has_no_body() -> None:
    columns = decode(header_of(0, last_offset_delta=7, attributes=DELETE_HORIZON), b"")
    assert columns.count == 0
    for column in (columns.value_list(), columns.key_list(), columns.timestamp_list(), columns.header_list()):
        assert column == []
    assert encode_columns(columns, last_offset_delta=7) == b""


@pytest.mark.parametrize(
    "blob",
    [
        b"\x91\x92\xa1\xff\xc4\x01x",  # a name that is not UTF-8
        b"\x91\x92\xa1h\xa1x",  # a string for a value
        b"\x91\x92\xc0\xc4\x01x",  # no name
        b"\x91\x91\xa1h",  # one item for a pair
        b"\x91\x93\xa1h\xc0\xc0",  # three
        b"\x91",  # cut off
        b"\x90\x90",  # trailing bytes
        b"\xc0",  # no array
        b"\xdd\xff\xff\xff\xff",  # four billion pairs
        b"\xc1",  # no msgpack
    ],
)
def test_malformed_headers_are_a_corrupt_batch_when_they_are_read(blob: bytes) -> None:
    body = body_of(same(0), same(2), b"\x01\x00" + bytes((len(blob),)), b"ab" + blob, present=2)
    batch = read_batch(seal_batch(TWO._replace(base_offset=40), body))
    assert batch.values() == [b"a", b"b"]
    with pytest.raises(CorruptBatch, match="batch at offsets 40 to 41: record headers"):
        batch.headers()


def test_headers_may_be_an_empty_array() -> None:
    columns = decode(ONE, body_of(same(0), same(1), same(1), b"\x90", present=2))
    assert columns.header_list() == [()]


# --- limits ---------------------------------------------------------------------------------------------------------


def peak_bytes(header: BatchHeader, body: bytes) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            decode(header, body, 100_000)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
@pytest.mark.parametrize("claimed", [None, 100_000, 50])
def test_nothing_larger_than_the_limit_is_allocated(codec: Codec, claimed: int | None) -> None:
    rest = same(0) + same(20_000_001) + bytes(20_000_000)
    body = struct.pack("<BI", 0, claimed or len(rest)) + compress(codec, rest)
    assert peak_bytes(ONE._replace(attributes=codec), body) < 200_000


def test_a_few_bytes_cannot_describe_more_records_than_the_limit_has_room_for() -> None:
    assert peak_bytes(header_of(100_000), body_of(same(0), same(0))) < 200_000


def test_as_many_records_as_the_limit_has_room_for_are_read() -> None:
    count = LIMIT_BYTES // 8
    assert decode(header_of(count), body_of(same(0), same(0))).value_list() == [None] * count


# --- damage ---------------------------------------------------------------------------------------------------------


def check_readable_or_corrupt(batch: bytes) -> None:
    """The batch can be read, and says nothing impossible, or it is a CorruptBatch."""
    try:
        read = read_batch(batch, max_decompressed_bytes=LIMIT_BYTES)
        lists = lists_of(read)
    except CorruptBatch:
        return
    assert [len(column) for column in lists] == [read.record_count] * 5
    offsets = lists[0]
    assert all(first < second for first, second in pairwise(offsets))
    assert all(read.base_offset <= offset <= read.last_offset for offset in offsets)
    assert all(-(2**63) <= timestamp_ms < 2**63 for timestamp_ms in lists[1])


@given(records(), CODECS, DAMAGE)
def test_a_damaged_body_under_a_valid_crc_is_read_or_a_corrupt_batch(
    made: Records, codec: Codec, damage: Damage
) -> None:
    batch = made.encode(codec)
    check_readable_or_corrupt(seal_batch(read_header(batch), damage.apply(batch[HEADER_BYTES:])))


@given(records(), DAMAGE, st.sampled_from([codec for codec in Codec if codec is not Codec.NONE]))
def test_damaged_columns_that_were_compressed_are_read_or_a_corrupt_batch(
    made: Records, damage: Damage, codec: Codec
) -> None:
    batch = made.encode()
    rest = damage.apply(batch[HEADER_BYTES + 5 :])
    body = struct.pack("<BI", batch[HEADER_BYTES], len(rest)) + compress(codec, rest)
    check_readable_or_corrupt(seal_batch(read_header(batch)._replace(attributes=codec), body))


@given(
    records(),
    st.fixed_dictionaries(
        {},
        optional={
            "record_count": st.integers(0, 20) | st.integers(0, 2**31 - 1),
            "last_offset_delta": st.integers(0, 3000) | st.integers(0, 2**31 - 1),
            "attributes": st.integers(-(2**15), 2**15 - 1),
            "base_timestamp_ms": st.integers(-(2**63), MAX_I64),
        },
    ),
)
def test_a_header_that_does_not_fit_its_body_is_read_or_a_corrupt_batch(made: Records, fields: dict[str, int]) -> None:
    batch = made.encode()
    check_readable_or_corrupt(seal_batch(read_header(batch)._replace(**fields), batch[HEADER_BYTES:]))


def test_no_value_of_any_byte_of_a_small_body_causes_another_error() -> None:
    batch = encode_batch(
        [b"v1", None, b""],
        keys=[b"k", None, b""],
        timestamps_ms=[1005, 1000, 1300],
        headers=[[], [("h", b"x"), ("n", None)], None],
        offset_deltas=[0, 2, 7],
    )
    header, body = read_header(batch), batch[HEADER_BYTES:]
    for position in range(len(body)):
        for value in (*range(20), 0x7F, 0x80, 0x90, 0xC0, 0xC1, 0xDC, 0xFE, 0xFF):
            check_readable_or_corrupt(seal_batch(header, body[:position] + bytes((value,)) + body[position + 1 :]))


def test_every_cut_of_a_small_body_is_a_corrupt_batch() -> None:
    batch = encode_batch([b"v1", None], keys=[b"k", b""], timestamps_ms=[1005, 1000])
    for size in range(HEADER_BYTES, len(batch)):
        with pytest.raises(CorruptBatch):
            _ = read_batch(seal_batch(read_header(batch), batch[HEADER_BYTES:size])).columns


def test_columns_of_constant_width_need_no_list() -> None:
    column = IntColumn.constant_of(5, 2**31)
    assert (column.total(), column.largest(), column.zeros(), len(column)) == (5 * 2**31, 5, 0, 2**31)
