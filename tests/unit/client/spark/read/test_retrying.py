"""How often and for how long planning is retried, by a clock that only sleeping moves."""

from collections.abc import Callable, Iterator

import pytest

from warmlog.errors import (
    BrokerUnavailable,
    InconsistentTopicId,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownTopicId,
    UnknownTopicOrPartition,
    WarmlogError,
)
from warmlog.spark.read import planning
from warmlog.spark.read.planning import retrying


class FakeTime:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pauses_ms: list[int] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s
        self.pauses_ms.append(round(pause_s * 1000))


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(planning, "time", fake)
    return fake


def failing(error: WarmlogError, times: int) -> Callable[[], str]:
    errors: Iterator[WarmlogError] = iter([error] * times)

    def question() -> str:
        for each in errors:
            raise each
        return "answer"

    return question


@pytest.mark.parametrize("error", [BrokerUnavailable("away"), NotLeaderOrFollower("moved")])
def test_what_may_pass_is_asked_again_so_many_times(time: FakeTime, error: WarmlogError) -> None:
    assert retrying(failing(error, 3), retries=3, interval_ms=200) == "answer"
    assert len(time.pauses_ms) == 3
    with pytest.raises(type(error)):
        retrying(failing(error, 4), retries=3, interval_ms=200)
    assert len(time.pauses_ms) == 6
    assert all(160 <= pause_ms <= 240 for pause_ms in time.pauses_ms)
    with pytest.raises(type(error)):
        retrying(failing(error, 1), retries=0, interval_ms=200)


@pytest.mark.parametrize(
    "error",
    [
        UnknownTopicOrPartition("none"),
        UnknownTopicId("none"),
        InconsistentTopicId("another"),
        OffsetOutOfRange("lost"),
        ValueError("wrong"),
    ],
)
def test_what_does_not_pass_is_raised_at_once(time: FakeTime, error: WarmlogError) -> None:
    with pytest.raises(type(error)):
        retrying(failing(error, 1), retries=3, interval_ms=200, patience_s=60)
    assert time.pauses_ms == []


def test_the_longer_of_retries_and_patience_decides(time: FakeTime) -> None:
    away = BrokerUnavailable("away")
    assert retrying(failing(away, 8), retries=3, interval_ms=200, patience_s=2.1) == "answer"
    with pytest.raises(BrokerUnavailable):
        retrying(failing(away, 15), retries=3, interval_ms=200, patience_s=2.1)
    time.pauses_ms.clear()
    assert retrying(failing(away, 20), retries=20, interval_ms=200, patience_s=2.1) == "answer"
    assert len(time.pauses_ms) == 20


def test_plans_that_failed_at_the_same_time_are_not_retried_at_the_same_time(time: FakeTime) -> None:
    retrying(failing(BrokerUnavailable("away"), 30), retries=30, interval_ms=1_000)
    assert len(set(time.pauses_ms)) > 10
    assert 800 <= min(time.pauses_ms) < 950
    assert 1_050 < max(time.pauses_ms) <= 1_200
