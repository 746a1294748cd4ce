"""Batches with records taken out, and batches packed by another codec: everything else stays as it was."""

from itertools import compress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.protocol.batch.golden_batches import C_THREE_RECORDS, D_COMMIT, E_EMPTIED
from unit.protocol.batch_strategies import CODECS, Records, lists_of, records
from warmlog_protocol.batch import (
    BatchHeader,
    RecordBatch,
    encode_batch,
    filter_batch,
    placement_prefix,
    read_batch,
    read_header,
    recompress_batch,
    stamp_append_time,
    to_rows,
)
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.errors import CorruptBatch

HORIZONS = st.none() | st.integers(0, 2**62)


def make(chosen: Records, codec: Codec, *, rows: bool) -> RecordBatch:
    batch = read_batch(chosen.encode(codec))
    return read_batch(to_rows(batch)) if rows else batch


def constant_part(header: BatchHeader) -> BatchHeader:
    """What no record that goes may change."""
    return header._replace(
        batch_length=0, crc=0, attributes=header.attributes & ~64, base_timestamp_ms=0, max_timestamp_ms=0
    )


# --- filtering ------------------------------------------------------------------------------------------------------


@given(records(), CODECS, st.booleans(), HORIZONS, st.data())
def test_the_records_that_are_kept_are_the_same_in_every_respect(
    chosen: Records, codec: Codec, rows: bool, horizon_ms: int | None, data: st.DataObject
) -> None:
    batch = make(chosen, codec, rows=rows)
    keep = data.draw(st.lists(st.booleans(), min_size=batch.record_count, max_size=batch.record_count))
    filtered = read_batch(filter_batch(batch, keep, delete_horizon_ms=horizon_ms))
    assert lists_of(filtered) == tuple(list(compress(column, keep)) for column in lists_of(batch))
    header, before = filtered.header, batch.header
    assert (header.magic, header.base_offset, header.last_offset) == (
        before.magic,
        before.base_offset,
        before.last_offset,
    )
    if any(keep):
        assert constant_part(header) == constant_part(before)._replace(record_count=sum(keep))
        assert filtered.columns.delete_horizon_ms == horizon_ms
        if not all(keep):
            assert header.max_timestamp_ms == max(filtered.timestamps_ms())
        if not rows:
            assert header.base_timestamp_ms == min(filtered.timestamps_ms())


@given(records(), CODECS, st.booleans(), st.data())
def test_filtering_step_by_step_gives_what_filtering_at_once_gives(
    chosen: Records, codec: Codec, rows: bool, data: st.DataObject
) -> None:
    batch = make(chosen, codec, rows=rows)
    masks = st.lists(st.booleans(), min_size=batch.record_count, max_size=batch.record_count)
    first, second = data.draw(masks), data.draw(masks)
    both = [a and b for a, b in zip(first, second, strict=True)]
    once = read_batch(filter_batch(batch, first))
    twice = read_batch(filter_batch(once, list(compress(second, first)) if any(first) else []))
    assert lists_of(twice) == lists_of(read_batch(filter_batch(batch, both)))
    assert constant_part(twice.header) == constant_part(read_header(filter_batch(batch, both)))


@given(records(), CODECS, st.booleans())
def test_a_batch_that_loses_nothing_is_given_back_byte_for_byte(chosen: Records, codec: Codec, rows: bool) -> None:
    batch = make(chosen, codec, rows=rows)
    assert filter_batch(batch, [True] * batch.record_count) == bytes(batch.buffer)


def test_a_batch_that_loses_everything_is_the_header_that_kafka_leaves() -> None:
    header = read_header(E_EMPTIED)
    sealed = encode_batch(
        [b"v"] * 8, timestamps_ms=[1005] * 8, producer_id=7, producer_epoch=1, base_sequence=10, codec=Codec.ZSTD
    )
    placed = placement_prefix(read_header(sealed), 15, 3) + sealed[21:]
    rows = read_batch(to_rows(read_batch(placed)))
    assert filter_batch(rows, [False] * 8, delete_horizon_ms=5) == E_EMPTIED
    columns = read_header(filter_batch(read_batch(placed), [False] * 8))
    assert columns._replace(magic=2, crc=header.crc) == header


def test_an_emptied_batch_stays_what_it_is() -> None:
    assert filter_batch(read_batch(E_EMPTIED), [], delete_horizon_ms=99) == E_EMPTIED


@pytest.mark.parametrize("rows", [False, True])
def test_a_horizon_is_kept_when_more_records_go_later(rows: bool) -> None:
    batch = encode_batch([None, b"v", b"w"], keys=[b"a", b"b", b"c"], timestamps_ms=[30, 10, 20])
    source = read_batch(to_rows(read_batch(batch)) if rows else batch)
    first = read_batch(filter_batch(source, [1, 0, 1], delete_horizon_ms=777))
    assert first.header.has_delete_horizon
    assert first.header.base_timestamp_ms == (777 if rows else 20)
    second = read_batch(filter_batch(first, [1, 0]))
    assert second.columns.delete_horizon_ms == 777
    assert lists_of(second) == ([0], [30], [b"a"], [None], [()])


def test_a_marker_gets_a_horizon_and_keeps_what_it_says() -> None:
    marker = read_batch(D_COMMIT)
    found = read_batch(filter_batch(marker, [True], delete_horizon_ms=9000))
    assert found.columns.delete_horizon_ms == 9000
    assert found.end_txn_marker() == marker.end_txn_marker()
    assert found.timestamps_ms() == marker.timestamps_ms()


@pytest.mark.parametrize("rows", [False, True])
def test_the_time_of_appending_stays_every_records_time(rows: bool) -> None:
    batch = encode_batch([b"a", b"b"], timestamps_ms=[5, 9])
    stamped = stamp_append_time(to_rows(read_batch(batch)) if rows else batch, 500)
    found = read_batch(filter_batch(read_batch(stamped), [False, True], delete_horizon_ms=1000))
    assert (found.timestamps_ms(), found.header.max_timestamp_ms, found.values()) == ([500], 500, [b"b"])


def test_columns_that_say_nothing_any_more_are_left_out() -> None:
    batch = read_batch(encode_batch([b"a", b"b"], keys=[None, b"k"], headers=[[], [("h", b"x")]], timestamps_ms=1))
    columns = read_batch(filter_batch(batch, [True, False])).columns
    assert (columns.key_lengths, columns.header_lengths) == (None, None)


def test_a_mask_of_the_wrong_length_is_a_bug() -> None:
    with pytest.raises(ValueError, match="2 marks for 3 records"):
        filter_batch(read_batch(C_THREE_RECORDS), [True, False])


# --- packing by another codec ---------------------------------------------------------------------------------------


@given(records(), CODECS, CODECS, st.booleans())
def test_another_codec_changes_nothing_but_the_packing(chosen: Records, one: Codec, other: Codec, rows: bool) -> None:
    batch = make(chosen, one, rows=rows)
    repacked = read_batch(recompress_batch(batch, other))
    assert lists_of(repacked) == lists_of(batch)
    assert repacked.header.codec is other
    expected = batch.header._replace(batch_length=0, crc=0, attributes=batch.header.attributes & ~7 | other)
    assert repacked.header._replace(batch_length=0, crc=0) == expected
    assert (one is not other) or bytes(repacked.buffer) == bytes(batch.buffer)


@given(records(), CODECS, CODECS, st.booleans())
def test_a_horizon_survives_another_codec(chosen: Records, one: Codec, other: Codec, rows: bool) -> None:
    batch = make(chosen, one, rows=rows)
    with_horizon = read_batch(filter_batch(batch, [True] * batch.record_count, delete_horizon_ms=4711))
    repacked = read_batch(recompress_batch(with_horizon, other))
    assert repacked.columns.delete_horizon_ms == 4711
    assert lists_of(repacked) == lists_of(batch)


@pytest.mark.parametrize("batch", [D_COMMIT, E_EMPTIED])
def test_markers_and_emptied_batches_are_never_compressed(batch: bytes) -> None:
    assert recompress_batch(read_batch(batch), Codec.ZSTD) == batch


@pytest.mark.parametrize("rows", [False, True])
def test_a_body_that_cannot_be_unpacked_is_a_corrupt_batch(rows: bool) -> None:
    batch = read_batch(encode_batch([b"warm" * 100], timestamps_ms=1, codec=Codec.ZSTD))
    sealed = bytearray(to_rows(batch) if rows else bytes(batch.buffer))
    sealed[-20:] = bytes(20)
    with pytest.raises(CorruptBatch):
        recompress_batch(read_batch(sealed, verify_crc=False), Codec.NONE)
