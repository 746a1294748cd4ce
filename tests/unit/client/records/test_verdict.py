"""What a reader does about a partition that it cannot read: every finding under every policy."""

import pytest

from warmlog.errors import (
    BrokerUnavailable,
    CorruptBatch,
    InconsistentTopicId,
    InvalidRequest,
    LogTruncated,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RemoteProtocolError,
    StorageError,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnreadableBatch,
    WarmlogError,
)
from warmlog.records.verdict import MAX_OFFSET, Action, Policy, decide

UNREADABLE = UnreadableBatch("CRC", topic="t", partition=0, base_offset=50, next_offset=60)
TRUNCATED = LogTruncated("t", 0, 50, 40)
TRUNCATED_SOMEWHERE = LogTruncated("t", 0, 50, -1)
CONSUMERS = (Policy.CONSUMER_RAISES, Policy.CONSUMER_RESETS, Policy.CONSUMER_RESETS_WITHIN_TOPIC)
RANGES = (Policy.RANGE_RAISES, Policy.RANGE_SKIPS)

TABLE: list[tuple[WarmlogError, str, str]] = [
    # error, what consumers do (raises, resets, resets within the topic), what ranges do (raise, skip)
    (BrokerUnavailable("down"), "RETRY RETRY RETRY", "RETRY RETRY"),
    (NotLeaderOrFollower("moved"), "RETRY RETRY RETRY", "RETRY RETRY"),
    (StorageError("disk"), "RETRY RETRY RETRY", "RETRY RETRY"),
    (UnknownTopicOrPartition("t-9"), "RETRY RETRY RETRY", "RAISE SKIP"),
    (UnknownTopicId("gone"), "RAISE RETRY RAISE", "RAISE SKIP"),
    (InconsistentTopicId("new"), "RAISE RESET RAISE", "RAISE SKIP"),
    (OffsetOutOfRange("9"), "RAISE RESET RESET", "RAISE SKIP"),
    (TRUNCATED, "RAISE SKIP SKIP", "RAISE SKIP"),
    (TRUNCATED_SOMEWHERE, "RAISE RESET RESET", "RAISE SKIP"),
    (CorruptBatch("CRC"), "LOCATE LOCATE LOCATE", "RAISE RAISE"),
    (UNREADABLE, "RAISE_ONCE RAISE_ONCE RAISE_ONCE", "RAISE SKIP"),
    (InvalidRequest("no"), "RAISE RAISE RAISE", "RAISE RAISE"),
    (RemoteProtocolError("bytes"), "RAISE RAISE RAISE", "RAISE RAISE"),
]


@pytest.mark.parametrize(("error", "consumers", "ranges"), TABLE)
def test_every_error_has_one_action_for_each_policy(error: WarmlogError, consumers: str, ranges: str) -> None:
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
        (UnknownTopicId("gone"), Policy.RANGE_SKIPS, -1, 55),
        (OffsetOutOfRange("removed"), Policy.RANGE_SKIPS, 52, 52),
        (OffsetOutOfRange("removed"), Policy.RANGE_SKIPS, 99, 55),
        (OffsetOutOfRange("after the end"), Policy.RANGE_SKIPS, 7, 55),
    ],
)
def test_reading_continues_after_what_is_lost_and_not_beyond_the_end_of_a_range(
    error: WarmlogError, policy: Policy, log_start_offset: int, next_offset: int
) -> None:
    end = 55 if policy in RANGES else MAX_OFFSET
    verdict = decide(error, policy, position=50, end=end, log_start_offset=log_start_offset)
    assert verdict.next_offset == next_offset
