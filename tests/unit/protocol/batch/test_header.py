"""The batch header: its bytes, what is refused, and what the broker changes in place."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unit.protocol.batch.golden_batches import A_ONE_RECORD, C_THREE_RECORDS, D_COMMIT, E_EMPTIED, KAFKA
from unit.protocol.batch_strategies import MAX_I64, Records, records
from warmlog_protocol.batch import (
    CRC_START,
    HEADER_BYTES,
    NO_SEQUENCE,
    BatchHeader,
    check_crc,
    pack_header,
    placement_prefix,
    read_batch,
    read_header,
    restamp_producer,
    seal_batch,
    stamp_append_time,
    to_columns,
    to_rows,
)
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.errors import CorruptBatch, MessageTooLarge

every_golden_batch = pytest.mark.parametrize("golden", KAFKA.values(), ids=KAFKA.keys())


def replaced(batch: bytes, position: int, layout: str, value: int) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    return bytes(changed)


def test_fields_of_a_batch_of_kafka() -> None:
    assert read_header(C_THREE_RECORDS) == BatchHeader(
        base_offset=5,
        batch_length=85,
        partition_leader_epoch=3,
        magic=2,
        crc=0x4BF968F7,
        attributes=0,
        last_offset_delta=2,
        base_timestamp_ms=1000,
        max_timestamp_ms=1005,
        producer_id=7,
        producer_epoch=1,
        base_sequence=10,
        record_count=3,
    )


@every_golden_batch
def test_a_header_is_packed_as_it_was_read(golden: bytes) -> None:
    header = read_header(golden)
    check_crc(header, golden)
    assert header.size_bytes == len(golden)
    assert pack_header(header) == golden[:HEADER_BYTES]
    assert seal_batch(header, golden[HEADER_BYTES:]) == golden


def test_what_the_fields_say() -> None:
    header = read_header(E_EMPTIED)
    assert (header.last_offset, header.next_offset, header.last_sequence) == (22, 23, 17)
    assert header.has_producer
    for is_so in (header.is_transactional, header.is_control, header.is_log_append_time, header.has_delete_horizon):
        assert not is_so
    control = read_header(D_COMMIT)
    assert control.is_transactional
    assert control.is_control
    assert control.last_sequence == NO_SEQUENCE
    assert not read_header(A_ONE_RECORD).has_producer


def test_the_last_sequence_is_counted_by_offsets_of_an_emptied_batch() -> None:
    header = BatchHeader(15, 49, 15, 2, 0, 0, 22, -1, 0, 23423, 145, 983, 0)
    assert header.last_sequence == 1005


def test_sequences_go_on_with_0_after_the_largest() -> None:
    header = read_header(C_THREE_RECORDS)
    assert header._replace(base_sequence=2**31 - 1).last_sequence == 1
    assert header._replace(base_sequence=2**31 - 3).last_sequence == 2**31 - 1


@pytest.mark.parametrize(("attributes", "codec"), list(enumerate(Codec)))
def test_codecs_are_bits_0_to_2(attributes: int, codec: Codec) -> None:
    assert read_header(A_ONE_RECORD)._replace(attributes=attributes | 0x78).codec is codec


@pytest.mark.parametrize("number", [5, 6, 7])
def test_a_codec_that_does_not_exist_is_a_corrupt_batch(number: int) -> None:
    with pytest.raises(CorruptBatch, match=f"codec {number}"):
        _ = read_header(A_ONE_RECORD)._replace(attributes=number).codec


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES + 5), st.sampled_from([2, 3]))
def test_any_61_bytes_are_a_header_or_a_corrupt_batch(data: bytes, magic: int) -> None:
    data = data[:16] + bytes((magic,)) + data[17:]
    try:
        header = read_header(data)
    except CorruptBatch:
        return
    assert header.size_bytes >= HEADER_BYTES
    assert pack_header(header) == data[:HEADER_BYTES]


@pytest.mark.parametrize(
    ("position", "layout", "value", "message"),
    [
        (8, ">i", 10, "length 10 is below 49"),
        (8, ">i", 48, "length 48 is below 49"),
        (8, ">i", -1, "length -1 is below 49"),
        (16, ">b", 1, "magic 1"),
        (16, ">b", 4, "magic 4"),
        (0, ">q", -1, "base offset -1"),
        (23, ">i", -1, "last offset delta -1"),
        (57, ">i", -1, "records -1"),
    ],
)
def test_what_cannot_be_a_header_is_a_corrupt_batch(position: int, layout: str, value: int, message: str) -> None:
    with pytest.raises(CorruptBatch, match=message):
        read_header(replaced(A_ONE_RECORD, position, layout, value))


@pytest.mark.parametrize("size", [0, 1, 60])
def test_fewer_than_61_bytes_are_a_corrupt_batch(size: int) -> None:
    with pytest.raises(CorruptBatch, match=f"takes 61 bytes, {size} left at 72"):
        read_header(A_ONE_RECORD + A_ONE_RECORD[:size], 72)


def test_a_header_is_read_from_the_middle_of_any_buffer() -> None:
    for kind in (bytes, bytearray, memoryview):
        buffer = kind(b"..." + C_THREE_RECORDS)
        header = read_header(buffer, 3)
        assert header == read_header(C_THREE_RECORDS)
        check_crc(header, buffer, 3)


@pytest.mark.parametrize("position", range(CRC_START, len(A_ONE_RECORD)))
def test_a_changed_byte_under_the_crc_is_found(position: int) -> None:
    damaged = bytearray(A_ONE_RECORD)
    damaged[position] ^= 1
    with pytest.raises(CorruptBatch, match=r"batch at offset 0: CRC ce68b28d expected, [0-9a-f]{8} found"):
        check_crc(read_header(A_ONE_RECORD), damaged)


def test_a_batch_that_is_cut_off_fails_its_crc_check() -> None:
    with pytest.raises(CorruptBatch, match="72 bytes expected, 71 found"):
        check_crc(read_header(A_ONE_RECORD), A_ONE_RECORD[:-1])


@given(records(), st.sampled_from(Codec), st.booleans())
@example(Records([None], [0]), Codec.NONE, True)
@example(Records([None], [0]), Codec.SNAPPY, True)
def test_a_batch_with_the_magic_of_the_other_format_is_corrupt(made: Records, codec: Codec, is_rows: bool) -> None:
    batch = made.encode(codec)
    if is_rows:
        batch = to_rows(read_batch(batch))
    check_crc(read_header(batch), batch)
    changed = replaced(batch, 16, "B", batch[16] ^ 1)
    with pytest.raises(CorruptBatch, match="magic"):
        check_crc(read_header(changed), changed)


@given(st.integers(0, MAX_I64), st.integers(-1, 2**31 - 1))
def test_placing_a_batch_leaves_its_crc_valid(base_offset: int, leader_epoch: int) -> None:
    prefix = placement_prefix(read_header(C_THREE_RECORDS), base_offset, leader_epoch)
    placed = prefix + C_THREE_RECORDS[CRC_START:]
    header = read_header(placed)
    check_crc(header, placed)
    assert header == read_header(C_THREE_RECORDS)._replace(base_offset=base_offset, partition_leader_epoch=leader_epoch)


@given(records(), st.integers(0, MAX_I64))
def test_the_time_of_appending_is_every_records_time(made: Records, now_ms: int) -> None:
    stamped = read_batch(stamp_append_time(made.encode(), now_ms))
    assert stamped.header.is_log_append_time
    assert stamped.header.base_timestamp_ms == stamped.header.max_timestamp_ms == now_ms
    assert stamped.timestamps_ms() == [now_ms] * len(made.values)
    assert stamped.values() == made.values


def test_the_time_of_appending_leaves_the_base_timestamp_of_rows_as_kafka_does() -> None:
    stamped = read_batch(stamp_append_time(C_THREE_RECORDS, 15))
    assert stamped.header.base_timestamp_ms == 1000
    assert stamped.header.max_timestamp_ms == 15
    assert stamped.timestamps_ms() == [15, 15, 15]


@pytest.mark.parametrize("batch", [C_THREE_RECORDS, to_columns(read_batch(C_THREE_RECORDS))], ids=["rows", "columns"])
def test_a_producer_can_send_a_batch_again_under_another_id(batch: bytes) -> None:
    restamped = restamp_producer(batch, 2**40, 3, 2**31 - 1)
    header = read_header(restamped)
    check_crc(header, restamped)
    assert header._replace(crc=0) == read_header(batch)._replace(
        producer_id=2**40, producer_epoch=3, base_sequence=2**31 - 1, crc=0
    )
    assert restamped[HEADER_BYTES:] == batch[HEADER_BYTES:]
    assert restamp_producer(restamped, 7, 1, 10) == batch


def test_a_batch_whose_length_cannot_be_written_is_too_large() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(MessageTooLarge, match="2147483647 are possible"):
        seal_batch(read_header(A_ONE_RECORD), Huge())
