"""Hypothesis strategies for record batches: records of every shape, and damage to their bytes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from warmlog_protocol.batch import Header, RecordBatch, encode_batch
from warmlog_protocol.codec.compression import Codec

MIN_I64 = -(2**63)
MAX_I64 = 2**63 - 1

CODECS = st.sampled_from(list(Codec))
SOME_BYTES = st.binary(max_size=20) | st.sampled_from([b"", b"x" * 127, b"x" * 254, b"x" * 255, b"y" * 70_000])
TIMESTAMPS = st.integers(0, 300) | st.integers(1_700_000_000_000, 1_700_000_100_000) | st.integers(MIN_I64, MAX_I64)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=10)), max_size=3)


@dataclass(frozen=True)
class Records:
    """What a batch is made of and must give back."""

    values: list[bytes | None]
    timestamps_ms: list[int]
    keys: list[bytes | None] | None = None
    headers: list[list[Header]] | None = None
    offset_deltas: list[int] | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    def encode(self, codec: Codec = Codec.NONE) -> bytes:
        return encode_batch(
            self.values,
            keys=self.keys,
            timestamps_ms=self.timestamps_ms,
            headers=self.headers,
            offset_deltas=self.offset_deltas,
            codec=codec,
            **self.fields,
        )

    def lists(self) -> tuple[list[Any], ...]:
        """Offsets, timestamps, keys, values and headers, as a reader should see them."""
        count = len(self.values)
        base = self.fields.get("base_offset", 0)
        deltas = self.offset_deltas or range(count)
        return (
            [base + delta for delta in deltas],
            self.timestamps_ms,
            self.keys or [None] * count,
            self.values,
            list(map(tuple, self.headers or [()] * count)),
        )


def lists_of(batch: RecordBatch) -> tuple[list[Any], ...]:
    """What a reader sees of the batch, in the order of `Records.lists`."""
    return batch.offsets(), batch.timestamps_ms(), batch.keys(), batch.values(), batch.headers()


@st.composite
def records(draw: Callable[..., Any]) -> Records:
    """One to twelve records: nulls, empties, keys and headers or none, gaps between offsets, far timestamps."""
    count = draw(st.integers(1, 12))

    def column(items: st.SearchStrategy[Any]) -> list[Any]:
        if draw(st.booleans()):
            return [draw(items)] * count
        return [draw(items) for _ in range(count)]

    offsets = st.lists(st.integers(0, 2000), min_size=count, max_size=count, unique=True).map(sorted)
    return Records(
        values=column(st.none() | SOME_BYTES),
        timestamps_ms=column(TIMESTAMPS),
        keys=column(st.none() | SOME_BYTES) if draw(st.booleans()) else None,
        headers=column(HEADERS) if draw(st.booleans()) else None,
        offset_deltas=draw(st.none() | offsets),
        fields=draw(
            st.fixed_dictionaries(
                {"base_offset": st.integers(0, 2**62), "leader_epoch": st.integers(-1, 100)},
                optional={
                    "producer_id": st.integers(0, MAX_I64),
                    "producer_epoch": st.integers(0, 2**15 - 1),
                    "base_sequence": st.integers(0, 2**31 - 1),
                    "is_transactional": st.booleans(),
                },
            )
        ),
    )


@dataclass(frozen=True)
class Damage:
    """Changes to some bytes, each: where (a share of the length), how many bytes go, and what comes instead."""

    changes: list[tuple[float, int, bytes]]

    def apply(self, data: bytes) -> bytes:
        damaged = bytearray(data)
        for share, removed, inserted in self.changes:
            position = int(share * len(damaged))
            damaged[position : position + removed] = inserted
        return bytes(damaged)


_EDGES = st.sampled_from([b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff" * 4, b"\xff" * 8, b"\x80" * 10])
_CHANGE = st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 9), st.binary(max_size=9) | _EDGES)
DAMAGE = st.builds(Damage, st.lists(_CHANGE, min_size=1, max_size=3))
