"""A request and its response, as everything above the wire knows them: which protocol brought it is not seen.

`Endpoint` is one kind of request, as it is served. A handler returns a response at once or later (`Deferred`, an
awaitable), with or without file ranges; `then` changes a response, whenever it comes.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Never, Protocol, TypeAlias

from msgspec import Struct, field

from warmlog_broker.config.listeners import Wire
from warmlog_broker.security.authentication import Authentication
from warmlog_broker.storage.segment.file_records import FileSlice
from warmlog_protocol.messages import USER_PREFIX, Message
from warmlog_protocol.wire.connection import ReceivedBatch

ANONYMOUS_PRINCIPAL = f"{USER_PREFIX}ANONYMOUS"
"""Kafka's name for a client that did not authenticate."""
NO_DEADLINE_S = math.inf

Slices: TypeAlias = Sequence[Sequence[FileSlice | bytes]]
"""The batches of a response: file ranges, or bytes, for each partition in the message, in its order."""


class Life(Struct):
    """What becomes of a connection."""

    is_over: bool = False
    """Whether it has ended: for what is kept longer than it."""
    broker: int | None = None
    """The id of the broker that the peer has proved to be. The claims of a request do not count."""
    introduction: object = None
    """The proof that is under way."""
    held_bytes: int = 0
    """Memory of its responses, as `ResponseMemory` counts it."""
    max_in_flight: float = math.inf
    """How many requests may wait for responses. A broker has no limit: its next one may be what the others wait for."""


class RequestContext(Struct, frozen=True):
    """What handlers know about the connection of a request. Replaced at the Handshake and by an authentication."""

    listener: str
    """The name of the listener that accepted the connection."""
    client_id: str
    """The client's name from the Handshake, at most MAX_CLIENT_ID_CHARACTERS of it; empty before."""
    principal: str
    """The authenticated user; ANONYMOUS_PRINCIPAL without authentication."""
    peer: str
    """HOST:PORT, for the log."""
    authentication: Authentication | None = None
    """None if the listener does not authenticate."""
    connection: int = 0
    """The number of the connection: they are counted from the start of the broker."""
    wire: Wire = Wire.WARMLOG
    """The protocol of the listener, a label of metrics."""
    reached: tuple[str, int] = ("", 0)
    """The host and port of this broker that the peer has connected to."""
    life: Life = field(default_factory=Life)

    @property
    def host(self) -> str:
        """The address of the peer, without its port."""
        return self.peer.rpartition(":")[0]


class MessageWithSlices(Struct, frozen=True, gc=False):
    """A message and its file ranges: a list for each partition in the message, in its order."""

    message: Message
    slices: Slices


class ConnectionEnds(Exception):
    """The request gets no response, and the connection is closed; the message says why."""


class DeferredOwner(Protocol):
    """The interface of the request runner that deferred responses use."""

    def end(self, deferred: "Deferred", work: Callable[[], "Response"]) -> None: ...


class Deferred:
    """A response that is completed later, by one call of `complete` or `run`.

    The call may come before the handler has returned this object. It is a no-op once the connection is lost.
    """

    __slots__ = ("_early", "_owner", "deadline_s")

    def __init__(self, deadline_s: float = NO_DEADLINE_S) -> None:
        """`deadline_s` is on the event loop's clock, and may be set until the handler returns this object."""
        self.deadline_s = deadline_s
        self._owner: DeferredOwner | None = None
        self._early: Callable[[], Response] | None = None

    def complete(self, response: "Response") -> None:
        self.run(lambda: response)

    def fail(self, error: Exception) -> None:
        """Send the error in place of a response."""

        def work() -> Never:
            raise error

        self.run(work)

    def run(self, work: Callable[[], "Response"]) -> None:
        """Send the response that `work` returns; an exception becomes the error of the request."""
        if self._owner is None:
            self._early = work
        else:
            self._owner.end(self, work)

    def begin(self, owner: DeferredOwner) -> None:
        """Called by the request runner: from now on the response can be sent."""
        self._owner = owner
        if self._early is not None:
            owner.end(self, self._early)

    def expire(self) -> None:
        """Called after the deadline: complete with what is available."""

    def drop(self) -> bool:
        """Called when the peer sends no more: return whether the request only waited, and is dropped."""
        return False


Ready: TypeAlias = Message | MessageWithSlices | None
"""None: the request gets no response, such as Produce with acks=0."""
Response: TypeAlias = Ready | Deferred | Awaitable["Response"]


def then(response: Response, change: Callable[[Any], "Response"]) -> Response:
    """Return what `change` makes of the response, at once or when it is there. An error is not changed."""
    if isinstance(response, Deferred):
        return _ChangedDeferred(response, change)
    if isinstance(response, Awaitable):
        return _changed_when_done(response, change)
    return change(response)


async def _changed_when_done(response: Awaitable[Response], change: Callable[[Any], Response]) -> Response:
    return then(await response, change)


class _ChangedDeferred(Deferred):
    """A response that comes later, and is changed then. It owns the one that the handler has returned."""

    __slots__ = ("_change", "_inner")

    def __init__(self, inner: Deferred, change: Callable[[Any], Response]) -> None:
        super().__init__(inner.deadline_s)
        self._inner = inner
        self._change = change

    def begin(self, owner: DeferredOwner) -> None:
        super().begin(owner)
        self._inner.begin(self)

    def end(self, deferred: Deferred, work: Callable[[], Response]) -> None:
        """As `DeferredOwner`."""
        assert deferred is self._inner
        self.run(lambda: then(work(), self._change))

    def expire(self) -> None:
        self._inner.expire()

    def drop(self) -> bool:
        return self._inner.drop()


BatchSource: TypeAlias = Callable[[], list[ReceivedBatch]]
"""Returns the batches of a Produce request, in memory that may be borrowed until the connection is next read. Raises
InvalidRequest if they do not match the message."""
Handler: TypeAlias = Callable[..., Response]
"""Is called with the context, the message and, for an endpoint that takes them, the BatchSource."""


class Endpoint(Struct, eq=False):
    """One kind of request, as it is served."""

    name: str
    """As in the documentation: "CreateTopics"."""
    handle: Handler
    """May be replaced by its first call, which imports the handler."""
    takes_batches: bool = False
    is_pipelined: bool = False
    """The next request on the connection may start before this one has its response."""
    finishes_first: bool = False
    """If the handler takes several turns, the next request starts after the last, so that batches keep their order."""
    comes_first: bool = False
    """It may come before the client has authenticated."""
    is_heartbeat: bool = False
    """Quotas do not delay it for long: members of groups would lose their partitions."""


class StartedRequest(Struct, eq=False, gc=False):
    """A request in flight, without its payload. A codec may return a subclass with what its responses need."""

    endpoint: Endpoint
    correlation_id: int
    client_name: str | None = None
    """The name of the client, if this request says it."""
    started_s: float = 0.0
    """When its handler was called, on the clock of time.perf_counter."""
    is_over: bool = False
    """Whether it has ended."""


CURRENT_REQUEST: ContextVar[tuple[RequestContext, StartedRequest] | None] = ContextVar("current request", default=None)
"""Set while a request is handled, and in the tasks and callbacks that its handler starts."""


def request_number() -> str:
    """Return the number of the request that is being handled: that of its connection, and its own on that."""
    current = CURRENT_REQUEST.get()
    return "" if current is None else f"{current[0].connection}-{current[1].correlation_id}"


def current_request() -> dict[str, str]:
    """Return what log lines say about the request that is being handled; empty outside of one.

    A task or timer that a handler has started may outlive the request: what it does after that is not said to be the
    request's.
    """
    current = CURRENT_REQUEST.get()
    if current is None or current[1].is_over:
        return {}
    context, started = current
    return {
        "request": request_number(),
        "api": started.endpoint.name,
        "principal": context.principal,
        "client": context.peer,
        "client_id": context.client_id,
        "listener": context.listener,
    }
