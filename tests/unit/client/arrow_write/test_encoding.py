"""Arrow columns become the very bytes that `encode_batch` makes of the same records as lists."""

from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.arrow_write.encoding import LEAST_PIECE_BYTES, encode_arrow
from warmlog.arrow_write.rows import ArrowRows, BytesColumn, PreparedRows, RowSpan
from warmlog.errors import InvalidRecord, InvalidTimestamp
from warmlog.producer.intake.record_input import RECORD_OVERHEAD_BYTES, content_bytes
from warmlog_protocol.batch import RecordBatch, encode_batch, read_batch
from warmlog_protocol.codec.compression import Codec

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
def test_sizes_bound_what_records_take_and_rows_can_be_taken_in_any_order(
    given_records: list[Given], has_garbage: bool, data: st.DataObject
) -> None:
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
    assert BytesColumn.of(pa.array([b"", None, b"a"])).is_empty_or_null.tolist() == [True, True, False]


def test_what_no_record_may_have_is_refused_in_words() -> None:
    with pytest.raises(InvalidTimestamp, match="a timestamp of -1 ms is before 1970"):
        batch_of(ArrowRows(pa.array([b""]), timestamps=pa.array([-1], TIMES_TYPE)))
    nameless = pa.array([[{"key": None, "value": b"v"}]], HEADERS_TYPE)
    with pytest.raises(InvalidRecord, match="a header without a name"):
        batch_of(ArrowRows(pa.array([b""]), headers=nameless))
