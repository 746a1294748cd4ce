"""Timers: called once, not before their time, and not after they were cancelled."""

import logging

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from warmlog_broker.runtime.timer_wheel import Timer, TimerWheel

TICK_S = 0.25


def test_a_timer_is_called_once_and_never_early() -> None:
    wheel, calls = TimerWheel(TICK_S), []
    timer = wheel.schedule(1.1, lambda: calls.append("due"))
    wheel.advance(1.0)
    wheel.advance(1.1)
    assert (calls, timer.is_scheduled) == ([], True)
    wheel.advance(1.25)
    wheel.advance(9.0)
    assert (calls, timer.is_scheduled, len(wheel)) == (["due"], False, 0)


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
