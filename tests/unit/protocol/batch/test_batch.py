"""Whole batches: reading them from buffers, translation between rows and columns, control and emptied batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.protocol.batch.golden_batches import A_ONE_RECORD, C_THREE_RECORDS, D_ABORT, D_COMMIT, E_EMPTIED
from unit.protocol.batch_strategies import CODECS, Records, lists_of, records
from warmlog_protocol.batch import (
    HEADER_BYTES,
    BatchHeader,
    ControlType,
    EndTxnMarker,
    RecordBatch,
    check_crc,
    columns_of,
    empty_batch,
    encode_batch,
    encode_end_txn_marker,
    iter_batches,
    read_batch,
    read_header,
    seal_batch,
    seal_columns,
    seal_rows,
    stamp_append_time,
    to_columns,
    to_rows,
)
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.errors import CorruptBatch

COLUMNS = encode_batch([b"warm", b"log"], keys=[b"k", None], timestamps_ms=[5, 3], base_offset=100)


def without_size(header: BatchHeader) -> BatchHeader:
    """The header without what depends on how the body is compressed."""
    return header._replace(batch_length=0, crc=0)


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_batch_is_read_from_the_middle_of_any_buffer(kind: type) -> None:
    batch = read_batch(kind(b"..." + COLUMNS + b"..."), 3)
    assert (batch.base_offset, batch.last_offset, batch.next_offset, batch.record_count) == (100, 101, 102, 2)
    assert batch.size_bytes == len(COLUMNS)
    assert batch.buffer == COLUMNS
    assert lists_of(batch) == ([100, 101], [5, 3], [b"k", None], [b"warm", b"log"], [(), ()])
    assert repr(batch) == "RecordBatch(100..101, 2 records)"


@pytest.mark.parametrize("size", [HEADER_BYTES, len(COLUMNS) - 1])
@pytest.mark.parametrize("verify_crc", [True, False])
def test_a_batch_that_runs_past_the_buffer_is_a_corrupt_batch(size: int, verify_crc: bool) -> None:
    with pytest.raises(CorruptBatch, match=f"batch at offset 100: {len(COLUMNS)} bytes expected, {size} found"):
        read_batch(COLUMNS[:size], verify_crc=verify_crc)


def test_the_crc_is_checked_unless_it_was_before() -> None:
    damaged = COLUMNS[:-1] + b"G"
    with pytest.raises(CorruptBatch, match="batch at offset 100: CRC"):
        read_batch(damaged)
    assert read_batch(damaged, verify_crc=False).values() == [b"warm", b"loG"]


def test_a_malformed_body_names_its_offsets() -> None:
    malformed = seal_batch(read_header(COLUMNS), COLUMNS[HEADER_BYTES:] + b"more")
    batch = read_batch(malformed)
    with pytest.raises(CorruptBatch, match="batch at offsets 100 to 101: body: 17 bytes expected, 21 found"):
        batch.values()
    assert batch.next_offset == 102


def test_the_limit_on_decompressed_bytes_is_passed_on() -> None:
    packed = encode_batch([bytes(10_000)], timestamps_ms=0, codec=Codec.ZSTD)
    assert read_batch(packed).values() == [bytes(10_000)]
    with pytest.raises(CorruptBatch, match="over the limit of 1000"):
        read_batch(packed, max_decompressed_bytes=1000).values()


def test_batches_follow_one_another() -> None:
    buffer = COLUMNS + C_THREE_RECORDS + E_EMPTIED + D_COMMIT
    assert [batch.base_offset for batch in iter_batches(buffer)] == [100, 5, 15, 106]
    assert [batch.base_offset for batch in iter_batches(buffer[len(COLUMNS) :])] == [5, 15, 106]
    assert list(iter_batches(b"")) == []


@pytest.mark.parametrize("size", range(len(A_ONE_RECORD)))
def test_a_batch_that_is_cut_off_at_the_end_is_left_out(size: int) -> None:
    buffer = COLUMNS + A_ONE_RECORD[:size]
    assert [batch.base_offset for batch in iter_batches(buffer)] == [100]


@pytest.mark.parametrize("length", [-1, 0, 48, -(2**31)])
def test_a_length_that_no_batch_has_ends_the_iteration_with_an_error(length: int) -> None:
    damaged = A_ONE_RECORD[:8] + length.to_bytes(4, "big", signed=True) + A_ONE_RECORD[12:]
    batches = iter_batches(COLUMNS + damaged)
    assert next(batches).base_offset == 100
    with pytest.raises(CorruptBatch, match="is below 49"):
        next(batches)


def test_a_reader_can_go_on_after_a_damaged_batch() -> None:
    buffer = COLUMNS[:-1] + b"G" + C_THREE_RECORDS
    with pytest.raises(CorruptBatch):
        next(iter_batches(buffer))
    (batch,) = iter_batches(buffer[read_header(buffer).size_bytes :])
    assert batch.base_offset == 5


def test_columns_are_decoded_once() -> None:
    batch = read_batch(COLUMNS)
    assert batch.columns is batch.columns


# --- translation ----------------------------------------------------------------------------------------------------


def translated_twice(batch: RecordBatch) -> RecordBatch:
    """Columns to rows to columns, or rows to columns to rows."""
    if batch.header.magic == 3:
        return read_batch(to_columns(read_batch(to_rows(batch))))
    return read_batch(to_rows(read_batch(to_columns(batch))))


@given(records(), CODECS, st.sampled_from([3, 2]), st.none() | st.integers(0, 2**63 - 1), st.integers(0, 50))
def test_translation_loses_nothing(
    made: Records, codec: Codec, magic: int, delete_horizon_ms: int | None, records_gone: int
) -> None:
    first = read_batch(made.encode(codec))
    first.columns.delete_horizon_ms = delete_horizon_ms
    header = first.header._replace(last_offset_delta=first.header.last_offset_delta + records_gone)
    batch = read_batch((seal_columns if magic == 3 else seal_rows)(header, first.columns))
    assert batch.header.magic == magic

    back = translated_twice(batch)
    assert without_size(back.header) == without_size(batch.header)
    assert lists_of(back) == lists_of(batch) == made.lists()
    assert back.columns.delete_horizon_ms == batch.columns.delete_horizon_ms == delete_horizon_ms
    assert back.buffer == batch.buffer  # the same compressor has the same to do

    other = read_batch(to_rows(batch) if magic == 3 else to_columns(batch))
    assert lists_of(other) == made.lists()
    ours, theirs = batch.header, other.header
    assert theirs.magic == 5 - magic
    assert without_size(theirs) == without_size(ours)._replace(
        magic=theirs.magic, base_timestamp_ms=theirs.base_timestamp_ms
    )


@given(records(), st.integers(0, 2**63 - 1))
def test_translation_keeps_the_time_of_appending(made: Records, now_ms: int) -> None:
    batch = read_batch(stamp_append_time(made.encode(), now_ms))
    rows = read_batch(to_rows(batch))
    assert rows.header.is_log_append_time
    assert rows.timestamps_ms() == batch.timestamps_ms() == [now_ms] * batch.record_count
    back = read_batch(to_columns(rows))
    assert without_size(back.header) == without_size(batch.header)
    assert lists_of(back) == lists_of(batch)


@pytest.mark.parametrize("batch", [E_EMPTIED, D_COMMIT, D_ABORT, C_THREE_RECORDS])
def test_rows_are_translated_to_rows_as_they_are(batch: bytes) -> None:
    assert to_rows(read_batch(batch)) == batch


def test_columns_are_translated_to_columns_as_they_are() -> None:
    assert to_columns(read_batch(COLUMNS)) == COLUMNS


def test_an_emptied_batch_is_translated_by_its_magic_alone() -> None:
    columns = to_columns(read_batch(E_EMPTIED))
    assert columns == E_EMPTIED[:16] + b"\x03" + E_EMPTIED[17:]
    assert to_rows(read_batch(columns)) == E_EMPTIED


# --- control and emptied batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("golden", "control_type"), [(D_COMMIT, ControlType.COMMIT), (D_ABORT, ControlType.ABORT)])
def test_the_end_of_a_transaction_is_what_kafka_writes(golden: bytes, control_type: ControlType) -> None:
    marker = EndTxnMarker(control_type, 9)
    made = encode_end_txn_marker(
        marker, timestamp_ms=2000, producer_id=7, producer_epoch=1, base_offset=106, leader_epoch=3
    )
    assert made == golden
    batch = read_batch(golden)
    assert batch.control_type is control_type
    assert batch.end_txn_marker() == marker
    assert to_columns(batch) == golden


def control_batch(key: bytes | None, value: bytes | None) -> RecordBatch:
    return read_batch(seal_rows(read_header(D_COMMIT), columns_of([value], keys=[key], timestamps_ms=0)))


@pytest.mark.parametrize(
    ("key", "control_type"),
    [
        (b"\x00\x00\x00\x02", ControlType.LEADER_CHANGE),
        (b"\x00\x00\x00\x06", ControlType.KRAFT_VOTERS),
        (b"\x00\x00\x00\x63", ControlType.UNKNOWN),
        (b"\x00\x00\xff\xff", ControlType.UNKNOWN),
        (b"\x00\x01\x00\x01more", ControlType.COMMIT),
    ],
)
def test_control_types(key: bytes, control_type: ControlType) -> None:
    assert control_batch(key, b"").control_type is control_type


@pytest.mark.parametrize("key", [None, b"", b"\x00\x00\x00", b"\xff\xff\x00\x01"])
def test_a_control_record_without_a_type_is_a_corrupt_batch(key: bytes | None) -> None:
    with pytest.raises(CorruptBatch, match="control record"):
        _ = control_batch(key, b"").control_type


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\x00\x00\x00\x01", None),
        (b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00"),
        (b"\x00\x00\x00\x01", b"\xff\xff\x00\x00\x00\x00"),
        (b"\x00\x00\x00\x02", b"\x00\x00\x00\x00\x00\x00"),
    ],
)
def test_a_malformed_end_of_a_transaction_is_a_corrupt_batch(key: bytes, value: bytes | None) -> None:
    with pytest.raises(CorruptBatch, match="transaction"):
        control_batch(key, value).end_txn_marker()


def test_a_batch_of_data_has_no_control_type() -> None:
    assert read_batch(COLUMNS).control_type is None
    with pytest.raises(CorruptBatch, match="is no control batch"):
        read_batch(COLUMNS).end_txn_marker()


@pytest.mark.parametrize("batch", [COLUMNS, C_THREE_RECORDS, stamp_append_time(COLUMNS, 77)])
def test_an_emptied_batch_keeps_offsets_producer_and_max_timestamp(batch: bytes) -> None:
    header = read_header(batch)
    emptied = empty_batch(header)
    assert len(emptied) == HEADER_BYTES
    found = read_header(emptied)
    check_crc(found, emptied)
    assert without_size(found) == without_size(header)._replace(base_timestamp_ms=-1, record_count=0)
    assert lists_of(read_batch(emptied)) == ([], [], [], [], [])


def test_the_emptied_batch_of_kafka_is_what_empty_batch_makes() -> None:
    full = read_header(E_EMPTIED)._replace(record_count=3, base_timestamp_ms=900, attributes=int(Codec.GZIP) | 64)
    assert empty_batch(full) == E_EMPTIED
    assert read_batch(E_EMPTIED).control_type is None
