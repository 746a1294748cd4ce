"""Arrow arrays made from batches equal those that pyarrow makes of the same records, also of headers and damage."""

import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmlog.arrow import columns as arrow_columns
from warmlog.arrow import headers as arrow_headers
from warmlog.arrow import reader as arrow
from warmlog.arrow.columns import BatchPart, part_of
from warmlog.arrow.headers import headers_array
from warmlog.arrow.int_array import ArrayColumn, integers_of
from warmlog.arrow.reader import COLUMN_TYPES, ArrowMerger, arrow_schema, columns_to_arrow
from warmlog_protocol.batch import (
    HEADER_BYTES,
    Header,
    IntColumn,
    RecordBatch,
    encode_batch,
    encode_end_txn_marker,
    read_batch,
    read_header,
    seal_batch,
    stamp_append_time,
    to_rows,
)
from warmlog_protocol.batch.control import ControlType, EndTxnMarker
from warmlog_protocol.batch.int_column import pack_ints
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.errors import CorruptBatch, InvalidConfig, InvalidTimestamp, MessageTooLarge

ALL_COLUMNS = tuple(COLUMN_TYPES)
TOPIC = "flüge"
PARTITION = 7


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


some_bytes = st.none() | st.binary(max_size=20) | st.binary(min_size=250, max_size=300)
some_headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
some_times = st.integers(0, 3) | st.integers(-(10**12), 10**15) | st.integers(1_700_000_000_000, 1_700_000_100_000)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    """Records as one batch holds them; with gaps in their offsets, without keys, without headers, now and then."""
    count = draw(st.integers(1, 30))
    keys = draw(st.just([None] * count) | st.lists(some_bytes, min_size=count, max_size=count))
    values = draw(st.lists(some_bytes, min_size=count, max_size=count) | st.just([b"same"] * count))
    headers = draw(st.just([[]] * count) | st.lists(some_headers, min_size=count, max_size=count))
    times = draw(st.lists(some_times, min_size=count, max_size=count))
    gaps = draw(st.just([1] * count) | st.lists(st.integers(1, 300), min_size=count, max_size=count))
    offsets = np.cumsum([draw(st.integers(0, 2**40)), *gaps[1:]]).tolist()
    return [Record(*fields) for fields in zip(offsets, times, keys, values, headers, strict=True)]


def batch_of(records: Sequence[Record], *, codec: Codec = Codec.NONE, as_rows: bool = False) -> RecordBatch:
    base = records[0].offset
    deltas = [record.offset - base for record in records]
    sealed = encode_batch(
        [record.value for record in records],
        keys=[record.key for record in records],
        timestamps_ms=[record.timestamp_ms for record in records],
        headers=[record.headers for record in records],
        codec=codec,
        base_offset=base,
        offset_deltas=None if deltas[-1] == len(deltas) - 1 else deltas,
    )
    return read_batch(to_rows(read_batch(sealed)) if as_rows else sealed)


def plain(
    records: Sequence[Record], columns: Sequence[str] = ALL_COLUMNS, *, timestamp_type: int = 0
) -> pa.RecordBatch:
    """The same records as pyarrow itself makes them."""
    lists: dict[str, list[Any]] = {
        "key": [record.key for record in records],
        "value": [record.value for record in records],
        "topic": [TOPIC] * len(records),
        "partition": [PARTITION] * len(records),
        "offset": [record.offset for record in records],
        "timestamp": [record.timestamp_ms * 1000 for record in records],
        "timestampType": [timestamp_type] * len(records),
        "headers": [[{"key": name, "value": value} for name, value in record.headers] or None for record in records],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(lists[name], COLUMN_TYPES[name]) for name in columns], schema=arrow_schema(columns)
    )


def assert_same(found: pa.RecordBatch, expected: pa.RecordBatch) -> None:
    found.validate(full=True)
    assert found.schema.equals(expected.schema, check_metadata=True)
    assert found.equals(expected)


@given(records=record_lists(), codec=st.sampled_from(Codec), as_rows=st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_column_equals_what_pyarrow_makes_of_it(records: list[Record], codec: Codec, as_rows: bool) -> None:
    batch = batch_of(records, codec=codec, as_rows=as_rows)
    found = columns_to_arrow(batch, topic=TOPIC, partition=PARTITION, columns=ALL_COLUMNS)
    assert_same(found, plain(records))


@given(records=record_lists(), as_rows=st.booleans(), data=st.data())
@settings(max_examples=50, deadline=None)
def test_only_the_offsets_asked_for_come_out(records: list[Record], as_rows: bool, data: st.DataObject) -> None:
    near = st.integers(max(records[0].offset - 3, 0), records[-1].offset + 3)
    first, until = data.draw(near), data.draw(near)
    found = columns_to_arrow(
        batch_of(records, as_rows=as_rows),
        topic=TOPIC,
        partition=PARTITION,
        columns=ALL_COLUMNS,
        from_offset=first,
        until_offset=until,
    )
    assert_same(found, plain([record for record in records if first <= record.offset < until]))


@given(
    records=record_lists(),
    columns=st.permutations(ALL_COLUMNS).flatmap(lambda p: st.integers(1, 8).map(lambda n: p[:n])),
)
@settings(max_examples=50, deadline=None)
def test_columns_come_in_any_choice_and_order(records: list[Record], columns: list[str]) -> None:
    found = columns_to_arrow(batch_of(records), topic=TOPIC, partition=PARTITION, columns=columns)
    assert_same(found, plain(records, columns))


@given(
    lists=st.lists(st.tuples(record_lists(), st.sampled_from(Codec), st.booleans()), max_size=6),
    merge_bytes=st.sampled_from([1, 500, 5_000, 10**9]),
    max_bytes=st.sampled_from([1, 300, 2_000, 10**9]),
    max_rows=st.sampled_from([1, 7, 10**6]),
    columns=st.sampled_from([ALL_COLUMNS, ("value",), ("offset",), ("headers", "key")]),
)
@settings(max_examples=40, deadline=None)
def test_merged_and_cut_batches_hold_the_same_records_in_the_same_order(
    lists: list[tuple[list[Record], Codec, bool]], merge_bytes: int, max_bytes: int, max_rows: int, columns: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow, "MERGE_BYTES", merge_bytes)
        patch.setattr(arrow, "MAX_BYTES", max_bytes)
        patch.setattr(arrow, "MAX_ROWS", max_rows)
        merger = ArrowMerger(TOPIC, PARTITION, columns)
        found = [
            out for records, codec, rows in lists for out in merger.add(batch_of(records, codec=codec, as_rows=rows))
        ]
        found += merger.flush()
    assert all(0 < len(batch) <= max_rows for batch in found)
    for batch in found:
        batch.validate(full=True)
    every_record = [record for records, _, _ in lists for record in records]
    table = pa.Table.from_batches(found, schema=arrow_schema(columns)).combine_chunks()
    assert table.equals(pa.Table.from_batches([plain(every_record, columns)]).combine_chunks())


def test_small_batches_are_merged_to_a_megabyte_and_large_ones_cut_to_four() -> None:
    small = read_batch(encode_batch([bytes(1_000)] * 50, timestamps_ms=0))
    merger = ArrowMerger(TOPIC, PARTITION, ("value",))
    sizes = [out.nbytes for _ in range(100) for out in merger.add(small)]
    assert len(sizes) > 3
    assert all(1_000_000 < size < 1_200_000 for size in sizes)
    large = read_batch(encode_batch([bytes(1_000)] * 20_000, timestamps_ms=0, codec=Codec.ZSTD))
    sizes = [out.nbytes for out in ArrowMerger(TOPIC, PARTITION, ("value",)).add(large)]
    assert all(1_000_000 < size < 4_300_000 for size in sizes)


def test_the_data_of_one_uncompressed_batch_is_shared_and_not_copied() -> None:
    batch = read_batch(encode_batch([b"abc"] * 1_000, timestamps_ms=0))
    found = columns_to_arrow(batch, topic=TOPIC, partition=PARTITION, columns=("value",))
    start = np.frombuffer(batch.buffer, np.uint8).ctypes.data
    assert start <= found.column(0).buffers()[2].address < start + len(batch.buffer)


@given(records=record_lists(), as_rows=st.booleans())
@settings(max_examples=30, deadline=None)
def test_with_append_time_every_record_has_the_time_of_appending(records: list[Record], as_rows: bool) -> None:
    stamped = read_batch(stamp_append_time(bytes(batch_of(records, as_rows=as_rows).buffer), 1_700_000_000_123))
    found = columns_to_arrow(stamped, topic=TOPIC, partition=PARTITION, columns=ALL_COLUMNS)
    now = [record._replace(timestamp_ms=1_700_000_000_123) for record in records]
    assert_same(found, plain(now, timestamp_type=1))


def test_batches_of_both_timestamp_types_can_be_merged() -> None:
    created = encode_batch([b"a"], timestamps_ms=5)
    merger = ArrowMerger(TOPIC, PARTITION, ("timestamp", "timestampType"))
    assert not [*merger.add(read_batch(created)), *merger.add(read_batch(stamp_append_time(created, 9)))]
    (found,) = merger.flush()
    assert found.column(0).cast(pa.int64()).to_pylist() == [5_000, 9_000]
    assert found.column(1).to_pylist() == [0, 1]


def test_control_batches_and_emptied_batches_show_nothing() -> None:
    marker = EndTxnMarker(ControlType.COMMIT, 0)
    control = encode_end_txn_marker(marker, timestamp_ms=1, producer_id=1, producer_epoch=0)
    found = columns_to_arrow(read_batch(control), topic=TOPIC, partition=PARTITION, columns=ALL_COLUMNS)
    assert_same(found, plain([]))
    merger = ArrowMerger(TOPIC, PARTITION)
    assert not [*merger.add(read_batch(control)), *merger.flush()]


@pytest.mark.parametrize("timestamp_ms", [2**63 - 1, -(2**63), (2**63 - 1) // 1000 + 1])
def test_a_time_beyond_microseconds_is_refused_with_its_offset_unless_time_is_left_out(timestamp_ms: int) -> None:
    batch = read_batch(encode_batch([b"a", b"b"], timestamps_ms=[0, timestamp_ms], base_offset=40))
    with pytest.raises(InvalidTimestamp, match=f"offset 41: its timestamp, {timestamp_ms} ms"):
        columns_to_arrow(batch, topic=TOPIC, partition=PARTITION)
    assert len(columns_to_arrow(batch, topic=TOPIC, partition=PARTITION, columns=("value",))) == 2


@pytest.mark.parametrize("timestamp_ms", [(2**63 - 1) // 1000, -((2**63 - 1) // 1000), -1])
def test_the_first_and_the_last_time_that_fit_are_taken(timestamp_ms: int) -> None:
    batch = read_batch(encode_batch([b"a", b"b"], timestamps_ms=[0, timestamp_ms]))
    found = columns_to_arrow(batch, topic=TOPIC, partition=PARTITION, columns=("timestamp",))
    assert found.column(0).cast(pa.int64()).to_pylist() == [0, timestamp_ms * 1000]


def test_headers_damaged_under_a_right_crc_are_found_when_they_are_asked_for() -> None:
    sealed = bytearray(encode_batch([b"abc"], timestamps_ms=0, headers=[[("name", b"value")]], base_offset=77))
    sealed[-len(b"value") - 2] = 0xC1  # a byte that msgpack never uses
    batch = read_batch(sealed, verify_crc=False)
    assert len(columns_to_arrow(batch, topic=TOPIC, partition=PARTITION)) == 1
    with pytest.raises(CorruptBatch, match="batch at offset 77: record headers"):
        columns_to_arrow(batch, topic=TOPIC, partition=PARTITION, columns=("headers",))


def column(numbers: list[int]) -> IntColumn:
    return IntColumn(8, np.array(numbers, np.uint64).tobytes(), len(numbers))


@pytest.mark.parametrize(
    "lengths",
    [[4, 3], [2, 1], [2**63, 1], [2**64 - 1, 6], [2**62 + 1] * 4, [2**32 + 4, 2]],
    ids=["too long", "too short", "negative", "minus one", "adding up to 2^64", "too long for 32 bits"],
)
def test_lengths_that_do_not_match_their_data_never_reach_arrow(lengths: list[int]) -> None:
    """Even if the decoder let them pass: Arrow would read beyond the buffer."""
    data = memoryview(b"abcd")[: 0 if len(lengths) == 4 else 4]
    part = cast("arrow_columns.BatchPart", SimpleNamespace(start=0, stop=len(lengths), count=len(lengths)))
    with pytest.raises(CorruptBatch):
        arrow_columns.binary_array([part], [column(lengths)], [data])


def test_a_column_with_fewer_integers_than_it_says_never_reaches_arrow() -> None:
    part = cast("arrow_columns.BatchPart", SimpleNamespace(start=0, stop=3, count=3))
    with pytest.raises(ValueError, match="buffer"):
        arrow_columns.binary_array([part], [IntColumn(2, b"\x01\x00" * 2, 3)], [memoryview(b"")])


def test_two_gibibytes_in_one_column_are_refused() -> None:
    class Huge:
        def __len__(self) -> int:
            return 2**31

    part = cast("arrow_columns.BatchPart", SimpleNamespace(start=0, stop=1, count=1))
    with pytest.raises(MessageTooLarge, match="2147483648 bytes"):
        arrow_columns.binary_array([part], [column([2**31 + 1])], [cast("memoryview", Huge())])


def test_a_column_that_does_not_exist_is_named() -> None:
    with pytest.raises(InvalidConfig, match="there is no column vlaue: choose among key, value, topic"):
        arrow_schema(["key", "vlaue"])


def test_importing_warmlog_loads_neither_numpy_nor_pyarrow_nor_pyspark() -> None:
    code = "import sys, warmlog; print([m for m in ('numpy', 'pyarrow', 'pyspark', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
def test_parts_of_batches_follow_on(first: list[list[Header]], second: list[list[Header]], data: st.DataObject) -> None:
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


bounds = st.sampled_from([1, 1 << 8, 1 << 16, 1 << 32, 1 << 64])
columns = bounds.flatmap(lambda bound: st.lists(st.integers(0, bound - 1), max_size=40)) | st.sets(
    st.integers(0, (1 << 64) - 1), max_size=40
).map(sorted)


@given(values=columns)
@settings(max_examples=100, deadline=None)
def test_an_array_column_answers_as_a_plain_one(values: list[int]) -> None:
    plain = pack_ints(values)
    column = ArrayColumn(plain.width, plain.data, plain.count)
    assert column.total() == plain.total() == sum(values)
    assert column.largest() == plain.largest() == max(values, default=0)
    assert column.zeros() == plain.zeros() == values.count(0)
    assert column.is_increasing() == plain.is_increasing() == (sorted(set(values)) == values)
    assert column.tolist() == values


@given(values=st.lists(st.integers(0, 70_000), min_size=1, max_size=40), data=st.data())
@settings(max_examples=100, deadline=None)
def test_some_integers_of_a_column_are_read_where_they_lie(values: list[int], data: st.DataObject) -> None:
    column = pack_ints(values)
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    expected = [column.constant] if column.width == 0 else values[start:stop]
    assert integers_of(column, start, stop).tolist() == expected


COLUMNS = ("offset", "timestamp", "key", "value")
MAX_BYTES = 1 << 20
PREFIX_BYTES = 5
"""The bits of the columns that are there, and the size, which is put right so that damage gets past it."""

Rows = list[tuple[int, int, bytes | None, bytes | None]]

items = st.none() | st.just(b"same") | st.binary(max_size=10) | st.binary(min_size=254, max_size=257)
telling = st.sampled_from([0, 1, 2, 4, 8, 127, 128, 255])
numbers = st.sampled_from([0, 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])


@st.composite
def sealed_batches(draw: st.DrawFn) -> bytes:
    """Good batches of a few records, with gaps between offsets, without keys, of items of one length, now and then."""
    count = draw(st.integers(1, 6))
    values = draw(st.lists(items, min_size=count, max_size=count) | st.just([b"same"] * count))
    keys = draw(st.none() | st.lists(items, min_size=count, max_size=count))
    times = draw(st.lists(st.integers(0, 1 << 41), min_size=count, max_size=count))
    gap = draw(st.sampled_from([1, 3, 3, 300]))
    return encode_batch(
        values,
        keys=keys,
        timestamps_ms=times,
        base_offset=draw(st.sampled_from([0, 1 << 33, (1 << 63) - 10])),
        offset_deltas=None if gap == 1 or count == 1 else [gap * row for row in range(count)],
    )


@st.composite
def damaged_batches(draw: st.DrawFn) -> bytes:
    """Bytes and numbers overwritten, exchanged, cut out or put in between, under a CRC that is right."""
    batch = draw(sealed_batches())
    body = bytearray(batch[HEADER_BYTES:])
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        near = st.integers(min(PREFIX_BYTES, len(body) - 1), min(len(body) - 1, 20))
        place = draw(near | near | st.integers(0, len(body) - 1))
        match draw(st.sampled_from(["byte", "swap", "number", "cut", "insert"])):
            case "byte":
                body[place] = draw(telling)
            case "swap":
                body[place : place + 2] = body[place : place + 2][::-1]
            case "number":
                body[place : place + 8] = draw(numbers).to_bytes(8, "little")
            case "cut":
                del body[place : place + draw(st.sampled_from([1, 2, 8]))]
            case "insert":
                body[place:place] = draw(st.binary(min_size=1, max_size=8))
        if len(body) <= PREFIX_BYTES:
            break
    body[1:PREFIX_BYTES] = max(len(body) - PREFIX_BYTES, 0).to_bytes(4, "little")
    header = read_header(batch)
    return seal_batch(
        header._replace(record_count=max(1, header.record_count + draw(st.sampled_from([0, 0, 0, 0, 1, -1])))),
        bytes(body),
    )


def rows_of(sealed: bytes) -> Rows | None:
    """What the decoder into lists makes of it; None where it refuses it."""
    batch = read_batch(sealed, max_decompressed_bytes=MAX_BYTES)
    try:
        keys, values = batch.keys(), batch.values()
    except CorruptBatch:
        return None
    return list(zip(batch.offsets(), batch.timestamps_ms(), keys, values, strict=True))


@given(sealed=damaged_batches())
@settings(max_examples=80, deadline=None)
def test_damage_under_a_right_crc_is_refused_or_read_alike_as_arrays_and_as_lists(sealed: bytes) -> None:
    expected = rows_of(sealed)
    batch = read_batch(sealed, max_decompressed_bytes=MAX_BYTES, column_type=ArrayColumn)
    try:
        found = columns_to_arrow(batch, topic="t", partition=0, columns=COLUMNS)
    except CorruptBatch:
        fits = expected is not None and batch.next_offset <= (1 << 63) - 1
        assert not fits, "arrays are refused, lists are not"
        return
    except InvalidTimestamp:
        assert expected is not None
        assert any(at_ms > ((1 << 63) - 1) // 1000 for _, at_ms, _, _ in expected)
        return
    assert expected is not None, "lists are refused, arrays are not"
    found.validate(full=True)
    arrays = (found["offset"], found["timestamp"].cast(pa.int64()), found["key"], found["value"])
    offsets, times_us, keys, values = (array.to_pylist() for array in arrays)
    assert list(zip(offsets, (time // 1000 for time in times_us), keys, values, strict=True)) == expected
