"""Lists of records are checked, spread over partitions as librdkafka does, and cut into batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.errors import MessageTooLarge
from warmlog.producer.bulk_records import BulkRecords
from warmlog.producer.record_input import BATCH_OVERHEAD_BYTES, partition_of_key
from warmlog_protocol.batch import encode_batch

NOW_MS = 1_700_000_000_000
LIMIT_BYTES = 400
MAX_MESSAGE_BYTES = 1000

values_of_records = st.lists(st.one_of(st.none(), st.binary(max_size=300)), max_size=60)


def bulk(values: list[bytes | None], keys: list[bytes | None] | None = None) -> BulkRecords:
    return BulkRecords.check(values, keys, None, None, NOW_MS)


@given(values_of_records)
def test_parts_hold_all_records_in_order_and_fit_into_their_batches(values: list[bytes | None]) -> None:
    parts = list(bulk(values).cut(LIMIT_BYTES, MAX_MESSAGE_BYTES))
    assert [value for part, _ in parts for value in part.values] == values
    for part, size_bytes in parts:
        encoded = encode_batch(part.values, timestamps_ms=part.timestamps_ms)
        assert len(encoded) <= size_bytes + BATCH_OVERHEAD_BYTES
        assert len(encoded) <= LIMIT_BYTES or len(part.values) == 1


@given(st.lists(st.tuples(st.one_of(st.none(), st.binary(max_size=3)), st.binary(max_size=5)), max_size=60))
def test_keys_choose_partitions_and_keep_their_order(records: list[tuple[bytes | None, bytes]]) -> None:
    keys = [key for key, _ in records]
    values = [value for _, value in records]
    spread = dict(bulk(list(values), list(keys)).by_partition(7))
    if not any(key is not None for key in keys):
        assert list(spread) == [None]
        return
    for partition in {partition_of_key(key, 7) if key else None for key in keys}:
        own = [i for i, key in enumerate(keys) if (partition_of_key(key, 7) if key else None) == partition]
        assert spread[partition].values == [values[i] for i in own]
        assert spread[partition].keys == [keys[i] for i in own]
    assert sum(len(part.values) for part in spread.values()) == len(values)


def test_with_one_partition_records_with_and_without_keys_keep_their_order() -> None:
    records = bulk([b"a", b"b", b"c"], [b"k", None, b""])
    assert list(records.by_partition(1)) == [(None, records)]


def test_iterators_are_taken_in_their_order_and_what_has_no_order_is_refused() -> None:
    records = BulkRecords.check((b"%d" % i for i in range(3)), map(bytes, [b"k"] * 3), None, None, NOW_MS)  # type: ignore[arg-type]
    assert (records.values, records.keys) == ([b"0", b"1", b"2"], [b"k", b"k", b"k"])
    for wrong in ({b"a"}, {b"a": 1}, b"abc", "abc"):
        with pytest.raises(TypeError, match="a list of values expected"):
            BulkRecords.check(wrong, None, None, None, NOW_MS)  # type: ignore[arg-type]


def test_every_column_is_cut_alike() -> None:
    count = 50
    records = BulkRecords.check(
        [b"%d" % i for i in range(count)],
        [b"k%d" % i for i in range(count)],
        [[("h", b"%d" % i)] for i in range(count)],
        list(range(count)),
        NOW_MS,
    )
    seen = 0
    for part, _ in records.cut(LIMIT_BYTES, MAX_MESSAGE_BYTES):
        for i, value in enumerate(part.values):
            assert (value, part.keys[i]) == (b"%d" % seen, b"k%d" % seen)  # type: ignore[index]
            assert (part.headers[i], part.timestamps_ms[i]) == ([("h", b"%d" % seen)], seen)  # type: ignore[index]
            seen += 1
    assert seen == count


def test_a_record_that_fits_into_no_batch_is_refused_before_anything_is_cut() -> None:
    with pytest.raises(MessageTooLarge, match=r"record of 2016 bytes.*max.message.bytes=1000"):
        next(bulk([b"x", b"y" * 2000]).cut(LIMIT_BYTES, MAX_MESSAGE_BYTES))


def test_text_is_refused_with_a_hint() -> None:
    with pytest.raises(TypeError, match=r"value must be bytes.*not str.*encode"):
        bulk([b"x", "y"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="a list of values expected, not one bytes"):
        bulk(b"xyz")  # type: ignore[arg-type]


def test_mutable_buffers_are_copied() -> None:
    buffer = bytearray(b"before")
    records = bulk([buffer, memoryview(b"view"), None])  # type: ignore[list-item]
    buffer[:] = b"after!"
    assert records.values == [b"before", b"view", None]


@pytest.mark.parametrize("column", ["keys", "headers", "timestamps_ms"])
def test_lists_of_different_lengths_are_refused(column: str) -> None:
    columns = {"keys": None, "headers": None, "timestamps_ms": None, column: [None, None]}
    with pytest.raises(ValueError, match=f"{column} has 2 items for 1 values"):
        BulkRecords.check([b"x"], **columns, now_ms=NOW_MS)  # type: ignore[arg-type]


def test_timestamps_are_checked() -> None:
    assert BulkRecords.check([b""], None, None, None, NOW_MS).timestamps_ms == NOW_MS
    with pytest.raises(ValueError, match="timestamp_ms -1"):
        BulkRecords.check([b""], None, None, [-1], NOW_MS)
    with pytest.raises(TypeError, match="timestamp_ms must be an int"):
        BulkRecords.check([b""], None, None, [1.5], NOW_MS)  # type: ignore[list-item]


# The check value of CRC-32 for b"123456789" is in every catalogue of CRCs; the others were computed with `gzip`.
CRC32 = {b"123456789": 0xCBF43926, b"a": 0xE8B7BE43, b"\x00": 0xD202EF8D, b"key": 0x8A90ABA9}


@pytest.mark.parametrize(("key", "crc"), CRC32.items())
@pytest.mark.parametrize("partitions", [1, 2, 3, 17, 1000])
def test_a_key_chooses_the_partition_of_its_crc_32(key: bytes, crc: int, partitions: int) -> None:
    assert partition_of_key(key, partitions) == crc % partitions
