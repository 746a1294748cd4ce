"""Which requests of one connection start, which wait, and in which order their responses leave. Pure: no socket, no
clock, no task.

The life of a connection is a state. What each state allows is `ALLOWS`, what each event leads to `TRANSITIONS`; an
event that is not in the table changes nothing.

=========== =========================== ================= =================================== ==================
state       what the peer sends         requests start    responses                           ends
=========== =========================== ================= =================================== ==================
OPEN        requests                    yes               are sent                            by an event
DRAINING    nothing: it has sent EOF    those received    are sent                            when all is sent
STOPPING    is not read                 no                are sent                            when all is sent
TURNED_AWAY its first request           no                the reason why it is not served     by an event
DISCARDING  is thrown away              no                are dropped, after a last error     after a while
CLOSED      nothing                     no                are dropped                         it has ended
=========== =========================== ================= =================================== ==================

If the state lets requests start, they do so in the order in which they came, one after another, until

- one holds the following back: one of an API that is not pipelined, until it has ended; a Produce whose batches are
  appended in turns, until the last is appended (`hold`, `release`);
- `max_in_flight` have started and not ended;
- too much waits to be sent (`is_congested`).

The socket is read if a request that came next could start at once.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from warmlog_protocol.messages import Api


class State(Enum):
    """See the table at the head of the module."""

    OPEN = auto()
    DRAINING = auto()
    STOPPING = auto()
    TURNED_AWAY = auto()
    DISCARDING = auto()
    CLOSED = auto()


class Event(Enum):
    """What changes the state of a connection."""

    PEER_EOF = auto()
    """The peer sends no more. It may still read."""
    STOP = auto()
    """The broker stops."""
    REFUSAL = auto()
    """The broker ends the connection. The peer may be told why."""
    LOSS = auto()
    """There is no connection any more."""


class Allows(NamedTuple):
    """What a state allows."""

    reading: bool = False
    """What the peer sends is looked at."""
    starting: bool = False
    responding: bool = False
    ending: bool = False
    """The connection is closed as soon as nothing is under way and everything was sent."""


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


class RequestHead(Protocol):
    """What the scheduler uses of a request."""

    @property
    def api(self) -> Api: ...
    @property
    def api_version(self) -> int: ...
    @property
    def correlation_id(self) -> int: ...


R = TypeVar("R", bound=RequestHead)
P = TypeVar("P")


class StartedRequest(Struct, eq=False, gc=False):
    """A request from its start to its end: what its response needs of it, but not its payload."""

    api: Api
    api_version: int
    correlation_id: int


class RequestScheduler(Generic[R, P]):
    """The requests of one connection (R), and their responses as they are sent (P)."""

    def __init__(self, *, max_in_flight: int, keeps_order: bool, is_congested: Callable[[], bool]) -> None:
        """`keeps_order`: responses leave in the order of their requests, and requests are in flight until then."""
        self.state = State.OPEN
        self.allows = ALLOWS[State.OPEN]
        self.in_flight = 0
        self.holder: StartedRequest | None = None
        """The request that holds the following ones back."""
        self._max_in_flight = max_in_flight
        self._is_congested = is_congested
        self._backlog: deque[R] = deque()
        self._keeps_order = keeps_order
        self._in_order: deque[StartedRequest] = deque()
        """If order is kept: the requests in flight."""
        self._ended: dict[StartedRequest, P | None] = {}
        """Those of them that have ended, with their responses."""

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
            and self.in_flight < self._max_in_flight
            and not self._is_congested()
        )

    @property
    def is_done(self) -> bool:
        """Whether the connection can be closed once everything was sent."""
        return self.allows.ending and not self.in_flight and not self._backlog

    def on(self, event: Event) -> None:
        """Change the state. Requests that can never start are forgotten."""
        self.state = TRANSITIONS.get((self.state, event), self.state)
        self.allows = ALLOWS[self.state]
        if not self.allows.starting:
            self._backlog.clear()

    def turn_away(self) -> None:
        """The connection, which is new, cannot be served."""
        self.state, self.allows = State.TURNED_AWAY, ALLOWS[State.TURNED_AWAY]

    def received(self, requests: Iterable[R]) -> None:
        """`requests` were received, in this order."""
        if self.allows.starting:
            self._backlog.extend(requests)

    def start_next(self) -> tuple[R, StartedRequest] | None:
        """The next request, if it may start now; it is in flight from here on, until `end`."""
        if (
            not self._backlog
            or self.holder is not None
            or self.in_flight >= self._max_in_flight
            or self._is_congested()
        ):
            return None
        request = self._backlog.popleft()
        started = StartedRequest(request.api, request.api_version, request.correlation_id)
        self.in_flight += 1
        if self._keeps_order:
            self._in_order.append(started)
        return request, started

    def hold(self, started: StartedRequest) -> None:
        """Start no further request before `release` or `end` of this one."""
        assert self.holder in (None, started)
        self.holder = started

    def release(self, started: StartedRequest) -> bool:
        """Return whether `started` has held back the following requests, which it does no more."""
        if self.holder is not started:
            return False
        self.holder = None
        return True

    def end(self, started: StartedRequest, response: P | None) -> Sequence[P]:
        """The request has ended, once and for all; None: it gets no response. Return the responses to be sent now."""
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
