"""Fetched batches: which are hidden from readers of committed data, and where damage of unknown extent ends."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from warmlog.records.fetched import AbortedRanges, next_readable
from warmlog_protocol.batch import ControlType, EndTxnMarker, encode_batch, encode_end_txn_marker, read_batch
from warmlog_protocol.messages import AbortedTransaction


def data(producer_id: int, offset: int, *, is_transactional: bool = True) -> bytes:
    return encode_batch(
        [b"%d" % offset],
        timestamps_ms=0,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=is_transactional,
        base_offset=offset,
    )


def marker(producer_id: int, offset: int, control_type: ControlType) -> bytes:
    return encode_end_txn_marker(
        EndTxnMarker(control_type, 0), timestamp_ms=0, producer_id=producer_id, producer_epoch=0, base_offset=offset
    )


ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT
LOG = [
    data(1, 0),
    data(2, 1),
    data(9, 2, is_transactional=False),
    data(1, 3),
    marker(1, 4, ABORT),
    data(1, 5),
    data(2, 6),
    marker(2, 7, ABORT),
    data(2, 8),
    marker(1, 9, COMMIT),
    data(1, 10),
    marker(2, 11, COMMIT),
    marker(1, 12, ABORT),
]
ABORTED = [AbortedTransaction(1, 0), AbortedTransaction(2, 1), AbortedTransaction(1, 10)]
LAST_OFFSETS = [4, 7, 12]
VISIBLE = [2, 5, 8]


def visible(first_offset: int, end_offset: int, aborted: list[AbortedTransaction]) -> list[int]:
    ranges = AbortedRanges(aborted)
    batches = [read_batch(batch) for batch in LOG[first_offset:end_offset]]
    return [batch.base_offset for batch in batches if not ranges.hides(batch)]


def test_aborted_records_and_markers_are_hidden_wherever_a_fetch_begins_and_ends() -> None:
    for first_offset in range(len(LOG)):
        listed = [each for each, last in zip(ABORTED, LAST_OFFSETS, strict=True) if last >= first_offset]
        for end_offset in range(first_offset, len(LOG) + 1):
            needed = [each for each in listed if each.first_offset < end_offset]
            expected = [offset for offset in VISIBLE if first_offset <= offset < end_offset]
            assert visible(first_offset, end_offset, needed) == expected
            assert visible(first_offset, end_offset, listed) == expected
            assert visible(first_offset, end_offset, listed[::-1]) == expected


def test_without_a_list_only_markers_are_hidden() -> None:
    assert visible(0, len(LOG), []) == [0, 1, 2, 3, 5, 6, 8, 10]


def test_batches_outside_of_transactions_are_never_hidden() -> None:
    ranges = AbortedRanges([AbortedTransaction(1, 0)])
    assert not ranges.hides(read_batch(data(1, 0, is_transactional=False)))


@given(st.integers(0, 1000), st.integers(1, 5000), st.integers(0, 3000))
def test_reading_goes_on_at_the_first_offset_after_the_damage(damaged: int, extent: int, rest: int) -> None:
    asked = []

    async def is_readable(offset: int) -> bool:
        asked.append(offset)
        return offset >= damaged + extent

    end = damaged + extent + rest
    assert asyncio.run(next_readable(is_readable, damaged, end)) == damaged + extent
    assert len(asked) <= 2 * extent.bit_length() + 2
    assert all(damaged < offset < end for offset in asked)
