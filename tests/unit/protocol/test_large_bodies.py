"""Bodies of many records, or of many bytes: looked at in pieces, within a bound on memory."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.protocol.batch_strategies import CODECS, TIMESTAMPS, Records, records
from warmlog_protocol.batch import (
    IntColumn,
    NeedsMemory,
    RecordBatch,
    encode_batch,
    read_batch,
    read_header,
    seal_batch,
    stamp_append_time,
    to_rows,
)
from warmlog_protocol.batch.int_column import PIECE_VALUES, pack_ints
from warmlog_protocol.codec.compression import Codec, compress, decompress, decompress_rows
from warmlog_protocol.codec.memory import LARGE_BYTES, joined, zeroed_memory
from warmlog_protocol.errors import CorruptBatch

COUNTS = [0, 1, 2, PIECE_VALUES - 1, PIECE_VALUES, PIECE_VALUES + 1, 3 * PIECE_VALUES + 7]
MANY = 2 * PIECE_VALUES + 11
every_codec = pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
rows_or_columns = pytest.mark.parametrize("rows", [False, True])


def batch_of_many(*, rows: bool = False, codec: Codec = Codec.NONE) -> RecordBatch:
    """Values, keys and times of all kinds; every 1000th record has no key."""
    luck = Random(7)
    batch = encode_batch(
        [luck.randbytes(luck.randrange(3)) for _ in range(MANY)],
        keys=[None if number % 1000 == 999 else b"%d" % (number % 5000) for number in range(MANY)],
        timestamps_ms=[1_700_000_000_000 + luck.randrange(100_000) for _ in range(MANY)],
        codec=codec,
        base_offset=50,
    )
    return read_batch(to_rows(read_batch(batch)) if rows else batch)


def first_from(batch: RecordBatch, timestamp_ms: int, first_offset: int) -> tuple[int, int] | None:
    """The same as `find_time`, by the lists."""
    for time_ms, offset in zip(batch.timestamps_ms(), batch.offsets(), strict=True):
        if time_ms >= timestamp_ms and offset >= first_offset:
            return time_ms, offset
    return None


class TestColumnsInPieces:
    @pytest.mark.parametrize("count", COUNTS)
    @pytest.mark.parametrize("largest", [0, 1, 200, 60_000, 2**31, 2**63])
    def test_a_column_answers_as_its_list_does(self, count: int, largest: int) -> None:
        luck = Random(count)
        values = [luck.randint(0, largest) for _ in range(count)]
        column = pack_ints(values)
        assert [value for piece in column.pieces() for value in piece] == values
        assert all(len(piece) <= PIECE_VALUES for piece in column.pieces())
        assert (column.total(), column.largest(), column.zeros()) == (
            sum(values),
            max(values, default=0),
            values.count(0),
        )
        assert column.is_increasing() == (sorted(set(values)) == values)
        assert column.part(count // 3, count).tolist() == values[count // 3 :]

    @pytest.mark.parametrize("wrong_at", [None, 1, PIECE_VALUES - 1, PIECE_VALUES, PIECE_VALUES + 1, MANY - 1])
    def test_one_value_that_does_not_rise_is_noticed_also_between_pieces(self, wrong_at: int | None) -> None:
        values = list(range(10, MANY + 10))
        if wrong_at is not None:
            values[wrong_at] = values[wrong_at - 1]
        assert pack_ints(values).is_increasing() == (wrong_at is None)

    def test_one_value_for_millions_of_records_is_a_piece_at_a_time(self) -> None:
        column = IntColumn.constant_of(5, 10 * PIECE_VALUES)
        assert [len(piece) for piece in column.pieces()] == [PIECE_VALUES] * 10
        assert not column.is_increasing()

    @rows_or_columns
    def test_parts_hold_the_records_one_after_another(self, rows: bool) -> None:
        columns = batch_of_many(rows=rows).columns
        parts = list(columns.parts())
        assert [part.count for part in parts] == [PIECE_VALUES, PIECE_VALUES, 11]
        for name in ("offset_delta_list", "timestamp_list", "key_list", "value_list"):
            found = [item for part in parts for item in getattr(part, name)()]
            assert found == list(getattr(columns, name)())

    def test_a_few_records_are_one_part(self) -> None:
        columns = read_batch(encode_batch([b"a", None], timestamps_ms=1)).columns
        assert list(columns.parts()) == [columns]


class TestTimes:
    @given(records(), CODECS, TIMESTAMPS, st.integers(-3, 2003), st.booleans(), st.booleans())
    def test_the_first_record_from_an_offset_on_that_is_late_enough(
        self, chosen: Records, codec: Codec, timestamp_ms: int, delta: int, rows: bool, is_stamped: bool
    ) -> None:
        made = chosen.encode(codec)
        if rows:
            made = to_rows(read_batch(made))
        batch = read_batch(stamp_append_time(made, 12345) if is_stamped else made)
        first_offset = batch.base_offset + delta
        for wanted_ms in (timestamp_ms, *batch.timestamps_ms()):
            expected = first_from(batch, wanted_ms, first_offset)
            assert read_batch(batch.buffer).find_time(wanted_ms, first_offset) == expected

    @rows_or_columns
    def test_many_records_are_looked_through_with_rests(self, rows: bool) -> None:
        batch = batch_of_many(rows=rows, codec=Codec.LZ4)
        rests: list[int] = []
        times = batch.timestamps_ms()
        assert batch.find_time(max(times) + 1, 0, lambda: rests.append(1)) is None
        assert len(rests) >= MANY / PIECE_VALUES
        for first_offset in (0, 50, 50 + PIECE_VALUES - 1, 50 + PIECE_VALUES, 50 + MANY - 1, 50 + MANY):
            expected = first_from(batch, times[0] + 50, first_offset)
            assert batch.find_time(times[0] + 50, first_offset) == expected

    @pytest.mark.parametrize(
        "body",
        [
            b"\x02\x00\x00",  # the record ends within its deltas
            b"\x40\x00\x00\x00\x01\x01\x00",  # it is longer than the body
            b"\x01",  # its size is negative
            b"\x0c\x00\x00\x0a\x01\x01\x00",  # its offset delta is above the last
            b"\x0c\x00\x00\x80",
            b"",
        ],
    )
    def test_malformed_rows_are_a_corrupt_batch(self, body: bytes) -> None:
        header = read_header(to_rows(read_batch(encode_batch([b"a"], timestamps_ms=1, base_offset=9))))
        batch = read_batch(seal_batch(header, body))
        with pytest.raises(CorruptBatch, match="batch at offsets 9 to 9"):
            batch.find_time(0, 0)

    def test_malformed_columns_are_a_corrupt_batch(self) -> None:
        header = read_header(encode_batch([b"a"], timestamps_ms=1, base_offset=9))
        with pytest.raises(CorruptBatch, match="batch at offsets 9 to 9"):
            read_batch(seal_batch(header, b"\x00\x01\x00\x00\x00\x09")).find_time(0, 0)


class TestKeys:
    @given(records(), CODECS, st.integers(0, 5), st.booleans())
    def test_records_without_a_key_are_counted_and_the_first_ones_named(
        self, chosen: Records, codec: Codec, named: int, rows: bool
    ) -> None:
        batch = read_batch(chosen.encode(codec))
        batch = read_batch(to_rows(batch)) if rows else batch
        without = [index for index, key in enumerate(batch.keys()) if key is None]
        assert read_batch(batch.buffer).null_keys(named) == (len(without), without[:named])

    @rows_or_columns
    def test_among_many_records_too(self, rows: bool) -> None:
        count, first = batch_of_many(rows=rows).null_keys(3)
        assert (count, first) == (MANY // 1000, [999, 1999, 2999])

    def test_rows_are_checked_on_the_way(self) -> None:
        header = read_header(to_rows(read_batch(encode_batch([b"a", b"b"], timestamps_ms=1))))
        row = b"\x0c\x00\x00\x00\x01\x01\x00"
        with pytest.raises(CorruptBatch, match="offset delta 0 after 0"):
            read_batch(seal_batch(header, row + row)).null_keys(1)


class TestMemory:
    @every_codec
    @rows_or_columns
    def test_a_body_is_not_decompressed_into_more_memory_than_is_allowed(self, codec: Codec, rows: bool) -> None:
        made = encode_batch([bytes(500_000)], timestamps_ms=1, codec=codec)
        batch = read_batch(to_rows(read_batch(made)) if rows else made, max_decompressed_bytes=1_000_000)
        with pytest.raises(NeedsMemory) as raised:
            batch.unpack(400_000)
        assert 500_000 < raised.value.size_bytes <= 1_000_000
        assert len(batch.unpack(raised.value.size_bytes)) > 500_000
        assert batch.values() == [bytes(500_000)]

    @rows_or_columns
    def test_many_records_count_although_they_take_few_bytes(self, rows: bool) -> None:
        batch = batch_of_many(rows=rows)
        with pytest.raises(NeedsMemory) as raised:
            batch.unpack(2_000_000)
        assert raised.value.size_bytes == 64 * MANY
        batch.unpack(64 * MANY)

    @rows_or_columns
    def test_over_the_limit_it_is_a_corrupt_batch_whatever_is_allowed(self, rows: bool) -> None:
        made = encode_batch([bytes(500_000)], timestamps_ms=1, codec=Codec.ZSTD)
        batch = read_batch(to_rows(read_batch(made)) if rows else made, max_decompressed_bytes=100_000)
        with pytest.raises(CorruptBatch, match="limit"):
            batch.unpack(1_000_000)

    def test_what_is_not_compressed_is_read_in_place(self) -> None:
        batch = read_batch(encode_batch([bytes(500_000)], timestamps_ms=1))
        assert batch.unpack(100).obj is batch.buffer.obj

    @every_codec
    @pytest.mark.parametrize("size", [LARGE_BYTES - 1, LARGE_BYTES + 1, 3 * LARGE_BYTES + 5])
    def test_large_bodies_round_trip(self, codec: Codec, size: int) -> None:
        data = Random(size).randbytes(1000) * (size // 1000 + 1)
        assert decompress(codec, compress(codec, data), size=len(data)) == data
        assert decompress_rows(codec, compress(codec, data, is_rows=True), limit_bytes=2 * len(data)) == data

    @rows_or_columns
    def test_large_records_round_trip(self, rows: bool) -> None:
        luck = Random(1)
        values = [luck.randbytes(1_000_000), None, b"", luck.randbytes(LARGE_BYTES + 1), luck.randbytes(700_000)]
        keys = [b"a", b"b", luck.randbytes(300_000), None, b"c"]
        batch = read_batch(encode_batch(values, keys=keys, timestamps_ms=1, codec=Codec.LZ4))
        batch = read_batch(to_rows(batch)) if rows else batch
        assert (batch.values(), batch.keys()) == (values, keys)
        kept = batch.columns.select([1, 0, 1, 0, 1])
        assert (kept.value_list(), kept.key_list()) == (values[::2], keys[::2])

    @given(st.lists(st.sampled_from([b"", b"ab", b"x" * 200_000, b"y" * 300_000, bytes(1_100_000)]), max_size=9))
    def test_parts_are_joined_whatever_their_sizes(self, parts: list[bytes]) -> None:
        assert joined(parts) == b"".join(parts)

    def test_large_memory_is_zeros(self) -> None:
        assert zeroed_memory(LARGE_BYTES + 3) == bytes(LARGE_BYTES + 3)
