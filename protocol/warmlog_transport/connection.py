"""One connection to a broker on asyncio, the shell around the sans-I/O ClientConnection; and the link that renews it.

Requests are pipelined: each has a callback that is called once, with its response or with the error that ended the
connection. All requests of one turn of the event loop leave in one write. A request without a response in time ends the
connection, as further responses may be late or lost; the client retries on a new one.

If the broker tells that a quota is exceeded, nothing is sent until its delay is over, and the time for responses begins
after that.
"""

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from warmlog_protocol.errors import ApiError, ProtocolError, RemoteProtocolError, WarmlogError
from warmlog_protocol.messages import AuthenticateResponse, HandshakeRequest, HandshakeResponse, Message
from warmlog_protocol.wire.connection import ClientConnection, ReceivedResponse
from warmlog_protocol.wire.frames import Allocate
from warmlog_transport.address import Address, silent, why_unconnected
from warmlog_transport.errors import BrokerUnavailable, ClientClosed
from warmlog_transport.options import ConnectionOptions, client_version
from warmlog_transport.retries import pause_s
from warmlog_transport.tls import lost_early

_log = logging.getLogger("warmlog")

R = TypeVar("R", bound=Message)
Buffer = bytes | bytearray | memoryview
OnResponse = Callable[[ReceivedResponse | WarmlogError], None]

WRITE_HIGH_WATER_BYTES = 1024 * 1024
"""Bytes that wait for the socket before `is_writable` turns false: a few batches, so that the socket stays busy."""
AT_ONCE_BYTES = 512 * 1024
"""To be woken for each piece of a response of 4 MiB takes a fifth more processor time."""
LEAST_BULK_BYTES = 64 * 1024
CLOSE_TIMEOUT_S = 2.0
"""How long `close` waits for a broker that does not read what was sent to it."""


class Throttle:
    """The delays that one broker has told because of quotas. It does not read the connection before `until_s`.

    Times are in seconds of the caller's clock.
    """

    __slots__ = ("_total_s", "until_s")

    def __init__(self) -> None:
        self.until_s = 0.0
        self._total_s = 0.0

    def note(self, result: Message | ApiError, now_s: float) -> bool:
        """Note the delay that a response tells; return whether it ends later than those before."""
        until_s = now_s + getattr(result, "throttle_ms", 0) / 1000
        if until_s <= max(now_s, self.until_s):
            return False
        self._total_s += until_s - max(now_s, self.until_s)
        self.until_s = until_s
        return True

    def elapsed_s(self, now_s: float) -> float:
        """Return for how long the broker has delayed the client until now, over all connections."""
        return self._total_s and self._total_s - max(0.0, self.until_s - now_s)

    def reset(self, now_s: float) -> None:
        """Note that the connection is lost: the broker reports the delay again on the next one."""
        self._total_s, self.until_s = self.elapsed_s(now_s), 0.0


class Connection(asyncio.BufferedProtocol):
    """A connection, to be used after `open`. `on_change` is called when it becomes writable again or is lost."""

    def __init__(
        self,
        address: Address,
        options: ConnectionOptions,
        on_change: Callable[[], None] = lambda: None,
        throttle: Throttle | None = None,
        allocate: Allocate | None = None,
    ) -> None:
        """`throttle` counts for all connections to a broker, one after another. `allocate` is for large responses."""
        self.address = address
        self.broker: HandshakeResponse | None = None
        self._options = options
        self._on_change = on_change
        self._core = ClientConnection(
            max_frame_bytes=options.max_frame_bytes, buffer_bytes=options.receive_buffer_bytes, allocate=allocate
        )
        self._receives_in_bulk = allocate is not None and sys.platform == "linux" and not options.ssl
        """Linux waits for no more than its buffer can hold (tcp_set_rcvlowat). With TLS what is left is not known."""
        self._low_water_bytes = 1
        self._silent_since_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        """Set once the loop has handed it over: if the attempt is cancelled before, the loop closes it, and uvloop does
        not say when."""
        self._is_paused = False
        self._throttle = throttle or Throttle()
        self._throttled: asyncio.TimerHandle | None = None
        """Set while the broker does not read the connection."""
        self._lost: WarmlogError | None = None
        self._closed = self._loop.create_future()
        self._waiting: dict[int, tuple[OnResponse, asyncio.TimerHandle]] = {}
        self._outgoing: list[Buffer] = []
        self._next_session: asyncio.TimerHandle | None = None
        self._authenticating: asyncio.Task[None] | None = None

    async def open(self) -> Self:
        """Connect, shake hands and authenticate; return the connection. Raises BrokerUnavailable if that fails or takes
        longer than `connect_timeout_ms`, and SaslAuthenticationFailed."""
        address, options = self.address, self._options
        timeout_s = options.connect_timeout_ms / 1000
        introduction = HandshakeRequest(options.client_name, client_version())
        tls = options.tls_context()
        try:
            async with asyncio.timeout(timeout_s):
                self._transport, _ = await self._loop.create_connection(
                    lambda: self,
                    *address,
                    ssl=tls,
                    server_hostname=address.host if tls else None,
                    ssl_handshake_timeout=timeout_s if tls else None,
                )
                self._transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES)
                self.broker = await self.call(introduction, HandshakeResponse)
                await self._authenticate(self.broker)
        except TimeoutError:
            await self._discard()
            if self._transport is not None:
                raise BrokerUnavailable(silent(address, timeout_s)) from None
            raise BrokerUnavailable(f"no connection to broker {address} within {timeout_s:g} s") from None
        except OSError as error:
            raise BrokerUnavailable(
                f"no connection to broker {address}: {why_unconnected(error, uses_tls=tls is not None)}"
            ) from error
        except BaseException:
            await self._discard()
            raise
        return self

    @property
    def is_open(self) -> bool:
        """False once the connection is closed or lost."""
        return self._lost is None

    @property
    def is_writable(self) -> bool:
        """False once closed or lost, while WRITE_HIGH_WATER_BYTES wait for the socket, and while it is throttled."""
        return self._lost is None and not self._is_paused and self._throttled is None

    def request(
        self,
        message: Message,
        payload: Sequence[Buffer],
        on_response: OnResponse | None,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Send a request; `on_response` is called later, once. It is None for requests without a response.

        A response's payload is never overwritten. An ApiError for the whole request is the response's `result`. Raises
        the error that ended the connection, if it has ended.
        """
        if self._lost is not None:
            raise self._lost
        has_response = on_response is not None
        if not self._waiting:
            self._silent_since_s = self._loop.time()
        correlation_id, frame = self._core.request(message, sum(map(len, payload)), has_response=has_response)
        if on_response is not None:
            timeout_s = (self._options.request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
            timer = self._loop.call_later(
                timeout_s, self._look_after, correlation_id, type(message).__name__, timeout_s
            )
            self._waiting[correlation_id] = (on_response, timer)
        if not self._outgoing:
            self._loop.call_soon(self._write_unless_throttled)
        self._outgoing.append(frame)
        self._outgoing.extend(payload)

    async def call(self, message: Message, expected: type[R], *, timeout_ms: int | None = None) -> R:
        """Send a request and return its response, which has no payload. Raises the error that came instead."""
        response = await self.ask(message, timeout_ms=timeout_ms)
        assert isinstance(response.result, expected)
        return response.result

    async def ask(self, message: Message, *, timeout_ms: int | None = None) -> ReceivedResponse:
        """Send a request and return its response with its payload. Raises the error that came instead."""
        return response_in(await self.requested(message, timeout_ms=timeout_ms))

    def requested(
        self, message: Message, *, timeout_ms: int | None = None
    ) -> "asyncio.Future[ReceivedResponse | WarmlogError]":
        """Send a request; return what will hold its response, or the error in its place (see `response_in`)."""
        responded: asyncio.Future[ReceivedResponse | WarmlogError] = self._loop.create_future()

        def deliver(result: ReceivedResponse | WarmlogError) -> None:
            if not responded.done():
                responded.set_result(result)

        self.request(message, (), deliver, timeout_ms=timeout_ms)
        return responded

    @property
    def silent_s(self) -> float:
        """For how long requests have waited while the broker has sent nothing."""
        return self._loop.time() - self._silent_since_s if self._waiting else 0.0

    def abandon(self, why: str) -> None:
        """End the connection at once: requests without a response fail with `why`, which is logged."""
        _log.warning("%s: closing the connection", why)
        self._end(BrokerUnavailable(why))
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Write what is pending, close, and fail requests without a response; returns when the socket is closed."""
        self._write()
        self._end(BrokerUnavailable(f"connection to broker {self.address} closed"))
        if self._transport is None:
            return
        await asyncio.wait([self._closed], timeout=CLOSE_TIMEOUT_S)
        self._transport.abort()
        await asyncio.wait([self._closed])

    async def _authenticate(self, broker: HandshakeResponse) -> None:
        """Authenticate, and again before the session ends: requests can be in flight meanwhile."""
        steps = self._options.login(self.address, broker)
        try:
            request = next(steps)
            while True:
                request = steps.send(await self.call(request, AuthenticateResponse))
        except StopIteration as done:
            if done.value and self._lost is None:
                self._next_session = self._loop.call_later(done.value, self._begin_session, broker)

    def _begin_session(self, broker: HandshakeResponse) -> None:
        async def begin() -> None:
            try:
                await self._authenticate(broker)
            except WarmlogError as error:
                if self._lost is None:
                    _log.warning("the session with broker %s could not be renewed: %s", self.address, error)
                self._end(BrokerUnavailable(f"connection to broker {self.address} lost: {error}"))

        self._authenticating = self._loop.create_task(begin(), name=f"warmlog authenticate {self.address}")

    # --- what the transport calls ---------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._core.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            responses = self._core.received(nbytes)
        except ProtocolError as error:
            self._end(RemoteProtocolError(f"connection to broker {self.address} lost: {error}"))
            return
        self._silent_since_s = self._loop.time()
        if self._receives_in_bulk:
            self._receive_much_at_once()
        for response in responses:
            if (waiting := self._waiting.pop(response.correlation_id, None)) is not None:
                on_response, timer = waiting
                timer.cancel()
                if self._throttle.note(response.result, self._loop.time()) and self._lost is None:
                    self._end_wait()
                    self._throttled = self._loop.call_at(self._throttle.until_s, self._continue)
                on_response(response.owned())

    def _receive_much_at_once(self) -> None:
        """Have the loop woken only when AT_ONCE_BYTES of a large response have arrived, or all that is left of it."""
        left_bytes = self._core.oversize_bytes - self._core.pending_bytes
        wanted_bytes = min(left_bytes, AT_ONCE_BYTES) if left_bytes > LEAST_BULK_BYTES else 1
        if wanted_bytes != self._low_water_bytes and self._transport is not None and not self._transport.is_closing():
            self._low_water_bytes = wanted_bytes
            connected = self._transport.get_extra_info("socket")
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted_bytes)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._on_change()

    def connection_lost(self, exc: Exception | None) -> None:
        reason: object = exc or "the broker closed it"
        if self._core.broker is None:
            reason = lost_early(reason, uses_tls=bool(self._options.ssl))
        self._end(BrokerUnavailable(f"connection to broker {self.address} lost: {reason}"))
        self._core.release()
        if not self._closed.done():
            self._closed.set_result(None)

    # --- within -----------------------------------------------------------------------------------------------------

    async def _discard(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self.close()

    def _continue(self) -> None:
        self._throttled = None
        self._write()
        self._on_change()

    def _end_wait(self) -> None:
        if self._throttled is not None:
            self._throttled.cancel()
            self._throttled = None

    def _write_unless_throttled(self) -> None:
        if self._throttled is None:
            self._write()

    def _write(self) -> None:
        transport = self._transport
        # Not while closing: asyncio from Python 3.12 to late 2025 would keep watching the descriptor of a lost socket,
        # which the next connection gets (https://github.com/python/cpython/issues/136234).
        if transport is not None and self._outgoing and self._lost is None and not transport.is_closing():
            transport.writelines(self._outgoing)
        self._outgoing = []

    def _look_after(self, correlation_id: int, request: str, timeout_s: float) -> None:
        """End the connection, unless the broker did not read it meanwhile: then `timeout_s` begins after that."""
        due_s = self._throttle.until_s + timeout_s
        if due_s <= self._loop.time():
            self.abandon(f"broker {self.address} did not respond to {request} within {timeout_s:g} s")
            return
        on_response, _ = self._waiting[correlation_id]
        timer = self._loop.call_at(due_s, self._look_after, correlation_id, request, timeout_s)
        self._waiting[correlation_id] = (on_response, timer)

    def _end(self, error: WarmlogError) -> None:
        """End the connection with `error`, unless it has ended, and pass it to all waiting requests."""
        if self._lost is not None:
            return
        self._lost = error
        self._end_wait()
        self._throttle.reset(self._loop.time())
        if self._next_session is not None:
            self._next_session.cancel()
        waiting, self._waiting = self._waiting, {}
        for on_response, timer in waiting.values():
            timer.cancel()
            on_response(error)
        if self._transport is not None:
            self._transport.close()
        self._on_change()


async def cancel(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel these tasks, as far as there are any, and wait until they have ended."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


def response_in(result: ReceivedResponse | WarmlogError) -> ReceivedResponse:
    """Return the response, or raise the error that came instead."""
    if isinstance(result, WarmlogError):
        raise result
    if isinstance(result.result, ApiError):
        raise result.result
    return result


class BrokerLink:
    """At most one connection to `address`, recreated on request, with growing pauses between failed attempts.

    A connection that is lost within `retry_backoff_max_ms` counts as one, too: the broker may break off each request.

    `on_change` is called when it opens, is lost or becomes writable.
    """

    def __init__(
        self,
        address: Address,
        options: ConnectionOptions,
        on_change: Callable[[], None],
        allocate: Allocate | None = None,
    ) -> None:
        self.address = address
        self.last_error: WarmlogError | None = None
        self.throttle = Throttle()
        self._options = options
        self._on_change = on_change
        self._allocate = allocate
        self.connection: Connection | None = None
        """The open connection, if there is one now."""
        self.lost_at_s = 0.0
        """When that was lost, or could not be made, by the event loop's clock; 0 for never."""
        self._attempt: asyncio.Task[None] | None = None
        self._attempted_at_s = self._connected_at_s = 0.0
        self._failures = self._early_losses = 0
        """Attempts that failed, and connections that were lost early, in a row."""
        self._is_closed = False

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt to connect has failed."""
        return self._failures > 0

    @property
    def silent_s(self) -> float:
        """For how long requests, or an attempt to connect, have waited while the broker has sent nothing."""
        if self.connection is not None:
            return self.connection.silent_s
        return 0.0 if self._attempt is None else asyncio.get_running_loop().time() - self._attempted_at_s

    def want(self) -> None:
        """Connect in the background, after the pause that is due, unless it is connected or connecting."""
        if self.connection is None and self._attempt is None and not self._is_closed:
            self._attempted_at_s = asyncio.get_running_loop().time()
            self._attempt = asyncio.create_task(self._connect(), name=f"warmlog connect {self.address}")

    async def connected(self) -> Connection:
        """Return an open connection. Waits for one attempt and raises its error if it fails."""
        if self._is_closed:
            raise ClientClosed(f"the connection to broker {self.address} is closed")
        if self.connection is None:
            self.want()
            assert self._attempt is not None
            await asyncio.wait([self._attempt])
        if self.connection is None:
            raise self.last_error or BrokerUnavailable(f"connection to broker {self.address} lost")
        return self.connection

    async def call(self, message: Message, expected: type[R]) -> R:
        """Return the response of this broker, which is asked once. Raises the error that came instead."""
        connection = await self.connected()
        return await connection.call(message, expected)

    async def close(self) -> None:
        """Close the connection and stop trying."""
        self._is_closed = True
        await cancel(self._attempt)
        if self.connection is not None:
            await self.connection.close()

    async def _connect(self) -> None:
        try:
            await asyncio.sleep(pause_s(self._failures + self._early_losses, self._options))
            connection = Connection(self.address, self._options, self._changed, self.throttle, self._allocate)
            await connection.open()
        except WarmlogError as error:
            self._failures += 1
            self.lost_at_s = asyncio.get_running_loop().time()
            if self._failures == 2:  # after a single attempt the caller reports the error
                _log.warning("%s; trying again", error)
            self.last_error = error
        else:
            self.connection, self._connected_at_s = connection, asyncio.get_running_loop().time()
            if self._failures:
                _log.info("connected to broker %s after %d failed attempts", self.address, self._failures)
            self._failures = 0
        finally:
            self._attempt = None
            self._changed()

    def _changed(self) -> None:
        if self.connection is not None and not self.connection.is_open:
            self.connection = None
            self.lost_at_s = asyncio.get_running_loop().time()
            is_early = self.lost_at_s - self._connected_at_s < self._options.retry_backoff_max_ms / 1000
            self._early_losses = self._early_losses + 1 if is_early else 0
        self._on_change()
