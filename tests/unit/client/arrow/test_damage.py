"""Bodies damaged under a right CRC: arrays refuse what lists refuse, and have their values elsewhere."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from warmlog.arrow.int_array import ArrayColumn
from warmlog.arrow.reader import columns_to_arrow
from warmlog_protocol.batch import HEADER_BYTES, encode_batch, read_batch, read_header, seal_batch
from warmlog_protocol.errors import CorruptBatch, InvalidTimestamp

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
@settings(max_examples=150, deadline=None)
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
