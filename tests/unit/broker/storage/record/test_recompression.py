"""Batches whose records the broker looks at before they are appended."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.protocol.batch_strategies import CODECS, Records, lists_of, records
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.log.recompression import prepare_batch
from warmlog_broker.storage.log.validation import CheckedBatch, check_batch
from warmlog_protocol.batch import NeedsMemory, encode_batch, pack_header, read_batch, read_header, seal_batch, to_rows
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.errors import InvalidRecord, MessageTooLarge

LIMIT = 10_000_000
TYPES = {"uncompressed": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


def whole(batch: CheckedBatch) -> bytes:
    return pack_header(batch.header)[:21] + batch.covered


def dense(chosen: Records) -> Records:
    """As a client writes it: offsets without gaps, a whole producer."""
    fields = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 9, "base_offset": chosen.fields["base_offset"]}
    return Records(chosen.values, chosen.timestamps_ms, chosen.keys, chosen.headers, None, fields)


@given(records().map(dense), CODECS, st.sampled_from(sorted(TYPES)), st.booleans())
def test_a_batch_is_packed_by_the_topics_codec_and_says_the_same(
    chosen: Records, codec: Codec, kind: str, rows: bool
) -> None:
    """LV-11: offsets, producer, sequence and magic stay; what has the codec already stays byte for byte."""
    batch = read_batch(chosen.encode(codec))
    sent = to_rows(batch) if rows else bytes(batch.buffer)
    prepared = prepare_batch(check_batch(sent, LIMIT), LogConfig(compression_type=kind, max_message_bytes=LIMIT))
    found = read_batch(whole(prepared))
    assert found.header.codec is TYPES[kind]
    assert lists_of(found) == lists_of(read_batch(sent))
    expected = read_header(sent)
    assert found.header._replace(batch_length=0, crc=0, attributes=0) == expected._replace(
        batch_length=0, crc=0, attributes=0
    )
    if codec is TYPES[kind]:
        assert whole(prepared) == sent


@given(records().map(dense), CODECS, st.booleans())
def test_a_compacted_topic_takes_what_has_keys_as_it_is_and_names_what_has_none(
    chosen: Records, codec: Codec, rows: bool
) -> None:
    batch = read_batch(chosen.encode(codec))
    sent = to_rows(batch) if rows else bytes(batch.buffer)
    keys = chosen.keys or [None] * len(chosen.values)
    checked = check_batch(sent, LIMIT)
    config = LogConfig(cleanup_policy="compact", max_message_bytes=LIMIT)
    if None in keys:
        with pytest.raises(InvalidRecord, match=f"at index {keys.index(None)}\\b"):
            prepare_batch(checked, config)
    else:
        assert whole(prepare_batch(checked, config)) == sent


def test_many_records_without_a_key_are_counted_and_not_all_named() -> None:
    checked = check_batch(encode_batch([b"v"] * 500, timestamps_ms=1), LIMIT)
    with pytest.raises(InvalidRecord, match=r"of 500 records 500 have none: at index 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …"):
        prepare_batch(checked, LogConfig(cleanup_policy="compact"))


def test_millions_of_records_in_a_few_bytes_are_counted_and_not_listed() -> None:
    """Columns of width 0 say one value for all."""
    header = read_header(encode_batch([b""] * 2, timestamps_ms=1))
    count = 16_000_000
    columns = (b"\x00" + bytes(8)) + (b"\x00" + (1).to_bytes(8, "little"))
    body = b"\x00" + len(columns).to_bytes(4, "little") + columns
    batch = seal_batch(header._replace(record_count=count, last_offset_delta=count - 1), body)
    tracemalloc.start()
    with pytest.raises(InvalidRecord, match=f"{count} have none"):
        prepare_batch(check_batch(batch, LIMIT), LogConfig(cleanup_policy="compact"))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1_000_000


def test_a_batch_that_becomes_larger_than_the_broker_unpacks_is_refused() -> None:
    sent = encode_batch([bytes(3_000_000)], keys=[b"k"], timestamps_ms=1, codec=Codec.ZSTD)
    checked = check_batch(sent, LIMIT)
    config = LogConfig(cleanup_policy="compact")
    assert prepare_batch(checked, config, 4_000_000) is checked
    with pytest.raises(InvalidRecord, match="over the limit of 2000000"):
        prepare_batch(checked, config, 2_000_000)


def test_a_malformed_body_is_refused_where_it_is_looked_at() -> None:
    """LV-01"""
    header = read_header(encode_batch([b"a", b"b"], timestamps_ms=1))
    checked = check_batch(seal_batch(header, b"\x00nonsense"), LIMIT)
    with pytest.raises(InvalidRecord, match="the batch's body of 9 bytes"):
        prepare_batch(checked, LogConfig(compression_type="zstd"))


def without_max(rows: bytes) -> bytes:
    """The batch as clients send it that leave its max timestamp at -1."""
    return seal_batch(read_header(rows)._replace(max_timestamp_ms=-1), rows[61:])


@given(records().map(dense), CODECS, st.sampled_from(["producer", *sorted(TYPES)]))
def test_rows_that_do_not_say_their_max_timestamp_get_that_of_their_records(
    chosen: Records, codec: Codec, kind: str
) -> None:
    sent = to_rows(read_batch(chosen.encode(codec)))
    config = LogConfig(compression_type=kind, max_message_bytes=LIMIT)
    found = read_batch(whole(prepare_batch(check_batch(without_max(sent), LIMIT), config)))
    assert found.header.max_timestamp_ms == max(-1, *chosen.timestamps_ms)
    assert lists_of(found) == lists_of(read_batch(sent))
    if kind == "producer":
        expected = sent if max(chosen.timestamps_ms) >= -1 else without_max(sent)
        assert bytes(found.buffer) == expected


def test_columns_that_do_not_say_their_max_timestamp_get_none() -> None:
    batch = encode_batch([b"v"], timestamps_ms=1)
    checked = check_batch(seal_batch(read_header(batch)._replace(max_timestamp_ms=-1), batch[61:]), LIMIT)
    assert prepare_batch(checked, LogConfig()) is checked


def test_a_batch_that_becomes_too_large_is_refused() -> None:
    sent = encode_batch([b"x" * 100_000], timestamps_ms=1, codec=Codec.ZSTD)
    config = LogConfig(compression_type="uncompressed", max_message_bytes=10_000)
    with pytest.raises(MessageTooLarge, match=r"compression\.type=uncompressed"):
        prepare_batch(check_batch(sent, 10_000), config)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(("settings", "copies"), [({"cleanup_policy": "compact"}, 1), ({"compression_type": "lz4"}, 2)])
def test_a_batch_that_takes_more_memory_than_is_allowed_is_not_opened(
    rows: bool, settings: dict[str, str], copies: int
) -> None:
    made = encode_batch([bytes(3_000_000)], keys=[b"k"], timestamps_ms=1, codec=Codec.ZSTD)
    checked = check_batch(to_rows(read_batch(made)) if rows else made, LIMIT)
    config = LogConfig(**settings)  # type: ignore[arg-type]
    with pytest.raises(NeedsMemory) as raised:
        prepare_batch(checked, config, 4_000_000, memory_bytes=copies * 2_000_000)
    needed_bytes = raised.value.size_bytes
    assert copies * 3_000_000 < needed_bytes <= copies * 4_000_000
    prepared = prepare_batch(checked, config, 4_000_000, memory_bytes=needed_bytes)
    assert read_batch(whole(prepared)).values() == [bytes(3_000_000)]


def test_a_few_bytes_that_stand_for_millions_of_records_are_not_taken_for_compaction() -> None:
    """Keys are looked at one by one there; elsewhere they are not, and as many are stored as may be read."""
    count = 3_000_000
    columns = (b"\x00" + bytes(8)) + (b"\x00" + (1).to_bytes(8, "little")) * 2
    header = read_header(encode_batch([b""], keys=[b""], timestamps_ms=1))
    body = b"\x01" + len(columns).to_bytes(4, "little") + columns
    batch = seal_batch(header._replace(record_count=count, last_offset_delta=count - 1), body)
    checked = check_batch(batch, LIMIT)
    with pytest.raises(InvalidRecord, match="3000000 records in one batch: a compacted topic takes at most 2097152"):
        prepare_batch(checked, LogConfig(cleanup_policy="compact"))
    assert prepare_batch(checked, LogConfig(compression_type="uncompressed")) is checked
