"""Decides which requests of a connection start or wait, and in which order responses are sent. Pure: no socket, no
clock, no task.

`ALLOWS` says what each state of a connection allows, `TRANSITIONS` which state follows an event; an event that is not
in the table changes nothing.

=========== =========================== ================= =================================== ==================
state       input                       requests start    responses                           ends
=========== =========================== ================= =================================== ==================
OPEN        requests                    yes               are sent                            by an event
DRAINING    nothing: it has sent EOF    those received    are sent                            when all is sent
STOPPING    is not read                 no                are sent                            when all is sent
TURNED_AWAY its first request           no                the reason why it is not served     by an event
DISCARDING  is discarded                no                are dropped, after a last error     after a while
CLOSED      nothing                     no                are dropped                         it has ended
=========== =========================== ================= =================================== ==================

If the state allows it, requests start in the order in which they were received, until

- one holds the following ones back: a request of an API that is not pipelined, until it has ended, or a Produce whose
  batches are appended in turns, until the last is appended (`hold`, `release`);
- `Life.max_in_flight` are in flight;
- too much is queued to be sent (`is_congested`).

The socket is read if the next request could start at once.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

from warmlog_broker.network.request import Life, StartedRequest


class State(Enum):
    """See the table in the module's docstring."""

    OPEN = auto()
    DRAINING = auto()
    STOPPING = auto()
    TURNED_AWAY = auto()
    DISCARDING = auto()
    CLOSED = auto()


class Event(Enum):
    """An event that may change the state of a connection."""

    PEER_EOF = auto()
    """The peer has closed its sending side. It may still read."""
    STOP = auto()
    """The broker is stopping."""
    REFUSAL = auto()
    """The broker ends the connection. The peer may be told why."""
    LOSS = auto()
    """The connection is closed."""


class Allows(NamedTuple):
    reading: bool = False
    """Input is parsed."""
    starting: bool = False
    responding: bool = False
    ending: bool = False
    """The connection is closed as soon as no request is in flight and everything was sent."""


ALLOWS = {
    State.OPEN: Allows(reading=True, starting=True, responding=True),
    State.DRAINING: Allows(starting=True, responding=True, ending=True),
    State.STOPPING: Allows(responding=True, ending=True),
    State.TURNED_AWAY: Allows(reading=True),
    State.DISCARDING: Allows(),
    State.CLOSED: Allows(),
}

TRANSITIONS = {
    (State.OPEN, Event.PEER_EOF): State.DRAINING,
    (State.OPEN, Event.STOP): State.STOPPING,
    (State.OPEN, Event.REFUSAL): State.DISCARDING,
    (State.OPEN, Event.LOSS): State.CLOSED,
    (State.DRAINING, Event.STOP): State.STOPPING,
    (State.DRAINING, Event.REFUSAL): State.DISCARDING,
    (State.DRAINING, Event.LOSS): State.CLOSED,
    (State.STOPPING, Event.REFUSAL): State.DISCARDING,
    (State.STOPPING, Event.LOSS): State.CLOSED,
    (State.TURNED_AWAY, Event.REFUSAL): State.DISCARDING,
    (State.TURNED_AWAY, Event.LOSS): State.CLOSED,
    (State.DISCARDING, Event.LOSS): State.CLOSED,
}


R = TypeVar("R")
P = TypeVar("P")


class RequestScheduler(Generic[R, P]):
    """The requests of one connection (R), and their responses as they are sent (P)."""

    def __init__(
        self,
        *,
        life: Life,
        keeps_order: bool,
        is_congested: Callable[[], bool],
        begin: Callable[[R], StartedRequest],
    ) -> None:
        """`keeps_order`: responses are sent in the order of requests, which stay in flight until then."""
        self.state = State.OPEN
        self.allows = ALLOWS[State.OPEN]
        self.in_flight = 0
        self.holder: StartedRequest | None = None
        """The request that holds the following ones back."""
        self._life = life
        self._is_congested = is_congested
        self._begin = begin
        self._backlog: deque[R] = deque()
        self._keeps_order = keeps_order
        self._in_order: deque[StartedRequest] = deque()
        """The requests in flight; only if order is kept."""
        self._ended: dict[StartedRequest, P | None] = {}
        """Those of them that have ended, and their responses."""

    @property
    def waiting(self) -> Iterable[P]:
        """The responses that wait for their turn."""
        return [response for response in self._ended.values() if response is not None]

    @property
    def has_backlog(self) -> bool:
        """Whether requests were received that have not started."""
        return bool(self._backlog)

    @property
    def may_read(self) -> bool:
        """Whether the next request could start as soon as it is received."""
        return (
            self.allows.reading
            and not self._backlog
            and self.holder is None
            and self.in_flight < self._life.max_in_flight
            and not self._is_congested()
        )

    @property
    def is_done(self) -> bool:
        """Whether the connection can be closed once all responses are sent."""
        return self.allows.ending and not self.in_flight and not self._backlog

    def on(self, event: Event) -> None:
        """Change the state. Requests that can never start are dropped."""
        self.state = TRANSITIONS.get((self.state, event), self.state)
        self.allows = ALLOWS[self.state]
        if not self.allows.starting:
            self._backlog.clear()

    def turn_away(self) -> None:
        """Note that the connection, which is new, cannot be served."""
        self.state, self.allows = State.TURNED_AWAY, ALLOWS[State.TURNED_AWAY]

    def received(self, requests: Iterable[R]) -> None:
        """Queue `requests` in the order in which they were received."""
        if self.allows.starting:
            self._backlog.extend(requests)

    def start_next(self) -> tuple[R, StartedRequest] | None:
        """Return the next request if it may start now; it is in flight until `end`."""
        if (
            not self._backlog
            or self.holder is not None
            or self.in_flight >= self._life.max_in_flight
            or self._is_congested()
        ):
            return None
        request = self._backlog.popleft()
        started = self._begin(request)
        self.in_flight += 1
        if self._keeps_order:
            self._in_order.append(started)
        return request, started

    def hold(self, started: StartedRequest) -> None:
        """Start no further request before `release` or `end` of this one."""
        assert self.holder in (None, started)
        self.holder = started

    def release(self, started: StartedRequest) -> bool:
        """Stop holding back requests for `started`; return whether it did hold them back."""
        if self.holder is not started:
            return False
        self.holder = None
        return True

    def end(self, started: StartedRequest, response: P | None) -> Sequence[P]:
        """End the request, with None for no response. Return the responses to be sent now."""
        started.is_over = True
        if self.holder is started:
            self.holder = None
        if not self._keeps_order:
            self.in_flight -= 1
            return (response,) if response is not None and self.allows.responding else ()
        self._ended[started] = response
        ready = []
        while self._in_order and self._in_order[0] in self._ended:
            self.in_flight -= 1
            response = self._ended.pop(self._in_order.popleft())
            if response is not None and self.allows.responding:
                ready.append(response)
        return ready
