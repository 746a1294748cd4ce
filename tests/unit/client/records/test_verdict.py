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
from warmlog.records.verdict import MAX_OFFSET, Action, Finding, Policy, decide, finding_of

UNREADABLE = UnreadableBatch("CRC", topic="t", partition=0, base_offset=50, next_offset=60)
TRUNCATED = LogTruncated("t", 0, 50, 40)
TRUNCATED_SOMEWHERE = LogTruncated("t", 0, 50, -1)
CONSUMERS = (Policy.CONSUMER_RAISES, Policy.CONSUMER_RESETS, Policy.CONSUMER_RESETS_WITHIN_TOPIC)
RANGES = (Policy.RANGE_RAISES, Policy.RANGE_SKIPS)

TABLE: list[tuple[WarmlogError, Finding, str, str]] = [
    # error, finding, what consumers do (raises, resets, resets within the topic), what ranges do (raise, skip)
    (BrokerUnavailable("down"), Finding.UNAVAILABLE, "RETRY RETRY RETRY", "RETRY RETRY"),
    (NotLeaderOrFollower("moved"), Finding.UNAVAILABLE, "RETRY RETRY RETRY", "RETRY RETRY"),
    (StorageError("disk"), Finding.UNAVAILABLE, "RETRY RETRY RETRY", "RETRY RETRY"),
    (UnknownTopicOrPartition("t-9"), Finding.UNKNOWN_PARTITION, "RETRY RETRY RETRY", "RAISE SKIP"),
    (UnknownTopicId("gone"), Finding.TOPIC_DELETED, "RAISE RETRY RAISE", "RAISE SKIP"),
    (InconsistentTopicId("new"), Finding.TOPIC_RECREATED, "RAISE RESET RAISE", "RAISE SKIP"),
    (OffsetOutOfRange("9"), Finding.OUT_OF_RANGE, "RAISE RESET RESET", "RAISE SKIP"),
    (TRUNCATED, Finding.TRUNCATED, "RAISE SKIP SKIP", "RAISE SKIP"),
    (TRUNCATED_SOMEWHERE, Finding.TRUNCATED, "RAISE RESET RESET", "RAISE SKIP"),
    (CorruptBatch("CRC"), Finding.DAMAGED, "LOCATE LOCATE LOCATE", "RAISE RAISE"),
    (UNREADABLE, Finding.UNREADABLE, "RAISE_ONCE RAISE_ONCE RAISE_ONCE", "RAISE SKIP"),
    (InvalidRequest("no"), Finding.FAILED, "RAISE RAISE RAISE", "RAISE RAISE"),
    (RemoteProtocolError("bytes"), Finding.FAILED, "RAISE RAISE RAISE", "RAISE RAISE"),
]


@pytest.mark.parametrize(("error", "finding", "consumers", "ranges"), TABLE)
def test_every_error_has_one_action_for_each_policy(
    error: WarmlogError, finding: Finding, consumers: str, ranges: str
) -> None:
    assert finding_of(error) is finding
    assert [decide(error, policy).action.name for policy in CONSUMERS] == consumers.split()
    assert [decide(error, policy).action.name for policy in RANGES] == ranges.split()


def test_the_table_has_every_finding_and_policy() -> None:
    assert {finding for _, finding, _, _ in TABLE} == set(Finding)
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


def test_a_partition_that_the_metadata_do_not_know_is_waited_for_only_by_a_consumer_that_may_change_topics() -> None:
    error = UnknownTopicOrPartition("topic 't' does not exist")
    actions = [decide(error, policy, finding=Finding.TOPIC_DELETED).action for policy in CONSUMERS]
    assert actions == [Action.RAISE, Action.RETRY, Action.RAISE]
