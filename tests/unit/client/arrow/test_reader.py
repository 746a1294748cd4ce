"""Arrow arrays made from batches equal those that pyarrow makes from Python lists of the same records."""

import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmlog.arrow import columns as arrow_columns
from warmlog.arrow import reader as arrow
from warmlog.arrow.reader import COLUMN_TYPES, ArrowMerger, arrow_schema, columns_to_arrow
from warmlog_protocol.batch import (
    IntColumn,
    RecordBatch,
    encode_batch,
    encode_end_txn_marker,
    read_batch,
    stamp_append_time,
    to_rows,
)
from warmlog_protocol.batch.control import ControlType, EndTxnMarker
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
@settings(max_examples=150, deadline=None)
def test_every_column_equals_what_pyarrow_makes_of_the_same_records(
    records: list[Record], codec: Codec, as_rows: bool
) -> None:
    batch = batch_of(records, codec=codec, as_rows=as_rows)
    found = columns_to_arrow(batch, topic=TOPIC, partition=PARTITION, columns=ALL_COLUMNS)
    assert_same(found, plain(records))


@given(records=record_lists(), as_rows=st.booleans(), data=st.data())
@settings(max_examples=100, deadline=None)
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
@settings(max_examples=100, deadline=None)
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


def test_a_body_damaged_under_a_right_crc_is_a_corrupt_batch() -> None:
    sealed = bytearray(encode_batch([b"abc", b"de"], timestamps_ms=0))
    sealed[61] = 0xFF  # the bits that say which columns there are
    with pytest.raises(CorruptBatch):
        columns_to_arrow(read_batch(sealed, verify_crc=False), topic=TOPIC, partition=PARTITION)


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
