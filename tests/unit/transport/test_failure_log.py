"""What of repeated failures is told, and when; the pauses between attempts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.errors import BrokerUnavailable, DiskFull, NotLeaderOrFollower, StorageError
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.retries import GRACE_S, TELL_AGAIN_S, FailureLog, backoff_ms, pause_after_s

PARTITION = ("t", 0)
START_S = 1000.0

OFFLINE = StorageError("t-0 is offline")


@pytest.fixture
def log() -> FailureLog:
    """Of a partition that began to fail at START_S."""
    log = FailureLog()
    assert not log.is_news(PARTITION, OFFLINE, START_S)
    return log


def test_what_passes_within_the_grace_is_not_told(log: FailureLog) -> None:
    assert not log.is_news(PARTITION, OFFLINE, START_S + GRACE_S * 0.9)
    log.worked(PARTITION)
    assert not log.is_news(PARTITION, OFFLINE, START_S + GRACE_S * 2)
    assert log.is_news(PARTITION, OFFLINE, START_S + GRACE_S * 3)


def test_what_lasts_is_told_once_however_long_it_lasts(log: FailureLog) -> None:
    told = [second for second in range(1, 3600) if log.is_news(PARTITION, OFFLINE, START_S + GRACE_S * second)]
    assert told == [1]


def test_the_same_cause_in_other_words_is_not_told_again(log: FailureLog) -> None:
    assert log.is_news(PARTITION, DiskFull("5 bytes free"), START_S + GRACE_S)
    assert not log.is_news(PARTITION, DiskFull("4 bytes free"), START_S + GRACE_S + 2 * TELL_AGAIN_S)


def test_another_cause_is_told_but_not_before_the_pause_is_over(log: FailureLog) -> None:
    told_at_s = START_S + GRACE_S
    assert log.is_news(PARTITION, OFFLINE, told_at_s)
    other = NotLeaderOrFollower("t-0 has no leader now")
    assert not log.is_news(PARTITION, other, told_at_s + TELL_AGAIN_S - 0.1)
    assert log.is_news(PARTITION, other, told_at_s + TELL_AGAIN_S)
    assert not log.is_news(PARTITION, other, told_at_s + TELL_AGAIN_S + 0.1)


def test_what_fails_again_after_it_had_worked_is_told_again_but_not_before_the_pause_is_over(log: FailureLog) -> None:
    told_at_s = START_S + GRACE_S
    assert log.is_news(PARTITION, OFFLINE, told_at_s)
    log.worked(PARTITION)
    assert not log.is_news(PARTITION, OFFLINE, told_at_s + 5)
    assert not log.is_news(PARTITION, OFFLINE, told_at_s + 5 + GRACE_S)
    assert log.is_news(PARTITION, OFFLINE, told_at_s + TELL_AGAIN_S)


def test_each_partition_is_told_of(log: FailureLog) -> None:
    assert log.is_news(PARTITION, OFFLINE, START_S + GRACE_S)
    other = ("t", 1)
    assert not log.is_news(other, OFFLINE, START_S + GRACE_S)
    assert log.is_news(other, OFFLINE, START_S + GRACE_S * 2)


def test_a_lost_connection_is_no_trouble_of_the_partition(log: FailureLog) -> None:
    assert not log.is_news(PARTITION, BrokerUnavailable("connection refused"), START_S + GRACE_S)


OPTIONS = ConnectionOptions(retry_backoff_ms=50, retry_backoff_max_ms=1000)


def test_pauses_double_up_to_the_bound() -> None:
    assert [backoff_ms(failures, OPTIONS, 0.5) for failures in range(8)] == [0, 50, 100, 200, 400, 800, 1000, 1000]


@given(st.integers(min_value=0, max_value=10**6), st.floats(min_value=0, max_value=1, exclude_max=True))
def test_jitter_moves_a_pause_by_a_fifth_at_most(failures: int, jitter: float) -> None:
    middle = backoff_ms(failures, OPTIONS, 0.5)
    assert 0.79 * middle <= backoff_ms(failures, OPTIONS, jitter) <= 1.21 * middle


def test_pauses_do_not_grow_while_the_leader_moves() -> None:
    assert pause_after_s(NotLeaderOrFollower("moved"), 6, OPTIONS) <= 0.06
    assert pause_after_s(StorageError("offline"), 6, OPTIONS) >= 0.8
