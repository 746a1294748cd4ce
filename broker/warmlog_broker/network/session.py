"""One connection: bytes from the socket into requests, requests to their handlers, responses back.

The decisions are elsewhere: `request_scheduler` decides what may start and when the socket is read, the codec parses
bytes, `deadlines` decides when the connection must be closed. A handler uses the batches of a request before it
returns, so the buffer is free when the socket is next read.

Responses are collected and sent by `flush`, which the Outbox calls in the next turn of the event loop: all responses
to a connection that result from one event are sent in one write.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from concurrent.futures import Executor
from typing import cast

from msgspec import Struct

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.config.listeners import Listener, format_address
from warmlog_broker.network.codec import Pieces, ProtocolCodec, ReceivedRequest
from warmlog_broker.network.connections import Connections
from warmlog_broker.network.deadlines import ConnectionState, Deadlines
from warmlog_broker.network.memory_pool import MemoryPool, ReceiveMemory, ResponseMemory
from warmlog_broker.network.request import ANONYMOUS_PRINCIPAL, Life, RequestContext, StartedRequest
from warmlog_broker.network.request_runner import RequestRunner
from warmlog_broker.network.request_scheduler import Event, RequestScheduler, State
from warmlog_broker.network.send_queue import SendQueue
from warmlog_broker.runtime.counters import Counters
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.runtime.tasks import Tasks
from warmlog_broker.runtime.timer_wheel import Timer, TimerWheel
from warmlog_broker.security.authentication import Authentication
from warmlog_broker.security.quotas import Quotas
from warmlog_protocol.errors import RemoteProtocolError, TooManyConnections
from warmlog_protocol.wire.frames import OF_KAFKA

SHRINK_AFTER_S = 10.0
SHRINK_WHEN_SHORT_AFTER_S = 0.2
"""A buffer is not kept for future requests while other connections wait for memory."""
LINGER_S = 2.0
"""How long a refused peer may take to read the reason before the connection is closed."""

_discarded = bytearray(64 * 1024)


class Outbox:
    """The connections with responses to send."""

    def __init__(self) -> None:
        self._connections: dict[Session, None] = {}

    def add(self, connection: "Session") -> None:
        """Flush `connection` in the next turn of the event loop, once even if it is added again."""
        if not self._connections:
            asyncio.get_running_loop().call_soon(self._flush)
        self._connections[connection] = None

    def _flush(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections:
            connection.flush()


class SessionContext(Struct, frozen=True):
    """What all sessions of one listener share; only `listener` and `make_codec` differ between listeners."""

    config: BrokerConfig
    listener: Listener
    connections: Connections
    memory: MemoryPool
    response_memory: ResponseMemory
    lines: RepeatedLines
    """For log lines that peers can cause."""
    outbox: Outbox
    tasks: Tasks
    timers: TimerWheel
    """Times are on the event loop's clock."""
    counters: Counters
    quotas: Quotas
    make_authentication: Callable[[], Authentication | None]
    """None for a listener that does not authenticate."""
    make_codec: Callable[[], ProtocolCodec]
    cold_readers: Executor
    """Threads that read what is not in the page cache."""
    kafka_addresses: str = ""
    """Where clients of Kafka are served; empty if they are not."""


class Session(asyncio.BufferedProtocol):
    """The shell of one connection: the transport in, scheduler and codec, the transport out."""

    def __init__(self, context: SessionContext) -> None:
        self.host = ""
        self.name = "?"
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._authentication = context.make_authentication()
        self._codec = context.make_codec()
        self._sending: SendQueue
        self._life = Life(max_in_flight=context.config.max_in_flight_requests)
        self._scheduler: RequestScheduler[ReceivedRequest, Pieces] = RequestScheduler(
            life=self._life,
            keeps_order=self._codec.keeps_order,
            is_congested=self._is_congested,
            begin=self._codec.begin,
        )
        self._memory = ReceiveMemory(self._codec, context.memory, on_granted=lambda: self._set_reading(self._may_read))
        self._transport: asyncio.Transport
        self._requests: RequestRunner
        self._refusal = ""
        """Why the connection is turned away."""
        self._room_bytes = self._received_bytes = 0
        self._is_reading = True
        """Whether the transport reads, as last set."""
        self._throttled_until_s = 0.0
        self._throttle: asyncio.TimerHandle | None = None
        """Set while the connection is not read because of a quota."""
        self._holds_requests = False
        """Whether no request starts meanwhile."""
        self._requested_s = self._loop.time()
        """When it last sent a complete request, or received data that had to wait."""
        self._deadlines = Deadlines(context.config, self._requested_s)
        self._timer: Timer | None = None
        self._is_watched = False
        """Whether the timer is due in the next tick or ends the connection, rather than when it has idled too long."""

    @property
    def user(self) -> str:
        """The user that has authenticated; "" if none has."""
        return "" if self._authentication is None else self._authentication.user

    @property
    def requests_in_flight(self) -> int:
        return self._scheduler.in_flight

    # --- called by the transport --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer has connected: serve it if there is room for one more."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        peer = transport.get_extra_info("peername")
        if peer is None:  # reset already
            self._scheduler.on(Event.LOSS)
            self._transport.abort()
            return
        principal = self._principal()
        self.host, self.name = peer[0], format_address(peer[0], peer[1])
        context = self._context
        self._sending = SendQueue(
            self._transport,
            cold_readers=context.cold_readers,
            uses_sendfile=context.config.fetch_sendfile_enable,
            memory=context.response_memory,
            life=self._life,
            lines=context.lines,
            on_sent=lambda: context.outbox.add(self),  # waiting requests may start
        )
        self._requests = RequestRunner(
            self,
            self._codec,
            tasks=context.tasks,
            timers=context.timers,
            counters=context.counters,
            quotas=context.quotas,
            context=RequestContext(
                context.listener.name,
                "",
                principal,
                self.name,
                authentication=self._authentication,
                life=self._life,
                connection=context.connections.next_number(),
                wire=context.listener.wire,
                reached=(transport.get_extra_info("sockname") or ("", 0))[:2],
            ),
        )
        now_s = self._loop.time()
        self._refusal = self._logged(context.connections.refusal(self.host, now_s))
        if not self._refusal and principal and self._authentication is None:
            self._refusal = self.identify(principal)
        if self._refusal:
            self._scheduler.turn_away()
            if context.connections.may_tell(self):
                self._linger()  # until it has read the reason
            else:
                self._transport.abort()
            return
        context.connections.add(self, now_s)
        self._watch()
        if not principal:
            self.close(f"the subject of its certificate has no name for tls.principal={context.config.tls_principal}")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone. Its requests are carried out, and their responses dropped."""
        if self._scheduler.state is State.CLOSED:
            return
        if exc is not None:
            self._log("lost connections", f"connection with {self.name} lost: {exc}")
        self._scheduler.on(Event.LOSS)
        self._set_timer(None)
        self._end_throttle()
        self._sending.close()
        self._requests.forget_all()
        self._context.connections.remove(self)
        self._memory.release()

    def get_buffer(self, sizehint: int) -> memoryview | bytearray:  # noqa: ARG002  (asyncio's signature)
        """Where the socket writes next."""
        if not self._scheduler.allows.reading:
            return _discarded
        try:
            room = self._codec.get_buffer()
        except MemoryError:
            self._scheduler.on(Event.REFUSAL)
            # uvloop is about to read into what it gets from here: the transport must still be there then.
            self._loop.call_soon(self.close, "out of memory for its request")
            return _discarded
        self._room_bytes = len(room)
        return room

    def buffer_updated(self, nbytes: int) -> None:
        """Start the requests that the last `nbytes` completed."""
        if not self._scheduler.allows.reading:
            return
        self._received_bytes += nbytes
        try:
            requests = self._codec.received(nbytes)
            if requests:
                self._requested_s = self._loop.time()
            if requests and self._refusal:
                first = self._codec.begin(requests[0])
                self._end_with(self._codec.encode_error(first, TooManyConnections(self._refusal)))
                return
            self._scheduler.received(requests)
            self._proceed(was_filled=nbytes == self._room_bytes)
            self._watch_unless_at_rest()
        except RemoteProtocolError as error:
            self._end_violation(error)

    def eof_received(self) -> bool:
        """The peer sends no more. It may still read: requests in flight get responses if the transport stays open."""
        self._scheduler.on(Event.PEER_EOF)
        if not self._scheduler.allows.ending:
            return not self._sending.is_handed_over and self._transport.can_write_eof()  # at most until `_linger` ends
        for started in self._requests.drop_waiting():
            self.end(started, None)
        self._context.outbox.add(self)
        return self._transport.can_write_eof()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._sending.pause()

    def resume_writing(self) -> None:
        """The transport has sent its buffer."""
        if self._scheduler.state is not State.CLOSED:
            self._requested_s = self._loop.time()
            self._sending.resume()

    # --- called by the request runner, as its `Channel` -----------------------------------------------------------

    def end(self, started: StartedRequest, pieces: Pieces | None) -> None:
        """End a request. Its response is sent in the next turn of the event loop, together with others'."""
        if self._scheduler.holder is started:
            self.release(started)
        for ready in self._scheduler.end(started, pieces):
            self._sending.push(ready)
        if self._codec.keeps_order and self._scheduler.allows.responding:
            self._sending.count_waiting(self._scheduler.waiting)
        self._context.outbox.add(self)

    def hold(self, started: StartedRequest, payload_bytes: int) -> None:
        self._scheduler.hold(started)
        self._memory.hold(payload_bytes)

    def release(self, started: StartedRequest) -> None:
        if self._scheduler.release(started):
            self._memory.hold(0)
            self._context.outbox.add(self)

    def close(self, reason: str, *, kind: str = "connections closed") -> None:
        """Close the connection at once. `kind` is by which rate-limited logging counts the lines."""
        if self._scheduler.state is not State.CLOSED:
            self._log(kind, f"connection with {self.name} closed: {reason}")
            self._scheduler.on(Event.REFUSAL)
            self._transport.abort()

    def end_last(self, started: StartedRequest, pieces: Pieces) -> None:
        if self._scheduler.allows.responding:
            self.end(started, None)
            self._end_with(pieces)

    def identify(self, principal: str) -> str:
        context = self._context
        return self._logged(context.connections.identify(self, principal, context.quotas.connection_limit(principal)))

    def throttle(self, delay_s: float, *, holds_requests: bool = False) -> None:
        until_s = self._loop.time() + delay_s
        if delay_s and until_s > self._throttled_until_s and self._scheduler.state is not State.CLOSED:
            self._end_throttle()
            self._holds_requests = self._holds_requests or holds_requests
            self._throttled_until_s = until_s
            self._throttle = self._loop.call_at(until_s, self._throttle_is_over)
            self._set_reading(self._may_read and not self._memory.is_waiting)

    @property
    def throttled_ms(self) -> int:
        return 0 if self._throttle is None else math.ceil((self._throttled_until_s - self._loop.time()) * 1000)

    # --- called by the broker -------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Start no further request, and close once those in flight have ended and their responses were sent."""
        self._scheduler.on(Event.STOP)
        self._proceed()

    def dismiss(self) -> None:
        """End the connection of a user that was deleted: requests in flight may end within LINGER_S."""
        self._log("connections closed", f"connection with {self.name} ends: user {self.user!r} was deleted")
        self.stop()
        if self._scheduler.state is not State.CLOSED:
            self._linger()

    def flush(self) -> None:
        """Send what is ready, and start requests that had to wait."""
        if self._scheduler.state is State.CLOSED:
            return
        self._sending.pump()
        self._watch_unless_at_rest()
        if not self._is_reading or self._scheduler.state is not State.OPEN:
            self._proceed()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _is_trusted(self) -> bool:
        """Whether the peer is served, has sent its Handshake and, if the listener authenticates, has authenticated.

        A broker proves by PeerHello what it is.
        """
        has_shown_who = self._authentication is None or bool(self._authentication.user)
        has_shown_who = has_shown_who or self._life.broker is not None
        return self._codec.is_open and has_shown_who and not self._refusal

    def _principal(self) -> str:
        """Return the principal of the certificate that the client has shown; empty if that has no name for it."""
        certificate = self._transport.get_extra_info("peercert") if self._context.listener.uses_tls else None
        if not certificate:
            return ANONYMOUS_PRINCIPAL
        from warmlog_broker.network.tls.principal import principal_of

        return principal_of(certificate, self._context.config.tls_principal)

    def _is_congested(self) -> bool:
        sending = self._sending
        return (
            self._holds_requests
            or sending.queued_bytes + sending.waiting_bytes > self._context.config.send_queue_bytes
            or (self._life.held_bytes > 0 and self._context.response_memory.is_short)
        )

    def _proceed(self, *, was_filled: bool = False) -> None:
        """Start the requests that may start; then continue reading, or end the connection."""
        scheduler = self._scheduler
        while (following := scheduler.start_next()) is not None:
            self._requests.start(*following)
        may_read = self._may_read
        if scheduler.allows.reading and not scheduler.has_backlog:
            was_filled = was_filled and may_read
            try:
                self._memory.provide(is_trusted=self._is_trusted(), was_filled=was_filled, may_read=may_read)
            except RemoteProtocolError as error:
                self._end_violation(error)
                return
        self._set_reading(may_read and not self._memory.is_waiting)
        if not scheduler.allows.starting or scheduler.is_done:
            self._end_if_sent()

    def _end_with(self, pieces: Pieces) -> None:
        """Send `pieces`, discard further input, and end the connection."""
        self._scheduler.on(Event.REFUSAL)
        if not pieces:
            self._transport.close()
            return
        self._sending.push(pieces)
        self._context.outbox.add(self)
        self._linger()

    def _end_if_sent(self) -> None:
        if self._transport.is_closing() or not self._sending.is_handed_over:
            return
        if self._scheduler.is_done:
            self._transport.close()
        elif self._scheduler.state is State.DISCARDING and self._transport.can_write_eof():
            self._transport.write_eof()

    def _linger(self) -> None:
        """Give the peer time to read the last response, which a close while it still sends would discard."""
        self._is_watched = True
        self._set_timer(self._context.timers.schedule(self._loop.time() + LINGER_S, self._transport.abort))

    def _set_reading(self, is_reading: bool) -> None:
        is_reading = is_reading or self._scheduler.state is State.DISCARDING
        if is_reading != self._is_reading:
            self._is_reading = is_reading
            if is_reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    @property
    def _may_read(self) -> bool:
        """While throttled, only the rest of a large request is read, since memory is claimed for all of it."""
        return self._scheduler.may_read and (self._throttle is None or self._codec.oversize_bytes > 0)

    def _throttle_is_over(self) -> None:
        self._throttle = None
        self._holds_requests = False
        self._proceed()

    def _end_throttle(self) -> None:
        if self._throttle is not None:
            self._throttle.cancel()
            self._throttle = None

    def _set_timer(self, timer: Timer | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    @property
    def _is_at_rest(self) -> bool:
        """Whether nothing can be late but the next request."""
        codec, sending = self._codec, self._sending
        return self._memory.is_small and not codec.pending_bytes and sending.is_empty and self._is_trusted()

    def _watch_unless_at_rest(self) -> None:
        if not self._is_watched and not self._is_at_rest:
            self._watch()

    def _watch(self) -> None:
        """Check the deadlines with every tick until the connection is at rest."""
        self._is_watched = True
        now_s = self._loop.time()
        self._deadlines.rest_ended(now_s, self._connection_state())
        self._set_timer(self._context.timers.schedule(now_s, self._check))

    def _check(self) -> None:
        """Close the connection if a deadline has passed; otherwise schedule the next check."""
        now_s = self._loop.time()
        deadlines = self._deadlines
        patience_s = SHRINK_WHEN_SHORT_AFTER_S if self._context.memory.is_short else SHRINK_AFTER_S
        if now_s - self._requested_s > patience_s and not self._scheduler.has_backlog:
            self._memory.shrink()
        overdue = deadlines.overdue(now_s, self._connection_state())
        if overdue is not None:
            self.close(overdue.reason, kind=overdue.rule)
            return
        self._is_watched = not self._is_at_rest
        due_s = now_s if self._is_watched else deadlines.idle_end_s
        self._set_timer(self._context.timers.schedule(due_s, self._check))

    def _connection_state(self) -> ConnectionState:
        sending = self._sending
        return ConnectionState(
            is_open=self._is_trusted(),
            is_receiving=self._is_reading and self._codec.pending_bytes > 0,
            is_sending=sending.is_reader_due,
            is_served=self._scheduler.in_flight > 0 and sending.is_empty,
            blocks_requests=self._memory.is_in_the_way,
            blocks_responses=self._life.held_bytes > 0 and self._context.response_memory.is_short,
            requested_s=self._requested_s,
            received_bytes=self._received_bytes,
            taken_bytes=sending.taken_bytes,
        )

    def _logged(self, refusal: str) -> str:
        """Tell the operator why the connection is one too many, unless `refusal` is empty. Returns it."""
        if refusal:
            self._log("connections refused", f"connection from {self.name} refused: {refusal}", logging.WARNING)
        return refusal

    def _end_violation(self, error: RemoteProtocolError) -> None:
        """End the connection of a peer that does not keep to the protocol, with the reply to that."""
        message = f"connection with {self.name} closed: {error}"
        if error.kind == OF_KAFKA:
            at = self._context.kafka_addresses
            hint = f"clients of Kafka are served at {at}" if at else "kafka.listen sets an address for clients of Kafka"
            self._context.lines.write_of_peer(
                logging.INFO, error.kind, self.host, f"{message}; {hint}", self._loop.time()
            )
        else:
            self._log(f"connections closed, {error.kind}", message)
        self._end_with((error.reply,) if error.reply else ())

    def _log(self, kind: str, message: str, level: int = logging.INFO) -> None:
        self._context.lines.write(level, kind, message, self._loop.time())
