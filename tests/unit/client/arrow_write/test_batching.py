"""Rows of Arrow columns find their partitions and batches as a model has it, and become the bytes of `encode_batch`."""

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.arrow_write import batching as arrow_batching
from warmlog.arrow_write.batching import BatchOfRows, TopicBatches
from warmlog.arrow_write.encoding import LEAST_PIECE_BYTES, encode_arrow
from warmlog.arrow_write.key_hash import LONGEST_BYTES, crc32_of_keys
from warmlog.arrow_write.rows import ArrowRows, BytesColumn, PreparedRows, RowSpan
from warmlog.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge, UnknownTopicOrPartition
from warmlog.producer.record_input import (
    BATCH_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    content_bytes,
    partition_of_key,
)
from warmlog_protocol.batch import RecordBatch, encode_batch, read_batch
from warmlog_protocol.codec.compression import Codec

Row = tuple[bytes | None, bytes, int | None]

keys = st.one_of(st.none(), st.just(b""), st.binary(min_size=1, max_size=3))
partitions_chosen = st.one_of(st.none(), st.integers(0, 2))
rows = st.tuples(keys, st.binary(max_size=40), partitions_chosen)


def batches_for(partitions: int, *, limit_bytes: int = 400, max_message_bytes: int = 1000) -> TopicBatches:
    return TopicBatches(
        "t", partitions, limit_bytes=limit_bytes, max_message_bytes=max_message_bytes, first_sticky=partitions + 1
    )


def arrow_of(given_rows: list[Row]) -> tuple[ArrowRows, pa.Array]:
    keys, values, chosen = zip(*given_rows, strict=True)
    return ArrowRows(pa.array(values, pa.binary()), pa.array(keys, pa.binary())), pa.array(chosen, pa.int32())


def content(batch: BatchOfRows) -> list[tuple[bytes | None, bytes | None]]:
    found = []
    for span in batch.spans:
        keys = [None] * span.count if span.rows.keys is None else items_of(span.rows.keys, span)
        found += list(zip(keys, items_of(span.rows.values, span), strict=True))
    return found


def items_of(column: BytesColumn, span: RowSpan) -> list[bytes | None]:
    return [
        column.data(index, index + 1).tobytes() if column.lengths[index] else None
        for index in range(span.start, span.stop)
    ]


def size_of(records: Iterable[tuple[bytes | None, bytes | None]]) -> int:
    return BATCH_OVERHEAD_BYTES + sum(
        RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"") for key, value in records
    )


@given(given_batches=st.lists(st.lists(rows, min_size=1, max_size=30), max_size=4), partitions=st.integers(3, 5))
def test_rows_go_where_the_producer_puts_them_in_batches(given_batches: list[list[Row]], partitions: int) -> None:
    batching = batches_for(partitions)
    made: list[BatchOfRows] = []
    for given_rows in given_batches:
        made += batching.add(*arrow_of(given_rows))
    made += batching.flush()
    assert list(batching.flush()) == []
    every = [(key, value, chosen) for given_rows in given_batches for key, value, chosen in given_rows]
    assert sorted((key or b"", value) for batch in made for key, value in content(batch)) == sorted(
        (key or b"", value) for key, value, _ in every
    )
    for batch in made:
        assert batch.size_bytes == size_of(content(batch)) <= 400
    for partition in range(partitions):
        found = [record for batch in made if batch.partition == partition for record in content(batch)]
        keyed = [
            (key, value)
            for key, value, chosen in every
            if (chosen if chosen is not None else partition_of_key(key, partitions) if key else -1) == partition
        ]
        rest = iter(found)
        assert all(record in rest for record in keyed), "a subsequence of what the partition got"


@given(
    given_batches=st.lists(st.lists(st.tuples(keys, partitions_chosen), max_size=30), max_size=4),
    partitions=st.integers(1, 4),
)
def test_a_partitions_rows_keep_their_order_whatever_chose_it(
    given_batches: list[list[tuple[bytes | None, int | None]]], partitions: int
) -> None:
    batching = batches_for(partitions)
    made: list[BatchOfRows] = []
    count = 0
    for given_rows in filter(None, given_batches):
        numbered = [
            (key, b"%0*d" % (number % 50, number), None if chosen is None else chosen % partitions)
            for number, (key, chosen) in enumerate(given_rows, count)
        ]
        made += batching.add(*arrow_of(numbered))
        count += len(given_rows)
    made += batching.flush()
    found = [
        [int(value or b"") for batch in made if batch.partition == partition for _, value in content(batch)]
        for partition in range(partitions)
    ]
    assert found == [sorted(own) for own in found]
    assert sorted(number for own in found for number in own) == list(range(count))


def test_rows_that_stick_among_others_go_to_one_partition_after_another_too() -> None:
    batching = batches_for(4)
    made: list[BatchOfRows] = []
    for _ in range(5):
        made += batching.add(
            *arrow_of([(None, b"%040d" % number, 3 if number % 4 == 0 else None) for number in range(40)])
        )
    made += batching.flush()
    found = Counter(batch.partition for batch in made for key, value in content(batch) if int(value or b"") % 4)
    assert sum(found.values()) == 150
    assert min(found[partition] for partition in range(4)) > 25


def test_rows_without_a_key_fill_one_batch_after_another_each_in_the_next_partition() -> None:
    values = [b"%040d" % number for number in range(21)]
    made = list(batches_for(3).add(ArrowRows(pa.array(values))))
    per_batch = (400 - BATCH_OVERHEAD_BYTES) // (40 + RECORD_OVERHEAD_BYTES)
    assert [len(content(batch)) for batch in made] == [per_batch] * (20 // per_batch)
    assert [batch.partition for batch in made] == [(1 + number) % 3 for number in range(len(made))]
    assert [value for batch in made for _, value in content(batch)] == values[: per_batch * len(made)]


def test_a_record_larger_than_the_limit_has_a_batch_for_itself_and_one_larger_than_any_is_refused() -> None:
    batching = batches_for(1)
    values = [b"a" * 10, b"b" * 500, b"c" * 10]
    made = [*batching.add(ArrowRows(pa.array(values))), *batching.flush()]
    assert [content(batch) for batch in made] == [[(None, value)] for value in values]
    with pytest.raises(MessageTooLarge, match=r"a record for topic t: 1141 bytes .* max.message.bytes=1000"):
        list(batching.add(ArrowRows(pa.array([b"a" * 1000]))))


@pytest.mark.parametrize("partition", [-1, 3])
def test_a_partition_that_does_not_exist_is_refused(partition: int) -> None:
    with pytest.raises(UnknownTopicOrPartition, match=f"topic t has partitions 0 to 2, not {partition}"):
        list(batches_for(3).add(ArrowRows(pa.array([b""])), pa.array([partition], pa.int32())))


def test_rows_do_not_wait_without_end_for_a_batch_to_fill_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_batching, "HOLD_BYTES", 1000)
    batching = batches_for(2, limit_bytes=600)
    rare = ArrowRows(pa.array([b"rare"]))
    assert list(batching.add(rare, pa.array([1], pa.int32()))) == []
    made: list[BatchOfRows] = []
    for _ in range(5):
        made += batching.add(ArrowRows(pa.array([b"often" * 40])), pa.array([0], pa.int32()))
    assert (None, b"rare") in [record for batch in made for record in content(batch)]


short_keys = st.lists(st.binary(max_size=12))
alike_keys = st.integers(0, LONGEST_BYTES + 2).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size)))
long_keys = st.lists(
    st.one_of(st.binary(max_size=3), st.binary(min_size=LONGEST_BYTES - 1, max_size=LONGEST_BYTES + 9))
)


@given(keys=st.one_of(short_keys, alike_keys, long_keys), before=st.binary(max_size=5), is_wide=st.booleans())
def test_every_key_has_the_crc_that_zlib_computes(keys: list[bytes], before: bytes, is_wide: bool) -> None:
    ends = accumulate(map(len, keys), initial=len(before))
    offsets = np.array(list(ends), np.int64 if is_wide else np.int32)
    content = np.frombuffer(before + b"".join(keys) + b"after", np.uint8)
    assert crc32_of_keys(offsets, content).tolist() == [crc32(key) for key in keys]


NOW_MS = 1_700_000_000_123
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIMES_TYPE = pa.timestamp("us", tz="UTC")


class Given(NamedTuple):
    key: bytes | None
    value: bytes | None
    time_us: int | None
    headers: list[tuple[str, bytes | None]] | None


optional_bytes = st.one_of(st.none(), st.just(b""), st.binary(max_size=20), st.binary(min_size=250, max_size=270))
header_lists = st.lists(st.tuples(st.text(max_size=3), st.one_of(st.none(), st.binary(max_size=3))), max_size=2)
records = st.builds(
    Given,
    key=optional_bytes,
    value=optional_bytes,
    time_us=st.one_of(st.none(), st.integers(0, 2**50), st.just(5_000)),
    headers=st.one_of(st.none(), header_lists),
)


def binary(items: list[bytes | None], *, is_large: bool, has_garbage: bool) -> pa.Array:
    """The items as Arrow has them, with bytes behind the nulls when asked for."""
    kind = pa.large_binary() if is_large else pa.binary()
    if not has_garbage:
        return pa.array(items, kind)
    filled = pa.array([b"garbage" if item is None else item for item in items], kind)
    validity = pa.array([item is not None for item in items]).buffers()[1]
    return pa.Array.from_buffers(kind, len(items), [validity, *filled.buffers()[1:]])


def rows_of(given: list[Given], *, is_large: bool = False, has_garbage: bool = False) -> ArrowRows:
    """As Arrow columns, cut out of longer ones, so that their offsets do not begin at 0."""
    some = [Given(b"k", b"before", 1, [("a", b"b")]), *given, Given(None, b"after", None, None)]
    headers = [
        None if each.headers is None else [{"key": name, "value": value} for name, value in each.headers]
        for each in some
    ]
    columns = (
        binary([each.value for each in some], is_large=is_large, has_garbage=has_garbage),
        binary([each.key for each in some], is_large=is_large, has_garbage=has_garbage),
        pa.array(headers, HEADERS_TYPE),
        pa.array([each.time_us for each in some], TIMES_TYPE),
    )
    return ArrowRows(*(column.slice(1, len(given)) for column in columns))


def whole(rows: ArrowRows) -> RowSpan:
    return PreparedRows(rows).span()


def batch_of(*all_rows: ArrowRows) -> RecordBatch:
    return read_batch(b"".join(encode_arrow([whole(rows) for rows in all_rows], now_ms=NOW_MS)))


def expected(given: list[Given], **fields: Any) -> bytes:
    return encode_batch(
        [each.value for each in given],
        keys=[each.key for each in given],
        timestamps_ms=[NOW_MS if each.time_us is None else each.time_us // 1000 for each in given],
        headers=[each.headers for each in given],
        **fields,
    )


@given(
    given_records=st.lists(records, min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 11), max_size=2),
    is_large=st.booleans(),
    has_garbage=st.booleans(),
    codec=st.sampled_from(Codec),
)
def test_a_batch_of_arrow_columns_has_the_bytes_of_one_made_from_lists(
    given_records: list[Given], cuts: list[int], is_large: bool, has_garbage: bool, codec: Codec
) -> None:
    rows = rows_of(given_records, is_large=is_large, has_garbage=has_garbage)
    borders = sorted({0, *(cut for cut in cuts if cut < len(rows)), len(rows)})
    prepared = PreparedRows(rows)
    spans = [prepared.span(start, stop) for start, stop in pairwise(borders)]
    pieces = encode_arrow(spans, now_ms=NOW_MS, codec=codec, producer_id=7, producer_epoch=1, base_sequence=9)
    assert b"".join(pieces) == expected(given_records, codec=codec, producer_id=7, producer_epoch=1, base_sequence=9)


@given(given_records=st.lists(records, min_size=1, max_size=12), has_garbage=st.booleans(), data=st.data())
def test_sizes_bound_records_in_any_order(given_records: list[Given], has_garbage: bool, data: st.DataObject) -> None:
    rows = rows_of(given_records, has_garbage=has_garbage)
    sizes = [content_bytes(each.value, each.key, each.headers) + RECORD_OVERHEAD_BYTES for each in given_records]
    prepared = PreparedRows(rows)
    assert prepared.ends_bytes.tolist() == list(accumulate(sizes, initial=0))
    assert prepared.largest_bytes == max(sizes)
    order = data.draw(st.permutations(range(len(rows))))
    pieces = encode_arrow([whole(rows.take(order))], now_ms=NOW_MS)
    assert b"".join(pieces) == expected([given_records[index] for index in order])


def test_data_is_not_copied_unless_it_comes_in_small_pieces() -> None:
    values = pa.array([bytes((65 + number,)) * 1000 for number in range(20)])
    span = PreparedRows(ArrowRows(values)).span(5, 15)
    _, integers, data = encode_arrow([span], now_ms=NOW_MS)
    start = values.buffers()[2].address
    assert data.__array_interface__["data"][0] == start + 5_000
    assert (len(data), len(integers)) == (10_000, 5 + 9 + 9)
    small = [span.rows.span(number, number + 1) for number in range(5, 15)]
    pieces = encode_arrow(small, now_ms=NOW_MS)
    assert LEAST_PIECE_BYTES > 1000
    assert len(pieces) == 3
    assert b"".join(pieces) == b"".join(encode_arrow([span], now_ms=NOW_MS))


def test_values_alone_need_no_other_column_and_text_is_its_utf8() -> None:
    columns = batch_of(ArrowRows(pa.array(["a", "größe", None]))).columns
    assert (columns.key_lengths, columns.header_lengths, columns.base_timestamp_ms) == (None, None, NOW_MS)
    assert columns.value_list() == [b"a", "größe".encode(), None]
    nulls = batch_of(ArrowRows(pa.nulls(2), keys=pa.nulls(2, pa.string()))).columns
    assert (nulls.value_list(), nulls.key_lengths) == ([None, None], None)


def test_parts_with_and_without_a_column_go_together() -> None:
    keyed = ArrowRows(pa.array([b"a"]), keys=pa.array([b"k"]), timestamps=pa.array([7_999], TIMES_TYPE))
    columns = batch_of(ArrowRows(pa.array([b"b"])), keyed).columns
    assert (columns.key_list(), columns.value_list()) == ([None, b"k"], [b"b", b"a"])
    assert columns.timestamp_list() == [NOW_MS, 7]


def test_which_keys_hold_nothing() -> None:
    assert BytesColumn.of(pa.array([b"", None, b"a"])).lengths.tolist() == [1, 0, 2]


def test_what_no_record_may_have_is_refused_in_words() -> None:
    with pytest.raises(InvalidTimestamp, match="a timestamp of -1 ms is before 1970"):
        batch_of(ArrowRows(pa.array([b""]), timestamps=pa.array([-1], TIMES_TYPE)))
    nameless = pa.array([[{"key": None, "value": b"v"}]], HEADERS_TYPE)
    with pytest.raises(InvalidRecord, match="a header without a name"):
        batch_of(ArrowRows(pa.array([b""]), headers=nameless))
