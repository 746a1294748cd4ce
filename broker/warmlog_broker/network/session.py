"""One connection: bytes from the socket into the protocol's core, requests to their handlers, answers back.

Requests are started in the order in which they come: after Produce and Fetch, which are pipelined, the next one at
once, after everything else when it is answered. What comes beyond `max.in.flight.requests`, or while too many answers
wait to be sent, stays in the receive buffer, and the socket is not read until it could be started. The payload of a
request is used up before its handler returns, so the buffer is free again when the socket is next read.

Answers are collected and sent by `flush`, which whoever calls into sessions (a read, the end of a flush, a timer)
lets the Outbox do at the end: all answers that one event brings about for a connection go out in one write.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from warmlog_broker.config.broker_config import BrokerConfig, format_address
from warmlog_broker.network.connections import Connections
from warmlog_broker.network.deadlines import Deadlines, Standing
from warmlog_broker.network.memory_budget import AnswerMemory, RequestMemory
from warmlog_broker.network.receive_buffer import SMALL_BUFFER_BYTES, ReceiveRoom
from warmlog_broker.network.request_context import ANONYMOUS_PRINCIPAL, PLAINTEXT_LISTENER, RequestContext
from warmlog_broker.network.request_runner import Handler, RequestRunner
from warmlog_broker.network.send_queue import SendQueue
from warmlog_broker.runtime.outbox import Outbox
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.runtime.tasks import Tasks
from warmlog_broker.storage.record.file_records import FileSlice
from warmlog_protocol.errors import ApiError, RemoteProtocolError, TooManyConnections
from warmlog_protocol.messages import Message
from warmlog_protocol.wire.connection import AnswerTooLarge, Request, ServerConnection

SHRINK_AFTER_S = 10.0
SHRINK_WHEN_SHORT_AFTER_S = 0.2
"""When others wait for memory, a buffer is not kept for what may come."""
LINGER_S = 2.0
"""How long a refused peer may take to read why, before the connection is cut."""

_log = logging.getLogger(__name__)
_discarded = bytearray(64 * 1024)


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What all sessions share."""

    config: BrokerConfig
    connections: Connections
    memory: RequestMemory
    answers: AnswerMemory
    lines: RepeatedLines
    """For what peers do to their own connections."""
    outbox: Outbox
    tasks: Tasks
    handlers: Mapping[int, Handler]
    """By the key of their API."""
    make_send_queue: Callable[[asyncio.Transport, Callable[[], None]], SendQueue]


class Session(asyncio.BufferedProtocol):
    """The shell around one ServerConnection."""

    def __init__(self, context: SessionContext) -> None:
        self.host = ""
        self.name = "?"
        self.is_lost = False
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._connection = ServerConnection(
            max_frame_bytes=context.config.socket_request_max_bytes,
            buffer_bytes=SMALL_BUFFER_BYTES,
            max_header_bytes=context.config.request_header_max_bytes,
            max_items=context.config.request_max_items,
        )
        self._room = ReceiveRoom(
            self._connection,
            context.memory,
            largest_buffer_bytes=context.config.receive_buffer_bytes,
            on_granted=self._memory_granted,
        )
        self._transport: asyncio.Transport
        self._sending: SendQueue
        self._requests: RequestRunner
        self._backlog: deque[Request] = deque()
        self._in_flight = 0
        self._room_bytes = 0
        self._received_bytes = 0
        self._is_alone = self._had_partial = self._is_reading_paused = False
        self._is_stopping = self._is_ending = self._is_discarding = False
        self._refusal = ""
        """Why the connection is not held, until its peer was told."""
        self._deadlines = Deadlines(context.config, self._loop.time())

    # --- called by the transport --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer has connected: it stays when there is room for one more."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        peer = transport.get_extra_info("peername")
        if peer is None:  # reset before we were told of it
            self.is_lost = True
            self._transport.abort()
            return
        self.host, self.name = peer[0], format_address(peer[0], peer[1])
        self._refusal = self._context.connections.refusal(self.host)
        if self._refusal:
            self._refuse_connection()
            return
        self._context.connections.add(self)
        self._sending = self._context.make_send_queue(self._transport, self._sent)
        self._requests = RequestRunner(
            self,
            self._context.handlers,
            self._context.tasks,
            RequestContext(PLAINTEXT_LISTENER, "", ANONYMOUS_PRINCIPAL, self.name, is_replica=False),
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone. What it asked for is carried out; nobody hears of it."""
        self._context.connections.remove_refused(self)
        if self.is_lost:
            return
        if exc is not None:
            self._tell("lost connections", f"connection with {self.name} lost: {exc}")
        self.is_lost = True
        self._backlog.clear()
        self._sending.close()
        self._requests.forget_all()
        self._context.connections.remove(self)
        self._room.release()

    def get_buffer(self, sizehint: int) -> memoryview | bytearray:  # noqa: ARG002  (asyncio's signature)
        """Where the socket writes next."""
        if self._is_discarding and not self._refusal:
            return _discarded
        try:
            room = self._connection.get_buffer()
        except MemoryError:
            self._is_discarding, self._refusal = True, ""
            # uvloop is about to read into what it gets from here: the transport must still be there then.
            self._loop.call_soon(self.close, "there is no memory for its request")
            return _discarded
        self._room_bytes = len(room)
        return room

    def buffer_updated(self, nbytes: int) -> None:
        """`nbytes` have come: the requests that they complete are started."""
        if self._is_discarding:
            if self._refusal:
                self._turn_away(nbytes)
            return
        self._received_bytes += nbytes
        try:
            requests = self._connection.received(nbytes)
            if requests or not self._had_partial:
                self._deadlines.partial_since_s = self._loop.time()
            self._had_partial = self._connection.pending_bytes > 0
            if requests:
                self._deadlines.active_s = self._loop.time()
                self._backlog.extend(requests)
                self._start_requests()
            self._provide_buffer(was_filled=nbytes == self._room_bytes)
        except RemoteProtocolError as error:
            self._refuse(error)
        self._context.outbox.send()

    def eof_received(self) -> bool:
        """The peer sends no more. It may still read: what is under way is answered before the connection closes."""
        if self._is_discarding:
            return False
        self._in_flight -= self._requests.drop_waiting()
        self._is_ending = True
        return not self._is_done()

    def pause_writing(self) -> None:
        """The transport holds enough."""
        self._sending.pause()

    def resume_writing(self) -> None:
        """The transport has sent what it held."""
        if not self.is_lost:
            self._deadlines.active_s = self._loop.time()
            self._sending.resume()

    # --- called by the request runner -----------------------------------------------------------------------------

    def answer(self, correlation_id: int, message: Message, slices: Sequence[FileSlice] = ()) -> None:
        """Ends a request with `message` and the bytes of `slices` behind it. Sent by the Outbox."""
        self._in_flight -= 1
        if self.is_lost or self._is_discarding:
            return
        payload_bytes = sum([piece.size_bytes for piece in slices]) if slices else 0
        try:
            self._sending.push(self._connection.answer(correlation_id, message, payload_bytes), slices)
        except AnswerTooLarge as error:
            self._sending.push(self._connection.refuse(correlation_id, error))
        self._context.outbox.add(self)

    def refuse(self, correlation_id: int, error: ApiError) -> None:
        """Ends a request with an error that concerns all of it."""
        self._in_flight -= 1
        if self.is_lost or self._is_discarding:
            return
        self._sending.push(self._connection.refuse(correlation_id, error))
        self._context.outbox.add(self)

    def end_without_answer(self) -> None:
        """Ends a request that gets no response."""
        self._in_flight -= 1

    def hold(self, payload_bytes: int) -> None:
        """Starts no request until `resume`: one with so much payload is under way, and none may overtake it."""
        self._is_alone = True
        self._room.hold(payload_bytes)

    def resume(self, *, was_held: bool) -> None:
        """Sends what was answered outside of a call of this session; starts requests again if they were held."""
        if was_held:
            self._is_alone = False
            self._room.hold(0)
        self._context.outbox.add(self)
        self._context.outbox.send()

    def close(self, reason: str, *, kind: str = "connections closed") -> None:
        """Cuts the connection. `kind` is what such lines are counted as when there are many."""
        if not self.is_lost:
            self._tell(kind, f"connection with {self.name} closed: {reason}")
            self._transport.abort()

    # --- called by the server -------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Looks at the deadlines; called several times a second."""
        self._requests.tick(now_s)
        deadlines = self._deadlines
        if self._is_discarding:
            if now_s - deadlines.active_s > LINGER_S:
                self._transport.abort()
            return
        idle_s = now_s - deadlines.active_s
        patience_s = SHRINK_WHEN_SHORT_AFTER_S if self._context.memory.is_short else SHRINK_AFTER_S
        if idle_s > patience_s and not self._backlog:
            self._room.shrink()
        if self._is_resting() and idle_s * 1000 <= self._context.config.connections_max_idle_ms:
            deadlines.rested_s = now_s  # thousands of connections rest, several times a second
            return
        overdue = deadlines.overdue(now_s, self._standing())
        if overdue is not None:
            self.close(overdue.reason, kind=overdue.rule)

    def stop(self) -> None:
        """Starts no further request, and closes as soon as what is under way was answered and sent."""
        self._is_stopping = self._is_ending = True
        self._backlog.clear()
        self._pause_reading()
        self._close_when_done()

    def flush(self) -> None:
        """Sends what was answered, and goes on with requests that had to wait."""
        if self.is_lost:
            return
        self._sending.pump()
        if self._backlog or self._is_reading_paused:
            self._start_requests()
            self._provide_buffer(was_filled=False)
        if self._is_ending or self._is_discarding:
            self._close_when_done()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _may_start(self) -> bool:
        config = self._context.config
        return (
            not self._is_alone
            and self._in_flight < config.max_in_flight_requests
            and self._sending.queued_bytes <= config.send_queue_bytes
            and not (self._context.answers.is_short and self._sending.held_bytes)
            and not self._is_stopping
        )

    def _start_requests(self) -> None:
        backlog = self._backlog
        while backlog and self._may_start():
            self._in_flight += 1
            self._requests.start(backlog.popleft())
        if backlog or not self._may_start():
            self._pause_reading()
        else:
            self._resume_reading()

    def _refuse(self, error: RemoteProtocolError) -> None:
        """Tells the peer what it did wrong, if it can be told, and ends the connection."""
        self._tell(f"connections closed, {error.kind}", f"connection with {self.name} closed: {error}")
        self._is_discarding = True
        self._backlog.clear()
        self._resume_reading()
        if error.reply:
            self._sending.push(error.reply)
            self._context.outbox.add(self)
        else:
            self._transport.close()

    def _is_done(self) -> bool:
        return not self._in_flight and not self._backlog and self._sending.is_empty

    def _close_when_done(self) -> None:
        if self.is_lost or self._transport.is_closing():
            return
        if self._is_discarding:
            if self._sending.is_empty:
                self._transport.write_eof()
        elif self._is_done():
            self._transport.close()

    def _sent(self) -> None:
        """Some of what had to wait was sent: there may be room for requests that wait."""
        if not self.is_lost and (self._backlog or self._is_reading_paused or self._is_ending or self._is_discarding):
            self._context.outbox.add(self)
            self._context.outbox.send()

    def _pause_reading(self) -> None:
        if not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_reading_paused and not self._room.is_waiting:
            self._is_reading_paused = False
            self._transport.resume_reading()

    def _provide_buffer(self, *, was_filled: bool) -> None:
        """Sees to it that the next read finds room; until there is memory for it, nothing is read."""
        if not self._backlog:
            may_read = self._may_start()
            self._room.provide(was_filled=was_filled and may_read, may_read=may_read)
            if self._room.is_waiting or not may_read:
                self._pause_reading()

    def _memory_granted(self) -> None:
        if not self._backlog and self._may_start():
            self._resume_reading()

    def _is_resting(self) -> bool:
        return self._connection.is_open and not self._had_partial and self._sending.is_empty

    def _standing(self) -> Standing:
        sending = self._sending
        return Standing(
            is_open=self._connection.is_open,
            has_partial=self._had_partial,
            is_kept_waiting=self._is_reading_paused,
            is_in_the_way=self._room.is_in_the_way,
            is_reader_due=sending.is_reader_due,
            is_hoarding=self._context.answers.is_short and sending.held_bytes > 0,
            is_served=bool(self._in_flight) and sending.is_empty,
            received_bytes=self._received_bytes,
            taken_bytes=sending.taken_bytes,
        )

    def _refuse_connection(self) -> None:
        """There are too many: the Handshake is answered with the reason, or the connection cut when many are told."""
        self._tell("connections refused", f"connection from {self.name} refused: {self._refusal}", logging.WARNING)
        self.is_lost = self._is_discarding = True
        if self._context.connections.may_tell(self):
            self._loop.call_later(LINGER_S, self._transport.abort)
        else:
            self._transport.abort()

    def _turn_away(self, nbytes: int) -> None:
        """Answers the first request with why it cannot be served."""
        try:
            requests = self._connection.received(nbytes)
        except RemoteProtocolError:
            self._transport.abort()
            return
        if requests:
            error = TooManyConnections(self._refusal)
            self._transport.write(self._connection.refuse(requests[0].correlation_id, error))
            self._transport.write_eof()
            self._refusal = ""

    def _tell(self, kind: str, message: str, level: int = logging.INFO) -> None:
        self._context.lines.write(level, kind, message, self._loop.time())
