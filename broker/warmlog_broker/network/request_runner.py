"""From a request to its response: run the handler, and turn its exceptions into an error code.

Only this module does that for whole requests; `handlers/items` does it for each item of a request.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from msgspec import structs

from warmlog_broker.network.codec import Pieces, ProtocolCodec, ReceivedRequest, slices_bytes
from warmlog_broker.network.request import (
    CURRENT_REQUEST,
    NO_DEADLINE_S,
    ConnectionEnds,
    Deferred,
    MessageWithSlices,
    RequestContext,
    Response,
    Slices,
    StartedRequest,
    request_number,
)
from warmlog_broker.runtime.counters import Counters
from warmlog_broker.runtime.internal_error import own_failure
from warmlog_broker.runtime.tasks import Tasks
from warmlog_broker.runtime.timer_wheel import Timer, TimerWheel
from warmlog_broker.security.authentication import SessionExpired
from warmlog_broker.security.quota_rules import MAX_CLIENT_ID_CHARACTERS
from warmlog_broker.security.quotas import Quotas
from warmlog_protocol.errors import ApiError, SaslAuthenticationFailed, TooManyConnections
from warmlog_protocol.messages import USER_PREFIX, Message

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Channel(Protocol):
    """The part of a connection that ends requests, each by one call of `end`."""

    def end(self, started: StartedRequest, pieces: Pieces | None) -> None: ...

    def hold(self, started: StartedRequest, payload_bytes: int) -> None:
        """Start no request until `release` or `end` of this one, which still uses its payload."""
        ...

    def release(self, started: StartedRequest) -> None:
        """Allow requests to start again. No-op if this one did not hold them back."""
        ...

    def close(self, reason: str) -> None:
        """Cut the connection."""
        ...

    def end_last(self, started: StartedRequest, pieces: Pieces) -> None:
        """End a request with its response, drop the others, and close the connection once it is sent."""
        ...

    def identify(self, principal: str) -> str:
        """Note who has authenticated. Return why the connection is one too many, empty if it may be served."""
        ...

    def throttle(self, delay_s: float, *, holds_requests: bool = False) -> None:
        """Do not read the connection for `delay_s`; if it `holds_requests`, do not start those received either."""
        ...

    @property
    def throttled_ms(self) -> int:
        """For how long the connection is not read because of a quota."""
        ...


class RequestRunner:
    """The requests in flight of one connection."""

    def __init__(
        self,
        channel: Channel,
        codec: ProtocolCodec,
        *,
        tasks: Tasks,
        timers: TimerWheel,
        counters: Counters,
        quotas: Quotas,
        context: RequestContext,
    ) -> None:
        self.context = context
        self._channel = channel
        self._codec = codec
        self._tasks = tasks
        self._timers = timers
        self._counters = counters
        self._quotas = quotas
        self._user = ""
        """The user that has authenticated; "" if none has."""
        self._is_client_known = False
        """Whether what begins the connection is over: it has shaken hands and, if it has to, authenticated."""
        self._deferred: dict[Deferred, tuple[StartedRequest, Timer | None]] = {}
        self._drops_waiting = False
        """Whether the peer sends no more: what would only wait is dropped."""

    def start(self, request: ReceivedRequest, started: StartedRequest) -> None:
        """Run the handler of `request`; one that could not be read ends with its error."""
        token = CURRENT_REQUEST.set((self.context, started))
        try:
            response = self._response(request, started)
        except Exception as error:
            self._fail(started, error)
        else:
            self._take(started, response, request.payload_bytes)
        finally:
            CURRENT_REQUEST.reset(token)

    def _response(self, request: ReceivedRequest, started: StartedRequest) -> Response:
        """Call the handler, if the client may send this request now."""
        endpoint, authentication = started.endpoint, self.context.authentication
        if authentication is not None and self.context.life.broker is None:
            authentication.check(comes_first=endpoint.comes_first)
        context = self.context
        if self._is_client_known and self._quotas.is_set and context.life.broker is None:
            delay_s = self._quotas.charge_request(
                context.principal, context.client_id, request.payload_bytes, is_heartbeat=endpoint.is_heartbeat
            )
            self._channel.throttle(delay_s)
        message = request.message
        started.started_s = time.perf_counter()
        if started.client_name is not None:
            self.context = structs.replace(self.context, client_id=started.client_name[:MAX_CLIENT_ID_CHARACTERS])
            if authentication is None:
                self._take_on_debt()
        if endpoint.takes_batches:
            return endpoint.handle(self.context, message, request.batches)
        return endpoint.handle(self.context, message)

    def _identify(self) -> None:
        """Take note of who has authenticated, before the response says so. TooManyConnections."""
        authentication = self.context.authentication
        if authentication is not None and authentication.user != self._user:
            principal = USER_PREFIX + authentication.user
            if refusal := self._channel.identify(principal):
                raise TooManyConnections(refusal)
            self._user = authentication.user
            self.context = structs.replace(self.context, principal=principal)
            self._take_on_debt()

    def end(self, deferred: Deferred, work: Callable[[], Response]) -> None:
        """End the request of `deferred` with the result or the exception of `work`."""
        entry = self._deferred.pop(deferred, None)
        if entry is None:
            return
        started, timer = entry
        if timer is not None:
            timer.cancel()
        token = CURRENT_REQUEST.set((self.context, started))
        try:
            response = work()
        except Exception as error:
            self._fail(started, error)
        else:
            self._take(started, response)
        finally:
            CURRENT_REQUEST.reset(token)

    def drop_waiting(self) -> list[StartedRequest]:
        """Drop and return the requests that only wait, and drop what begins to wait later: they get no response."""
        self._drops_waiting = True
        found = list(self._deferred)  # one that is dropped may end others: members hear that another is away
        return [self._forget(each) for each in found if each in self._deferred and each.drop()]

    def forget_all(self) -> None:
        """The connection is lost: requests in flight are carried out, and their responses dropped."""
        self.context.life.is_over = True
        self.drop_waiting()
        for deferred in list(self._deferred):
            self._forget(deferred)

    def _forget(self, deferred: Deferred) -> StartedRequest:
        started, timer = self._deferred.pop(deferred)
        if timer is not None:
            timer.cancel()
        return started

    def _take(self, started: StartedRequest, response: Response, payload_bytes: int = 0) -> None:
        if isinstance(response, Message):
            self._respond(started, response, ())
        elif isinstance(response, MessageWithSlices):
            self._respond(started, response.message, response.slices)
        elif isinstance(response, Deferred):
            self._defer(started, response)
        elif response is None:
            self._end(started, None)
        else:
            if started.endpoint.finishes_first or not started.endpoint.is_pipelined:
                self._channel.hold(started, payload_bytes)
            self._tasks.start(self._finish(started, response, self._take))

    def _defer(self, started: StartedRequest, response: Deferred) -> None:
        due_s = response.deadline_s
        timer = None if due_s == NO_DEADLINE_S else self._timers.schedule(due_s, response.expire)
        self._deferred[response] = started, timer
        if not started.endpoint.is_pipelined:
            self._channel.hold(started, 0)
        response.begin(self)
        if self._drops_waiting and response in self._deferred and response.drop():
            self._end(self._forget(response), None)

    def _respond(self, started: StartedRequest, message: Message, slices: Slices) -> None:
        try:
            self._identify()
            if self._quotas.is_set:
                message = self._throttled(message, slices)
            pieces = self._codec.encode(started, message, slices)
        except Exception as error:
            self._fail(started, error)
            return
        if isinstance(pieces, (tuple, list)):
            self._end(started, pieces)
        else:
            self._tasks.start(self._finish(started, pieces, self._end))

    def _take_on_debt(self) -> None:
        """The client is known now. If it has exceeded a rate, another connection does not help it."""
        if self._quotas.is_set and not self._is_client_known:
            delay_s = self._quotas.debt_s(self.context.principal, self.context.client_id)
            self._channel.throttle(delay_s, holds_requests=True)
        self._is_client_known = True

    def _throttled(self, message: Message, slices: Slices) -> Message:
        """Charge the batches of a response, and return it with the delay if it has a field for it."""
        context = self.context
        size_bytes = slices_bytes(slices)
        if size_bytes and context.life.broker is None:
            self._channel.throttle(self._quotas.charge_fetch(context.principal, context.client_id, size_bytes))
        throttle_ms = self._channel.throttled_ms
        if throttle_ms and "throttle_ms" in message.__struct_fields__:
            return structs.replace(message, throttle_ms=throttle_ms)
        return message

    async def _finish(
        self, started: StartedRequest, work: Awaitable[T], take: Callable[[StartedRequest, T], None]
    ) -> None:
        try:
            result = await work
        except Exception as error:
            self._fail(started, error)
        else:
            take(started, result)
        if started.endpoint.is_pipelined:
            self._channel.release(started)

    def _fail(self, started: StartedRequest, error: Exception) -> None:
        if isinstance(error, ConnectionEnds | SessionExpired):
            self._end(started, None)
            self._channel.close(str(error))
            return
        if not isinstance(error, ApiError):
            error = own_failure(f"request {request_number()}, {started.endpoint.name} from {self.context.peer}")
        _log.debug("the response is %s: %s", type(error).__name__, error)
        self._counters.errors[self.context.wire, started.endpoint.name, type(error).__name__] += 1
        try:
            pieces = self._codec.encode_error(started, error)
        except Exception as failure:
            own_failure(f"the response to request {request_number()}, {started.endpoint.name}")
            self._end(started, None)
            self._channel.close(f"the response {type(error).__name__} cannot be encoded: {failure}")
            return
        if isinstance(error, SaslAuthenticationFailed | TooManyConnections):
            self._channel.end_last(started, pieces)
            return
        self._end(started, pieces)

    def _end(self, started: StartedRequest, pieces: Pieces | None) -> None:
        if started.started_s:  # otherwise it was refused unread
            took_s = time.perf_counter() - started.started_s
            self._counters.request_seconds[self.context.wire, started.endpoint.name].observe(took_s)
            if _log.isEnabledFor(logging.DEBUG):
                _log.debug("ended after %.3f ms", took_s * 1000)
        self._channel.end(started, pieces)
