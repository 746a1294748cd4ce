"""Timers, counters and lines of the log: pure, on a clock that the test moves."""

import logging

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from warmlog_broker.runtime.counters import Counters, Histogram
from warmlog_broker.runtime.rate_limited_log import MOST_PEERS, RepeatedLines
from warmlog_broker.runtime.timer_wheel import Timer, TimerWheel

TICK_S = 0.25


def test_timers_are_called_in_the_order_of_their_ticks() -> None:
    wheel, calls = TimerWheel(TICK_S), []
    for due_s in (3.0, 1.0, 2.0, 1.0):
        wheel.schedule(due_s, lambda due_s=due_s: calls.append(due_s))
    wheel.advance(5.0)
    assert calls == [1.0, 1.0, 2.0, 3.0]


def test_one_that_is_cancelled_by_another_of_its_tick_is_not_called() -> None:
    wheel, calls = TimerWheel(TICK_S), []
    wheel.schedule(1.0, lambda: timers.pop().cancel())
    timers = [wheel.schedule(1.0, lambda: calls.append("second"))]
    wheel.advance(1.0)
    assert calls == []


def test_one_that_is_scheduled_by_another_waits_for_the_next_advance() -> None:
    wheel, calls = TimerWheel(TICK_S), []

    def again() -> None:
        calls.append(len(calls))
        wheel.schedule(1.0, again)

    again()
    wheel.advance(1.0)
    assert calls == [0, 1]
    wheel.advance(1.0)
    assert calls == [0, 1, 2]


def test_an_action_that_raises_takes_nothing_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    wheel, calls = TimerWheel(TICK_S), []
    wheel.schedule(1.0, lambda: calls.remove("nothing"))
    wheel.schedule(1.0, lambda: calls.append("called"))
    with caplog.at_level(logging.ERROR):
        wheel.advance(1.0)
    assert calls == ["called"]
    assert "a timer failed: a bug" in caplog.text


class WheelModel(RuleBasedStateMachine):
    """The wheel against a dict of deadlines, on a clock of whole milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.wheel = TimerWheel(TICK_S)
        self.now_ms = 0
        self.timers: list[Timer] = []
        self.due_ms: dict[int, int] = {}
        self.called: list[int] = []

    @rule(delay_ms=st.integers(-300, 3000))
    def schedule(self, delay_ms: int) -> None:
        number = len(self.timers)
        self.due_ms[number] = self.now_ms + delay_ms
        self.timers.append(self.wheel.schedule(self.due_ms[number] / 1000, lambda: self.called.append(number)))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.timers:
            number = data.draw(st.integers(0, len(self.timers) - 1))
            self.timers[number].cancel()
            self.due_ms.pop(number, None)

    @rule(elapsed_ms=st.integers(0, 2000))
    def advance(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        self.called.clear()
        self.wheel.advance(self.now_ms / 1000)
        must_ms, may_ms = self.now_ms - TICK_S * 1000, self.now_ms
        must = {number for number, due_ms in self.due_ms.items() if due_ms <= must_ms}
        may = {number for number, due_ms in self.due_ms.items() if due_ms <= may_ms}
        assert must <= set(self.called) <= may
        assert len(set(self.called)) == len(self.called)
        for number in self.called:
            del self.due_ms[number]

    @invariant()
    def knows_what_is_scheduled(self) -> None:
        assert len(self.wheel) == len(self.due_ms)
        assert {number for number, timer in enumerate(self.timers) if timer.is_scheduled} == self.due_ms.keys()


TestWheelModel = WheelModel.TestCase
TestWheelModel.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


# Counters


def test_a_value_belongs_to_the_first_interval_whose_bound_is_not_below_it() -> None:
    histogram = Histogram((1, 2, 4))
    for value in (0.5, 1, 1.5, 4, 4.5, 100):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1, 2]
    assert histogram.total == 111.5


def test_counters_of_topics_that_are_gone_are_dropped() -> None:
    counters = Counters()
    for topic in ("kept", "gone"):
        counters.appended_records[topic] += 1
        counters.fetched_bytes[topic] += 1
    counters.forget_topic("gone")
    counters.forget_topic("never counted")
    assert counters.appended_records == counters.fetched_bytes == {"kept": 1}


# Lines that peers bring about: some as they are, the rest counted


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> RepeatedLines:
    caplog.set_level(logging.INFO)
    return RepeatedLines(logging.getLogger("repeated"), lines=3, period_s=10.0)


def test_the_first_are_written_as_they_are_and_the_rest_is_summed_up(
    lines: RepeatedLines, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1000):
        lines.write(logging.INFO, "closed", f"connection {number} closed", 100.0 + number / 1000)
    assert caplog.messages == [f"connection {number} closed" for number in range(3)]
    lines.tick(109.0)
    assert len(caplog.messages) == 3
    lines.tick(110.0)
    assert caplog.messages[3:] == ["closed: 997 more in 10 s, the last: connection 999 closed"]
    lines.tick(130.0)
    assert len(caplog.messages) == 4


def test_each_kind_has_lines_of_its_own_and_a_new_period_has_new_ones(
    lines: RepeatedLines, caplog: pytest.LogCaptureFixture
) -> None:
    for now_s in (0.0, 20.0):
        for _ in range(3):
            lines.write(logging.INFO, "closed", "one", now_s)
            lines.write(logging.WARNING, "refused", "another", now_s)
        lines.tick(now_s + 10)
    assert caplog.messages.count("one") == caplog.messages.count("another") == 6
    assert len(caplog.messages) == 12
    assert {record.levelname for record in caplog.records} == {"INFO", "WARNING"}


def test_what_was_counted_is_said_at_the_end(lines: RepeatedLines, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        lines.write(logging.INFO, "closed", "100% closed", 0.0)
    lines.finish(2.0)
    assert caplog.messages[-1] == "closed: 2 more in 2 s, the last: 100% closed"


def test_one_line_a_minute_is_written_of_each_peer(lines: RepeatedLines, caplog: pytest.LogCaptureFixture) -> None:
    for second in range(100):
        for host in ("10.0.0.1", "10.0.0.2"):
            lines.write_of_peer(logging.INFO, "strangers", host, f"{host} at {second}", float(second))
        lines.tick(float(second))
    assert caplog.messages == [
        "10.0.0.1 at 0",
        "10.0.0.2 at 0",
        "strangers from 10.0.0.1: 60 more in 60 s, the last: 10.0.0.1 at 60",
        "strangers from 10.0.0.2: 60 more in 60 s, the last: 10.0.0.2 at 60",
        "10.0.0.1 at 61",
        "10.0.0.2 at 61",
    ]


def test_the_memory_for_peers_is_bounded(lines: RepeatedLines, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(MOST_PEERS + 100):
        lines.write_of_peer(logging.INFO, "strangers", f"peer {number}", "seen", 0.0)
    assert len(caplog.messages) == MOST_PEERS + 1
    lines.finish(1.0)
    assert caplog.messages[-1] == "strangers from others: 99 more in 1 s, the last: seen"
