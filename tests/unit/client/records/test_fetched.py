"""Fetched batches: which are hidden, where damage ends, and what a reader does about what cannot be read."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

import warmlog
from warmlog.records.fetched import FetchedBatches, next_readable
from warmlog.records.verdict import MAX_OFFSET, Action, Policy, decide
from warmlog_protocol.batch import ControlType, EndTxnMarker, RecordBatch, encode_batch, encode_end_txn_marker
from warmlog_protocol.messages import AbortedTransaction, FetchedPartition


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


def visible(first_offset: int, end_offset: int, aborted: list[AbortedTransaction], log: list[bytes] = LOG) -> list[int]:
    payload = b"".join(log[first_offset:end_offset])
    fetched = FetchedPartition("t", 0, 0, "", end_offset, end_offset, 0, 0, bytes(16), len(payload), aborted)
    batches = FetchedBatches(fetched, memoryview(payload), first_offset, -1)
    assert batches.next_offset == end_offset
    found = []
    while (header := batches.next_header()) is not None:
        if not batches.is_hidden(RecordBatch(header, batches.bytes_of(header))):
            found.append(header.base_offset)
        batches.position += header.size_bytes
    return found


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
    assert visible(0, 1, [AbortedTransaction(1, 0)], [data(1, 0, is_transactional=False)]) == [0]


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


UNREADABLE = warmlog.UnreadableBatch("CRC", topic="t", partition=0, base_offset=50, next_offset=60)
TRUNCATED = warmlog.LogTruncated("t", 0, 50, 40)
TRUNCATED_SOMEWHERE = warmlog.LogTruncated("t", 0, 50, -1)
CONSUMERS = (Policy.CONSUMER_RAISES, Policy.CONSUMER_RESETS, Policy.CONSUMER_RESETS_WITHIN_TOPIC)
RANGES = (Policy.RANGE_RAISES, Policy.RANGE_SKIPS)

TABLE: list[tuple[warmlog.WarmlogError, str, str]] = [
    # error, what consumers do (raises, resets, resets within the topic), what ranges do (raise, skip)
    (warmlog.BrokerUnavailable("down"), "RETRY RETRY RETRY", "RETRY RETRY"),
    (warmlog.NotLeaderOrFollower("moved"), "RETRY RETRY RETRY", "RETRY RETRY"),
    (warmlog.StorageError("disk"), "RETRY RETRY RETRY", "RETRY RETRY"),
    (warmlog.UnknownTopicOrPartition("t-9"), "RETRY RETRY RETRY", "RAISE SKIP"),
    (warmlog.UnknownTopicId("gone"), "RAISE RETRY RAISE", "RAISE SKIP"),
    (warmlog.InconsistentTopicId("new"), "RAISE RESET RAISE", "RAISE SKIP"),
    (warmlog.OffsetOutOfRange("9"), "RAISE RESET RESET", "RAISE SKIP"),
    (TRUNCATED, "RAISE SKIP SKIP", "RAISE SKIP"),
    (TRUNCATED_SOMEWHERE, "RAISE RESET RESET", "RAISE SKIP"),
    (warmlog.CorruptBatch("CRC"), "LOCATE LOCATE LOCATE", "RAISE RAISE"),
    (UNREADABLE, "RAISE_ONCE RAISE_ONCE RAISE_ONCE", "RAISE SKIP"),
    (warmlog.InvalidRequest("no"), "RAISE RAISE RAISE", "RAISE RAISE"),
    (warmlog.RemoteProtocolError("bytes"), "RAISE RAISE RAISE", "RAISE RAISE"),
]


@pytest.mark.parametrize(("error", "consumers", "ranges"), TABLE)
def test_every_error_has_one_action_for_each_policy(error: warmlog.WarmlogError, consumers: str, ranges: str) -> None:
    assert [decide(error, policy).action.name for policy in CONSUMERS] == consumers.split()
    assert [decide(error, policy).action.name for policy in RANGES] == ranges.split()


def test_the_table_has_every_action_and_policy() -> None:
    assert {name for _, consumers, ranges in TABLE for name in f"{consumers} {ranges}".split()} == set(
        Action.__members__
    )
    assert {*CONSUMERS, *RANGES} == set(Policy)


@pytest.mark.parametrize(
    ("error", "policy", "log_start_offset", "next_offset"),
    [
        (UNREADABLE, Policy.CONSUMER_RAISES, -1, 60),
        (UNREADABLE, Policy.CONSUMER_RESETS_WITHIN_TOPIC, -1, 60),
        (UNREADABLE, Policy.RANGE_SKIPS, -1, 55),
        (TRUNCATED, Policy.CONSUMER_RESETS, -1, 40),
        (TRUNCATED, Policy.RANGE_SKIPS, -1, 55),
        (TRUNCATED_SOMEWHERE, Policy.RANGE_SKIPS, -1, 55),
        (warmlog.UnknownTopicId("gone"), Policy.RANGE_SKIPS, -1, 55),
        (warmlog.OffsetOutOfRange("removed"), Policy.RANGE_SKIPS, 52, 52),
        (warmlog.OffsetOutOfRange("removed"), Policy.RANGE_SKIPS, 99, 55),
        (warmlog.OffsetOutOfRange("after the end"), Policy.RANGE_SKIPS, 7, 55),
    ],
)
def test_reading_continues_after_what_is_lost_and_not_beyond_the_end_of_a_range(
    error: warmlog.WarmlogError, policy: Policy, log_start_offset: int, next_offset: int
) -> None:
    end = 55 if policy in RANGES else MAX_OFFSET
    verdict = decide(error, policy, position=50, end=end, log_start_offset=log_start_offset)
    assert verdict.next_offset == next_offset
