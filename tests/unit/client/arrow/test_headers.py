"""Record headers as Arrow: the same as the decoder finds record by record, however long, rare or damaged they are."""

from unittest.mock import patch

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.arrow import headers as arrow_headers
from warmlog.arrow.columns import BatchPart, part_of
from warmlog.arrow.headers import headers_array
from warmlog_protocol.batch import Header, IntColumn, encode_batch, read_batch
from warmlog_protocol.errors import CorruptBatch

AT_BORDERS = [0, 1, 31, 32, 255, 256, 65_535, 65_536]
"""Where msgpack's markers change."""

lengths = st.sampled_from(AT_BORDERS[:6]) | st.integers(0, 40)
names = st.text(max_size=6) | lengths.map(lambda length: "n" * length)
values = st.none() | st.binary(max_size=6) | lengths.map(bytes)
records = st.lists(st.lists(st.tuples(names, values), max_size=4), min_size=1, max_size=20)


def part(headers: list[list[Header]], start: int = 0, stop: int | None = None) -> BatchPart:
    """The records `start` to `stop` of one batch with these headers."""
    sealed = encode_batch([None] * len(headers), timestamps_ms=0, headers=headers, base_offset=77)
    found = part_of(read_batch(sealed), 77 + start, 77 + (len(headers) if stop is None else stop))
    assert found is not None
    return found


def encoded(*records: bytes) -> BatchPart:
    """Records whose headers are these bytes."""
    whole = part([[("name", b"value")]] * len(records))
    whole.columns.header_lengths = IntColumn(4, np.array([*map(len, records)], "<u4").tobytes(), len(records))
    whole.headers = memoryview(b"".join(records))
    return whole


def lists(array: pa.Array) -> list[list[Header]]:
    array.validate(full=True)
    return [[(each["key"], each["value"]) for each in headers or ()] for headers in array.to_pylist()]


@given(records)
def test_headers_are_what_was_written(headers: list[list[Header]]) -> None:
    array = headers_array([part(headers)])
    assert lists(array) == headers
    assert array.null_count == sum(not each for each in headers)


@given(records, records, st.data())
def test_parts_of_several_batches_follow_one_another(
    first: list[list[Header]], second: list[list[Header]], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(first) - 1))
    stop = data.draw(st.integers(start + 1, len(first)))
    assert lists(headers_array([part(first, start, stop), part(second)])) == first[start:stop] + second


def test_a_batch_without_headers_beside_one_with_them() -> None:
    assert lists(headers_array([part([[], []]), part([[("a", None)]])])) == [[], [], [("a", None)]]


@pytest.mark.parametrize("length", AT_BORDERS)
@pytest.mark.parametrize("count", [1, 15, 16, 100])
def test_every_length_and_number_of_headers(length: int, count: int) -> None:
    headers: list[list[Header]] = [[("a", b"1")], [("n" * length, bytes(length))] * count, [], [("z", None)]]
    assert lists(headers_array([part(headers)])) == headers


def test_usual_headers_are_not_read_record_by_record() -> None:
    headers: list[list[Header]] = [[("trace", b"%d" % number), ("ü" * 100, None)] for number in range(1000)]
    headers += [[], [("n" * 255, bytes(65_535))], [("k", b"")] * 15]
    with patch.object(arrow_headers, "decode_headers", side_effect=AssertionError):
        assert lists(headers_array([part(headers)])) == headers


def test_longer_forms_of_the_same_headers_are_read_too() -> None:
    array16, pair16, str16, bin32 = b"\xdc\x00\x01", b"\xdc\x00\x02", b"\xda\x00\x01k", b"\xc6\x00\x00\x00\x01v"
    records = [array16 + b"\x92\xa1k\xc4\x01v", b"\x91" + pair16 + b"\xa1k\xc4\x01v", b"\x91\x92" + str16 + bin32]
    for record in records:
        assert lists(headers_array([encoded(b"\x90", record)])) == [[], [("k", b"v")]]


def test_headers_cut_at_any_byte_are_an_error_that_names_the_batch() -> None:
    whole = msgspec.msgpack.encode([("name", b"value"), ("n" * 40, None), ("b", bytes(300))])
    for size in range(1, len(whole)):
        with pytest.raises(CorruptBatch, match="batch at offset 77: record headers"):
            headers_array([encoded(whole, whole[:size], whole)])


@pytest.mark.parametrize(
    "damaged",
    [
        b"\x91\x92\xa1\xff\xc4\x01v",  # a name that is not UTF-8
        b"\x91\x93\xa1k\xc4\x01v",  # three items in a pair
        b"\x91\x92\xc4\x01k\xc4\x01v",  # a name that is no text
        b"\x91\x92\xa1k\x01",  # a value that is a number
        b"\x91\x92\xa1k\xc4\x01v\x00",  # a byte too much
        b"\x81\xa1k\xc4\x01v",  # a map
        b"\x92\x92\xa1k\xc4\x01v",  # one of two
        b"\x91\x92\xa1k\xc4\xffv",  # a value longer than the record, but not than the batch
        b"\x91\x92\xbfk\xc0",  # a name longer than the record, but not than the batch
    ],
)
def test_damaged_headers_are_an_error_that_names_the_batch(damaged: bytes) -> None:
    sound = msgspec.msgpack.encode([("name", bytes(300))])
    with pytest.raises(CorruptBatch, match="batch at offset 77: record headers"):
        headers_array([encoded(sound, damaged, sound)])


@given(st.binary(max_size=30))
def test_no_bytes_are_read_otherwise_than_by_the_decoder(data: bytes) -> None:
    try:
        expected = [(name, value) for name, value in arrow_headers.decode_headers(data)]
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            headers_array([encoded(data)])
    else:
        assert lists(headers_array([encoded(data)])) == [expected]
