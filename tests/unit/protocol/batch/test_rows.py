"""Kafka's rows: its own data and golden bytes, everything that is refused, and damage."""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kafka_sample
from unit.protocol.batch.golden_batches import A_ONE_RECORD, B_SMALLEST, C_THREE_RECORDS
from unit.protocol.batch.test_columns import check_readable_or_corrupt
from unit.protocol.batch_strategies import CODECS, DAMAGE, MAX_I64, MIN_I64, Damage, Records, lists_of, records
from warmlog_protocol.batch import (
    HEADER_BYTES,
    BatchHeader,
    RecordBatch,
    columns_of,
    decode_rows,
    encode_batch,
    iter_batches,
    read_batch,
    read_header,
    rows,
    seal_batch,
    seal_rows,
    to_columns,
    to_rows,
)
from warmlog_protocol.batch.rows import BYTES_A_ROW, pack_varint, read_rows, read_varint
from warmlog_protocol.codec.compression import Codec, compress
from warmlog_protocol.errors import CorruptBatch

KAFKA_SAMPLE = kafka_sample.SAMPLE
LOGS = sorted(KAFKA_SAMPLE.glob("*/*.log"))
LIMIT_BYTES = 1_000_000

every_log = pytest.mark.parametrize("log", LOGS, ids=lambda path: f"{path.parent.name}-{int(path.stem)}")


def rows_of(made: Records, codec: Codec = Codec.NONE) -> bytes:
    return to_rows(read_batch(made.encode(codec)))


# --- data of Kafka itself -------------------------------------------------------------------------------------------


def dump_of(log: Path) -> str:
    """What Kafka's DumpLogSegments printed for `log`: its batches, for one of the logs its records as well."""
    dump = log.with_name(log.name + ".dump")
    return (dump if dump.exists() else log.with_name("print-data-log.dump")).read_text()


def fields_of(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+): (\S+)", line))


def batch_line(batch: RecordBatch, position: int) -> dict[str, str]:
    """What DumpLogSegments would print for the batch."""
    header = batch.header
    booleans = {True: "true", False: "false"}
    return {
        "baseOffset": str(batch.base_offset),
        "lastOffset": str(batch.last_offset),
        "count": str(batch.record_count),
        "baseSequence": str(header.base_sequence),
        "lastSequence": str(header.last_sequence),
        "producerId": str(header.producer_id),
        "producerEpoch": str(header.producer_epoch),
        "partitionLeaderEpoch": str(header.partition_leader_epoch),
        "isTransactional": booleans[header.is_transactional],
        "isControl": booleans[header.is_control],
        "deleteHorizonMs": "OptionalLong.empty" if not header.has_delete_horizon else "",
        "position": str(position),
        "CreateTime": str(header.max_timestamp_ms),
        "size": str(batch.size_bytes),
        "magic": str(header.magic),
        "compresscodec": header.codec.label,
        "crc": str(header.crc),
        "isvalid": "true",
    }


def record_lines(batch: RecordBatch) -> Iterator[dict[str, str]]:
    """What DumpLogSegments --print-data-log would print for the records of the batch, as far as it is one word each."""
    for i, (offset, timestamp_ms, key, value, headers) in enumerate(zip(*lists_of(batch), strict=True)):
        line = {
            "offset": str(offset),
            "CreateTime": str(timestamp_ms),
            "keySize": str(-1 if key is None else len(key)),
            "valueSize": str(-1 if value is None else len(value)),
            "sequence": str(-1 if batch.header.is_control else batch.header.base_sequence + i),
            "headerKeys": f"[{','.join(name for name, _ in headers)}]",
        }
        if batch.header.is_control:
            marker = batch.end_txn_marker()
            line |= {"endTxnMarker": marker.control_type.name, "coordinatorEpoch": str(marker.coordinator_epoch)}
        else:
            line["key"] = (key or b"").decode()
            if value is not None:
                line["payload"] = value.decode()
        yield line


@every_log
def test_batches_are_what_kafka_says_they_are(log: Path) -> None:
    dumped = [fields_of(line) for line in dump_of(log).splitlines() if line.startswith("baseOffset: ")]
    position = 0
    found = []
    for batch in iter_batches(log.read_bytes()):
        found.append(batch_line(batch, position))
        position += batch.size_bytes
    assert found == dumped
    assert position == log.stat().st_size


@pytest.mark.parametrize("partition", ["flights-0", "transfers-0"])
def test_records_are_what_kafka_says_they_are(partition: str) -> None:
    log = [log for log in LOGS if log.parent.name == partition][-1]
    (dump,) = log.parent.glob("print-data-log*.dump")
    dumped = [line for line in dump.read_text().splitlines() if line.startswith("| ")]
    found = []
    for batch in iter_batches(log.read_bytes()):
        found += ["| " + " ".join(f"{name}: {text}" for name, text in line.items()) for line in record_lines(batch)]
        if len(found) >= len(dumped):
            break
    assert found[: len(dumped)] == dumped


@every_log
def test_batches_of_kafka_lose_nothing_on_the_way_to_columns_and_back(log: Path) -> None:
    for batch in iter_batches(log.read_bytes()):
        columns = read_batch(to_columns(batch))
        assert lists_of(columns) == lists_of(batch)
        back = to_rows(columns)
        if batch.header.codec is Codec.NONE:
            assert back == batch.buffer
        else:  # another compressor gives other bytes
            assert lists_of(read_batch(back)) == lists_of(batch)
            assert read_header(back)._replace(batch_length=0, crc=0) == batch.header._replace(batch_length=0, crc=0)


def test_the_sample_has_every_codec_control_batches_tombstones_and_headers() -> None:
    batches = [batch for log in LOGS for batch in iter_batches(log.read_bytes())]
    assert {batch.header.codec for batch in batches} == set(Codec)
    assert any(batch.header.is_control for batch in batches)
    assert any(None in batch.values() for batch in batches)
    assert any(headers for batch in batches for headers in batch.headers())


# --- golden bytes ---------------------------------------------------------------------------------------------------


def test_one_record() -> None:
    assert lists_of(read_batch(A_ONE_RECORD)) == ([0], [1_700_000_000_000], [None], [b"test"], [()])
    assert lists_of(read_batch(B_SMALLEST)) == ([0], [0], [None], [b"a"], [()])


def test_three_records_with_every_feature() -> None:
    assert lists_of(read_batch(C_THREE_RECORDS)) == (
        [5, 6, 7],
        [1000, 1005, 997],
        [b"k1", None, b"k3"],
        [b"v1", b"v2", None],
        [(), (("h", b"x"), ("n", None)), ()],
    )


@pytest.mark.parametrize("golden", [A_ONE_RECORD, B_SMALLEST, C_THREE_RECORDS])
def test_rows_are_written_as_kafka_writes_them(golden: bytes) -> None:
    assert to_rows(read_batch(to_columns(read_batch(golden)))) == golden


# --- round trips ----------------------------------------------------------------------------------------------------


@given(records(), CODECS)
def test_rows_give_back_what_was_put_in(made: Records, codec: Codec) -> None:
    batch = read_batch(rows_of(made, codec))
    assert batch.header.magic == 2
    assert batch.header.base_timestamp_ms == made.timestamps_ms[0]
    assert lists_of(batch) == made.lists()


@given(records(), CODECS, st.integers(1, 4))
def test_rows_are_the_same_after_columns_and_in_pieces_of_any_size(made: Records, codec: Codec, piece: int) -> None:
    batch = rows_of(made, codec)
    rests: list[None] = []
    with patch.object(rows, "ROWS_A_PIECE", piece):
        again = to_rows(read_batch(to_columns(read_batch(batch))), lambda: rests.append(None))
    assert again == batch
    assert len(rests) == -(-len(made.values) // piece)


@given(records(), st.integers(1, 4))
def test_rows_are_read_in_pieces_of_any_size(made: Records, piece: int) -> None:
    batch = read_batch(rows_of(made))
    (whole,) = read_rows(batch.header, batch.unpack(LIMIT_BYTES), batch.record_count)
    pieces = list(read_rows(batch.header, batch.unpack(LIMIT_BYTES), piece))
    assert max(len(each.keys) for each in pieces) <= piece
    for number, field in enumerate(whole[:4]):
        assert [item for each in pieces for item in each[number]] == list(field or ())
    headers = [item for each in pieces for item in each.headers or [()] * len(each.keys)]
    assert headers == list(whole.headers or [()] * len(whole.keys))
    nulls = [index for index, key in enumerate(whole.keys) if key is None]
    assert batch.null_keys(2) == (len(nulls), nulls[:2])


@given(st.integers(MIN_I64, MAX_I64))
def test_numbers_round_trip(value: int) -> None:
    packed = pack_varint(value)
    assert read_varint(packed + b"\x00", 0) == (value, len(packed))


@pytest.mark.parametrize(
    ("value", "packed"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (MAX_I64, "feffffffffffffffff01"),
        (MIN_I64, "ffffffffffffffffff01"),
    ],
)
def test_numbers_are_packed_as_kafka_packs_them(value: int, packed: str) -> None:
    assert pack_varint(value).hex() == packed


@pytest.mark.parametrize("packed", ["ffffffffffffffffff02", "8080808080808080808000", "ff" * 20])
def test_a_number_past_64_bits_is_a_corrupt_batch(packed: str) -> None:
    with pytest.raises(CorruptBatch, match="does not fit 64 bits"):
        read_varint(bytes.fromhex(packed), 0)


def test_timestamps_are_counted_from_the_delete_horizon_where_there_is_one() -> None:
    columns = columns_of([b"a", b"b"], timestamps_ms=[1000, 995])
    columns.delete_horizon_ms = 2000
    batch = read_batch(seal_rows(read_header(A_ONE_RECORD)._replace(last_offset_delta=1), columns))
    assert batch.header.has_delete_horizon
    assert batch.header.base_timestamp_ms == 2000
    assert batch.columns.delete_horizon_ms == 2000
    assert batch.timestamps_ms() == [1000, 995]


# --- what is refused ------------------------------------------------------------------------------------------------


def row(*fields: int | bytes, size: int | None = None) -> bytes:
    """A record of these fields, numbers as varints, with its size before it."""
    data = b"\x00" + b"".join(pack_varint(field) if isinstance(field, int) else field for field in fields)
    return pack_varint(len(data) if size is None else size) + data


def header_of(count: int, **fields: int) -> BatchHeader:
    header = BatchHeader(0, 0, -1, 2, 0, 0, max(count - 1, 0), 1000, 1000, -1, -1, -1, count)
    return header._replace(**fields)


FIRST = row(0, 0, -1, 1, b"a", 0)


@pytest.mark.parametrize(
    ("header", "body", "message"),
    [
        (header_of(1), b"", "ends within record 0"),
        (header_of(2), FIRST, "ends within record 1"),
        (header_of(1), FIRST + b"\x00", "1 bytes after the last of 1 records"),
        (header_of(1), FIRST[:-1], "body of 7 bytes ends within record 0"),
        (header_of(1), row(0, 0, -1, 1, b"a", 0, size=8) + b"\x00", "fields take 7"),
        (header_of(1), row(0, 0, -1, 1, b"a", 0, size=6), "fields take 7"),
        (header_of(1), row(0, 0, -1, 1, b"a", 0, size=-1), "record 0 of -1 bytes, its fields take 7"),
        (header_of(1), row(0, 0, -1, 1, b"a", 0, size=0), "fields take 7"),
        (header_of(1), row(0, 0, -1, 2, b"a", 0), "ends within record 0"),
        (header_of(1), row(0, 0, 100, b"a", 0), "ends within record 0"),
        (header_of(1), row(0, 0, -1, 2**62, b"a", 0), "ends within record 0"),
        (header_of(1), row(0, 0, -1, 0, -1), "-1 headers"),
        (header_of(1), row(0, 0, -1, 0, 1), "ends within record 0"),
        (header_of(1), row(0, 0, -1, 0, 2**31 - 1), "2147483647 headers before"),
        (header_of(1), row(0, 0, -1, 0, 1, -1, -1), "header without a name"),
        (header_of(1), row(0, 0, -1, 0, 1, 1, b"\xff", -1), "name b'.xff'"),
        (header_of(1), row(0, 0, -1, 0, 1, 5, b"h", -1), "5 bytes expected"),
        (header_of(1), row(0, 0, -1, 0, 1, 1, b"h", 9), "9 bytes expected"),
        (header_of(1), row(b"\xff" * 11, 0, -1, 0, 0), "does not fit 64 bits"),
        (header_of(1), row(0, 1, -1, 0, 0), "offset delta 1 is above the last, 0"),
        (header_of(1), row(0, -1, -1, 0, 0), "offset delta -1 after -1"),
        (header_of(2), FIRST + FIRST, "offset delta 0 after 0"),
        (header_of(0), b"\x00", "no records, but a body of 1 bytes"),
        (header_of(1, attributes=5), FIRST, "codec 5"),
        (header_of(1, attributes=64, base_timestamp_ms=-1), FIRST, "delete horizon -1"),
        (header_of(1, attributes=4), FIRST, "zstd body"),
        (header_of(1, attributes=4), compress(Codec.ZSTD, bytes(LIMIT_BYTES + 1), is_rows=True), "limit"),
    ],
)
def test_malformed_rows_are_a_corrupt_batch(header: BatchHeader, body: bytes, message: str) -> None:
    with pytest.raises(CorruptBatch, match=message):
        _ = RecordBatch(header, memoryview(bytes(HEADER_BYTES) + body), LIMIT_BYTES).columns


def test_the_last_records_may_be_gone() -> None:
    columns = decode_rows(header_of(1, last_offset_delta=9), memoryview(row(0, 4, -1, 1, b"a", 0)))
    assert columns.offset_delta_list() == [4]


# --- damage ---------------------------------------------------------------------------------------------------------


@given(records(), CODECS, DAMAGE)
def test_a_damaged_body_under_a_valid_crc_is_read_or_a_corrupt_batch(
    made: Records, codec: Codec, damage: Damage
) -> None:
    batch = rows_of(made, codec)
    check_readable_or_corrupt(seal_batch(read_header(batch), damage.apply(batch[HEADER_BYTES:])))


@given(records(), DAMAGE, st.sampled_from([codec for codec in Codec if codec is not Codec.NONE]))
def test_damaged_rows_that_were_compressed_are_read_or_a_corrupt_batch(
    made: Records, damage: Damage, codec: Codec
) -> None:
    batch = rows_of(made)
    body = compress(codec, damage.apply(batch[HEADER_BYTES:]), is_rows=True)
    check_readable_or_corrupt(seal_batch(read_header(batch)._replace(attributes=codec), body))


def test_no_value_of_any_byte_of_a_small_body_causes_another_error() -> None:
    header, body = read_header(C_THREE_RECORDS), C_THREE_RECORDS[HEADER_BYTES:]
    for position in range(len(body)):
        for value in range(256):
            check_readable_or_corrupt(seal_batch(header, body[:position] + bytes((value,)) + body[position + 1 :]))


def test_every_cut_of_a_small_body_is_a_corrupt_batch() -> None:
    for size in range(HEADER_BYTES, len(C_THREE_RECORDS)):
        with pytest.raises(CorruptBatch):
            _ = read_batch(seal_batch(read_header(C_THREE_RECORDS), C_THREE_RECORDS[HEADER_BYTES:size])).columns


@pytest.mark.parametrize("count", [2, 4, 2**31 - 1])
def test_a_count_that_is_not_the_number_of_rows_is_a_corrupt_batch(count: int) -> None:
    changed = bytearray(C_THREE_RECORDS)
    struct.pack_into(">i", changed, 57, count)
    with pytest.raises(CorruptBatch):
        _ = read_batch(bytes(changed), verify_crc=False).columns


def test_the_size_of_every_record_is_counted_as_kafka_does() -> None:
    """7 bytes more than a value of up to 63 bytes: the sizes of Kafka's own tests depend on it."""
    for size in (0, 1, 4, 56):
        assert len(rows_of(Records([b"v" * size], [1000]))) == HEADER_BYTES + 7 + size


def test_more_rows_than_their_limit_has_room_for_are_refused_before_they_are_unpacked() -> None:
    batch = to_rows(read_batch(encode_batch([b""] * 2000, timestamps_ms=1, codec=Codec.ZSTD)))
    assert read_batch(batch, max_decompressed_bytes=2000 * BYTES_A_ROW).columns.count == 2000
    with pytest.raises(CorruptBatch, match="2000 records: too many"):
        _ = read_batch(batch, max_decompressed_bytes=2000 * BYTES_A_ROW - 1).columns


def test_more_record_headers_than_anybody_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_HEADERS", 100)
    many: list[tuple[str, bytes | None]] = [("", None)] * 50
    fits = to_rows(read_batch(encode_batch([b"v"] * 2, timestamps_ms=1, headers=[many, many])))
    assert read_batch(fits).columns.count == 2
    more = to_rows(read_batch(encode_batch([b"v"] * 3, timestamps_ms=1, headers=[many, many, many[:1]])))
    with pytest.raises(CorruptBatch, match="more than 100 record headers"):
        _ = read_batch(more).columns
    one = to_rows(read_batch(encode_batch([b"v"], timestamps_ms=1, headers=[many * 3])))
    with pytest.raises(CorruptBatch, match="150 headers before byte"):
        _ = read_batch(one).columns
