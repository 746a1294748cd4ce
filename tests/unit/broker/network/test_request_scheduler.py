"""When requests start, and in which order responses leave: states against events, and a model."""

import math
from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from warmlog_broker.network.request import Endpoint, Life, StartedRequest
from warmlog_broker.network.request_scheduler import Event, RequestScheduler, State

OPEN, DRAINING, STOPPING = State.OPEN, State.DRAINING, State.STOPPING
TURNED_AWAY, DISCARDING, CLOSED = State.TURNED_AWAY, State.DISCARDING, State.CLOSED
MAX_IN_FLIGHT = 3


ENDPOINT = Endpoint("Fetch", lambda _context, _message: None)


def begin(number: int) -> StartedRequest:
    return StartedRequest(ENDPOINT, number)


class Room:
    """A scheduler whose peer takes all responses, or none."""

    def __init__(self, state: State = OPEN, *, keeps_order: bool = False, max_in_flight: int = MAX_IN_FLIGHT) -> None:
        self.is_congested = False
        self.life = Life(max_in_flight=max_in_flight)
        self.scheduler: RequestScheduler[int, str] = RequestScheduler(
            life=self.life, keeps_order=keeps_order, is_congested=lambda: self.is_congested, begin=begin
        )
        self.started: list[StartedRequest] = []
        for event in WAY_TO[state]:
            self.scheduler.on(event)
        if state is TURNED_AWAY:
            self.scheduler.turn_away()

    def start_all(self) -> list[int]:
        """The numbers of the requests that start now."""
        numbers = []
        while (found := self.scheduler.start_next()) is not None:
            self.started.append(found[1])
            numbers.append(found[0])
        return numbers

    def receive(self, *numbers: int) -> list[int]:
        self.scheduler.received(numbers)
        return self.start_all()

    def end(self, number: int, response: str | None = "") -> list[str]:
        started = next(each for each in self.started if each.correlation_id == number)
        return list(self.scheduler.end(started, f"response {number}" if response == "" else response))


WAY_TO: dict[State, list[Event]] = {
    OPEN: [],
    DRAINING: [Event.PEER_EOF],
    STOPPING: [Event.STOP],
    TURNED_AWAY: [],
    DISCARDING: [Event.REFUSAL],
    CLOSED: [Event.LOSS],
}


@pytest.mark.parametrize(
    ("before", "after_eof", "after_stop", "after_refusal", "after_loss"),
    [
        (OPEN, DRAINING, STOPPING, DISCARDING, CLOSED),
        (DRAINING, DRAINING, STOPPING, DISCARDING, CLOSED),
        (STOPPING, STOPPING, STOPPING, DISCARDING, CLOSED),
        (TURNED_AWAY, TURNED_AWAY, TURNED_AWAY, DISCARDING, CLOSED),
        (DISCARDING, DISCARDING, DISCARDING, DISCARDING, CLOSED),
        (CLOSED, CLOSED, CLOSED, CLOSED, CLOSED),
    ],
)
def test_what_each_event_leads_to(
    before: State, after_eof: State, after_stop: State, after_refusal: State, after_loss: State
) -> None:
    expected = dict(zip(Event, (after_eof, after_stop, after_refusal, after_loss), strict=True))
    for event, after in expected.items():
        scheduler = Room(before).scheduler
        assert scheduler.state is before
        scheduler.on(event)
        assert scheduler.state is after, event


def test_a_peer_that_turns_out_to_be_a_broker_waits_for_no_response() -> None:
    room = Room(max_in_flight=1)
    assert room.receive(1, 2, 3) == [1]
    room.life.max_in_flight = math.inf
    assert room.start_all() == [2, 3]
    assert room.scheduler.may_read


@pytest.mark.parametrize(
    ("state", "reads", "starts_received", "responds", "is_done"),
    [
        (OPEN, True, True, True, False),
        (DRAINING, False, True, True, True),
        (STOPPING, False, False, True, True),
        (DISCARDING, False, False, False, False),
        (CLOSED, False, False, False, False),
    ],
)
def test_what_each_state_allows(
    state: State, reads: bool, starts_received: bool, responds: bool, is_done: bool
) -> None:
    room = Room(max_in_flight=1)
    assert room.receive(1, 2) == [1]
    for event in WAY_TO[state]:
        room.scheduler.on(event)
    assert not room.scheduler.is_done
    assert not room.scheduler.may_read
    assert room.end(1) == (["response 1"] if responds else [])
    assert room.start_all() == ([2] if starts_received else [])
    if starts_received:
        room.end(2)
    assert room.scheduler.may_read is reads
    assert room.scheduler.is_done is is_done
    assert room.scheduler.in_flight == 0


def test_who_is_turned_away_is_read_and_nothing_starts() -> None:
    room = Room(TURNED_AWAY)
    assert room.receive(1) == []
    assert room.scheduler.may_read
    assert not room.scheduler.is_done


def test_nothing_starts_after_one_that_holds_until_it_is_released_or_has_ended() -> None:
    room = Room()
    room.receive(1, 2)
    room.scheduler.hold(room.started[1])
    assert room.receive(3) == []
    assert not room.scheduler.may_read
    room.end(1)
    assert room.start_all() == []
    assert room.scheduler.release(room.started[1])
    assert not room.scheduler.release(room.started[1])
    assert room.start_all() == [3]
    room.scheduler.hold(room.started[2])
    room.scheduler.hold(room.started[2])
    assert room.receive(4) == []
    room.end(3)
    assert room.start_all() == [4]


class SchedulerModel(RuleBasedStateMachine):
    """The scheduler against plain lists."""

    keeps_order = False

    def __init__(self) -> None:
        super().__init__()
        self.room = Room(keeps_order=self.keeps_order)
        self.next_number = 0
        self.waiting: deque[int] = deque()
        self.running: list[int] = []
        self.unsent: list[int] = []
        self.ended: dict[int, bool] = {}
        self.holder: int | None = None

    @property
    def in_flight(self) -> int:
        return len(self.unsent) if self.keeps_order else len(self.running)

    @rule(count=st.integers(1, 4))
    def receive(self, count: int) -> None:
        numbers = list(range(self.next_number, self.next_number + count))
        self.next_number += count
        if self.room.scheduler.state in (OPEN, DRAINING):
            self.waiting.extend(numbers)
        self.room.scheduler.received(numbers)
        self.start_all()

    @rule()
    def start_all(self) -> None:
        expected = []
        while self.waiting and self.holder is None and not self.room.is_congested and self.in_flight < MAX_IN_FLIGHT:
            expected.append(self.waiting.popleft())
            self.running.append(expected[-1])
            self.unsent.append(expected[-1])
        assert self.room.start_all() == expected

    @precondition(lambda self: self.holder is None and self.running)
    @rule()
    def hold(self) -> None:
        self.holder = self.running[-1]
        self.room.scheduler.hold(next(s for s in self.room.started if s.correlation_id == self.holder))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), has_response=st.booleans())
    def end(self, data: st.DataObject, has_response: bool) -> None:
        number = data.draw(st.sampled_from(self.running))
        self.running.remove(number)
        if number == self.holder:
            self.holder = None
        self.ended[number] = has_response
        ready = [number]
        if self.keeps_order:
            ready = []
            while self.unsent and self.unsent[0] in self.ended:
                ready.append(self.unsent.pop(0))
        responds = self.room.scheduler.state in (OPEN, DRAINING, STOPPING)
        expected = [f"response {each}" for each in ready if self.ended[each] and responds]
        assert self.room.end(number, "" if has_response else None) == expected
        waiting = [f"response {each}" for each in self.unsent if self.ended.get(each)] if self.keeps_order else []
        assert sorted(self.room.scheduler.waiting) == sorted(waiting)

    @rule(is_congested=st.booleans())
    def congest(self, is_congested: bool) -> None:
        self.room.is_congested = is_congested

    @rule(event=st.sampled_from(Event))
    def happen(self, event: Event) -> None:
        self.room.scheduler.on(event)
        if self.room.scheduler.state not in (OPEN, DRAINING):
            self.waiting.clear()

    @invariant()
    def agrees_with_the_model(self) -> None:
        scheduler = self.room.scheduler
        is_idle = not self.waiting and not self.in_flight
        assert scheduler.in_flight == self.in_flight <= MAX_IN_FLIGHT
        assert scheduler.has_backlog == bool(self.waiting)
        assert scheduler.is_done == (scheduler.state in (DRAINING, STOPPING) and is_idle)
        has_room = self.holder is None and not self.room.is_congested and self.in_flight < MAX_IN_FLIGHT
        assert scheduler.may_read == (scheduler.state is OPEN and not self.waiting and has_room)


class OrderedSchedulerModel(SchedulerModel):
    keeps_order = True


TestSchedulerModel = SchedulerModel.TestCase
TestSchedulerModel.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestOrderedSchedulerModel = OrderedSchedulerModel.TestCase
TestOrderedSchedulerModel.settings = TestSchedulerModel.settings
