"""Columns of rows made by numpy are those of the decoder that goes row by row, damage and rare forms included."""

from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.protocol.batch_strategies import CODECS, DAMAGE, Damage, Records, records
from warmlog.arrow import rows
from warmlog.arrow.rows import columns_in
from warmlog_protocol.batch import (
    HEADER_BYTES,
    BatchHeader,
    Columns,
    RecordBatch,
    encode_batch,
    encode_columns,
    read_batch,
    read_header,
    seal_batch,
    stamp_append_time,
    to_rows,
)
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.errors import CorruptBatch


def outcome(read: Callable[[RecordBatch], Columns], batch: bytes) -> object:
    """The columns, or why there are none."""
    header = read_header(batch)
    try:
        columns = read(read_batch(batch))
    except CorruptBatch as error:
        return str(error)
    return columns.base_timestamp_ms, encode_columns(columns, last_offset_delta=header.last_offset_delta)


def check(batch: bytes) -> None:
    """Read `batch` both ways, however few rows it has."""
    with patch.object(rows, "_LEAST_ROWS", 1):
        found = outcome(columns_in, batch)
    assert found == outcome(lambda read: read.columns, batch)


@given(records(), CODECS, st.booleans())
def test_any_rows(made: Records, codec: Codec, has_append_time: bool) -> None:
    batch = to_rows(read_batch(made.encode(codec)))
    check(stamp_append_time(batch, 500) if has_append_time else batch)


@given(records(), DAMAGE)
def test_damaged_rows(made: Records, damage: Damage) -> None:
    batch = to_rows(read_batch(made.encode()))
    check(seal_batch(read_header(batch), damage.apply(batch[HEADER_BYTES:])))


def test_every_byte_of_a_small_body_with_every_value() -> None:
    batch = to_rows(read_batch(encode_batch([b"v", None], timestamps_ms=[5, 3], keys=[b"k", None])))
    header, body = read_header(batch), batch[HEADER_BYTES:]
    for position in range(len(body)):
        for value in range(256):
            check(seal_batch(header, body[:position] + bytes((value,)) + body[position + 1 :]))


def test_numpy_reads_all_but_rare_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the tests above would compare the decoder with itself."""
    monkeypatch.setattr(rows, "_LEAST_ROWS", 1)
    values: list[bytes | None] = [b"a" * size for size in (0, 1, 70, 9000)]
    plain = encode_batch(values, timestamps_ms=[9, 5, 2**33, 700], keys=[b"k", None, b"", b"key"])
    gaps = encode_batch(values, timestamps_ms=5, offset_deltas=[3, 70, 9000, 2**21])
    asked: list[BatchHeader] = []

    class Batch(RecordBatch):
        @property
        def columns(self) -> Columns:
            asked.append(self.header)
            return super().columns

    def ask(batch: bytes) -> int:
        read = read_batch(to_rows(read_batch(batch)))
        columns_in(Batch(read.header, read.buffer))
        return len(asked)

    assert ask(plain) == ask(gaps) == 0
    assert ask(encode_batch(values, timestamps_ms=5, headers=[[("h", b"x")], [], [], []])) == 1
    assert ask(encode_batch([bytes(100_000)], timestamps_ms=5)) == 2
