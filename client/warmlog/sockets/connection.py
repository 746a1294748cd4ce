"""The client without an event loop: for worker processes that read or write one range, as Spark's do.

A `BlockingConnection` is the shell of the sans-I/O ClientConnection around a plain socket. It does not reconnect; the
caller opens a new one. `BlockingCluster` finds leaders and requests offsets over such connections.

A call that is interrupted, for example by Ctrl-C, can be made again (see WholeCall).
"""

import math
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar

from warmlog.errors import (
    ApiError,
    BrokerUnavailable,
    ClientClosed,
    RemoteProtocolError,
    SaslAuthenticationFailed,
    WarmlogError,
)
from warmlog_protocol.batch import Piece
from warmlog_protocol.codec.memory import zeroed_memory
from warmlog_protocol.messages import AuthenticateResponse, HandshakeResponse, Message
from warmlog_protocol.wire.connection import ClientConnection, ReceivedResponse
from warmlog_protocol.wire.frames import Allocate
from warmlog_transport.address import Address, silent, why_unconnected
from warmlog_transport.connection import Throttle
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.tls import lost_early

R = TypeVar("R", bound=Message)

MOST_PARTS = 1024
"""The limit of one sendmsg, IOV_MAX: https://man7.org/linux/man-pages/man2/writev.2.html."""
TLS_RECORD_BYTES = 16 * 1024
"""The most bytes in a record: https://www.rfc-editor.org/rfc/rfc8446#section-5.1"""
_SHORTEST_WAIT_S = 0.001
"""A socket with a timeout of 0 would be non-blocking."""


class Interruptible(Protocol):
    """What WholeCall needs of a client."""

    is_cut_short: bool

    def recover(self) -> None:
        """Clean up after the interrupted call. It is called again if it is interrupted itself."""


class WholeCall:
    """A context manager for one call of a client. It calls `recover` first if the last call was interrupted.

    KeyboardInterrupt, or another exception of a signal handler, may come between any two steps of a call, and again
    while the first one is handled. So it is not handled at all: `is_cut_short` is true from before the first step until
    after the last one. Only a return, or an error of this client, ends a call.
    """

    __slots__ = ("_client",)

    def __init__(self, client: Interruptible) -> None:
        self._client = client

    def __enter__(self) -> None:
        if self._client.is_cut_short:
            self._client.recover()
        self._client.is_cut_short = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, WarmlogError):
            self._client.is_cut_short = False


class Closing(ABC):
    """A context manager that calls `close` at its end."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingConnection(Closing):
    """One connection on a plain socket. Requests can be pipelined: `request` now, `wait` for the response later.

    It is not thread-safe. Every failure of the socket closes it and raises BrokerUnavailable. An interrupted call
    closes it, too: it may have sent or received half a frame.

    After a response that tells of an exceeded quota, the next request waits as long as that says, and the time for
    responses begins after that.
    """

    def __init__(
        self,
        host: str,
        port: int,
        options: ConnectionOptions | None = None,
        *,
        allocate: Allocate = zeroed_memory,
        throttle: Throttle | None = None,
    ) -> None:
        """Connect, shake hands and authenticate; BrokerUnavailable or SaslAuthenticationFailed if that fails.

        `allocate` provides memory for large responses. `throttle` counts for several connections, one after another.
        """
        self.address = Address(host, port)
        self._options = options or ConnectionOptions()
        self._core = ClientConnection(
            max_frame_bytes=self._options.max_frame_bytes,
            buffer_bytes=self._options.receive_buffer_bytes,
            allocate=allocate,
        )
        self._responses: dict[int, ReceivedResponse] = {}
        self._throttle = throttle or Throttle()
        self._socket: socket.socket | None = None
        self.is_cut_short = False
        self._next_session_s = math.inf
        try:
            self._socket = self._connect()
            self.broker = self.call(self._options.handshake(), HandshakeResponse)
            with WholeCall(self):
                self._authenticate()
        except BaseException:
            self.close()
            raise

    def request(self, message: Message, payload: Sequence[Piece] = ()) -> int:
        """Send a request; return the correlation id to `wait` for."""
        with WholeCall(self):
            return self._request(message, payload)

    def wait(self, correlation_id: int, timeout_ms: int | None = None) -> ReceivedResponse:
        """Return the response to one request, or raise the ApiError for it. Its payload is never overwritten.

        Responses to other requests that arrive in between are kept for their own `wait`.
        """
        with WholeCall(self):
            return self._wait(correlation_id, timeout_ms)

    def call(
        self,
        message: Message,
        expected: type[R],
        payload: Sequence[Piece] = (),
        *,
        timeout_ms: int | None = None,
    ) -> R:
        """Send a request and return its response, which has no payload."""
        with WholeCall(self):
            response = self._wait(self._request(message, payload), timeout_ms)
        assert isinstance(response.result, expected)
        return response.result

    @property
    def is_open(self) -> bool:
        """False after `close`, and after a call that failed or was interrupted."""
        return self._socket is not None and not self.is_cut_short

    @property
    def throttled_for_s(self) -> float:
        """For how long the broker does not read it because of a quota; `request` waits for that."""
        return max(0.0, self._throttle.until_s - time.monotonic())

    def close(self) -> None:
        """Close the socket; may be called twice."""
        sock, self._socket = self._socket, None
        if sock is not None:
            self._throttle.reset(time.monotonic())
            sock.close()

    def recover(self) -> None:
        """Close: the stream of bytes may have stopped within a frame."""
        self.close()

    def _connect(self) -> socket.socket:
        tls = self._options.tls_context()
        try:
            sock = socket.create_connection(self.address, self._options.connect_timeout_ms / 1000)
        except OSError as error:
            raise BrokerUnavailable(f"no connection to broker {self.address}: {why_unconnected(error)}") from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock if tls is None else self._encrypt(sock, tls)

    def _encrypt(self, sock: socket.socket, tls: ssl.SSLContext) -> socket.socket:
        """Return the socket after the handshake of TLS."""
        try:
            return tls.wrap_socket(sock, server_hostname=self.address.host)
        except TimeoutError as error:
            sock.close()
            timeout_s = self._options.connect_timeout_ms / 1000
            raise BrokerUnavailable(silent(self.address, timeout_s)) from error
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError):
                raise
            reason = why_unconnected(error, uses_tls=True)
            raise BrokerUnavailable(f"no connection to broker {self.address}: {reason}") from error

    def _authenticate(self) -> None:
        self._next_session_s = math.inf
        steps = self._options.login(self.address, self.broker)
        try:
            request = next(steps)
            while True:
                response = self._wait(self._request(request, ()), None).result
                assert isinstance(response, AuthenticateResponse)
                request = steps.send(response)
        except StopIteration as done:
            self._next_session_s = time.monotonic() + done.value if done.value else math.inf
        except SaslAuthenticationFailed:
            self.close()
            raise

    def _request(self, message: Message, payload: Sequence[Piece]) -> int:
        if time.monotonic() >= self._next_session_s:
            self._authenticate()
        correlation_id, frame = self._core.request(message, sum(map(len, payload)))
        if delay_s := self.throttled_for_s:
            time.sleep(delay_s)
        sock = self._open_socket()
        try:
            _send_all(sock, [frame, *payload])
        except OSError as error:
            raise self._lost(error) from error
        return correlation_id

    def _wait(self, correlation_id: int, timeout_ms: int | None) -> ReceivedResponse:
        timeout_s = (self._options.request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        began_s = time.monotonic()
        while (response := self._responses.pop(correlation_id, None)) is None:
            self._receive(max(began_s, self._throttle.until_s) + timeout_s)
        if isinstance(response.result, ApiError):
            raise response.result
        return response

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            raise ClientClosed(f"the connection to broker {self.address} is closed")
        self._socket.settimeout(self._options.request_timeout_ms / 1000)
        return self._socket

    def _receive(self, deadline: float) -> None:
        """Wait for bytes once and keep the responses that they complete."""
        sock = self._open_socket()
        remaining = deadline - time.monotonic()
        try:
            sock.settimeout(max(remaining, _SHORTEST_WAIT_S))
            count = sock.recv_into(self._core.get_buffer())
            if count == 0:
                raise ConnectionResetError("the broker closed it")
            for response in self._core.received(count):
                self._throttle.note(response.result, time.monotonic())
                self._responses[response.correlation_id] = response.owned()
        except TimeoutError as error:
            lost = self._lost(TimeoutError("no response in time"))
            if self._core.broker is None:
                lost = BrokerUnavailable(silent(self.address, self._options.request_timeout_ms / 1000))
            raise lost from error
        except (OSError, RemoteProtocolError) as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> BrokerUnavailable:
        self.close()
        reason: object = error
        if self._core.broker is None:
            reason = lost_early(error, uses_tls=bool(self._options.ssl))
        return BrokerUnavailable(f"connection to broker {self.address} lost: {reason}")


def _send_all(sock: socket.socket, parts: Sequence[Piece]) -> None:
    """Send `parts` one after another, in as few calls as possible."""
    if isinstance(sock, ssl.SSLSocket):
        _send_encrypted(sock, parts)
        return
    pending = [memoryview(part) for part in parts if len(part)]
    first = 0
    while first < len(pending):
        sent = sock.sendmsg(pending[first : first + MOST_PARTS])
        while sent and sent >= len(pending[first]):
            sent -= len(pending[first])
            first += 1
        if sent:
            pending[first] = pending[first][sent:]


def _send_encrypted(sock: ssl.SSLSocket, parts: Sequence[Piece]) -> None:
    """Send `parts` one after another; small ones together, as each call makes at least one record of TLS."""
    small = bytearray()
    for part in [memoryview(each) for each in parts]:
        if len(part) <= TLS_RECORD_BYTES:
            small += part
        if len(part) > TLS_RECORD_BYTES or len(small) >= TLS_RECORD_BYTES:
            sock.sendall(small)
            small.clear()
        if len(part) > TLS_RECORD_BYTES:
            sock.sendall(part)
    sock.sendall(small)
