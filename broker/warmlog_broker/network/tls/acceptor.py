"""Accepts the connections of a TLS listener: asyncio shakes hands, then a session begins.

asyncio's own server would not say why a handshake failed, nor limit how many there are at once.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence

from warmlog_broker.config.listeners import format_address
from warmlog_broker.network.tls.certificate import Certificate
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.runtime.tasks import Tasks

MOST_HANDSHAKES = 256
"""On one listener; each has a descriptor and a task. One more ends the oldest: a handshake takes milliseconds, unless
the peer does not mean to finish it."""
PAUSE_S = 0.5
"""How long nothing is accepted after an error of the system, such as a lack of descriptors."""
FAREWELL_S = 2.0
"""How long a connection that is closed may take to exchange the ends of both directions."""

_HINTS = {
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS: a warmlog client needs ssl=True (--ssl) here",
    "HTTP_REQUEST": "the peer speaks HTTP without TLS",
    "UNSUPPORTED_PROTOCOL": "the peer offers only versions of TLS below 1.2",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has shown no certificate, which tls.client.auth asks for",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the issuer of tls.cert.file",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client refuses tls.cert.file",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "tls.cert.file has expired",
}
"""What an error of OpenSSL means, by its name."""


class TlsAcceptor:
    """The sockets of one TLS listener, and the handshakes of their connections."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        *,
        certificate: Certificate,
        handshake_timeout_s: float,
        make_session: Callable[[], asyncio.BaseProtocol],
        tasks: Tasks,
        lines: RepeatedLines,
    ) -> None:
        """Accept connections from now on; the sockets listen already."""
        self._sockets = sockets
        self._certificate = certificate
        self._timeout_s = handshake_timeout_s
        self._make_session = make_session
        self._tasks = tasks
        self._lines = lines
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[asyncio.Task[None], None] = {}
        """Those under way, the oldest first."""
        self._is_closed = False
        for each in sockets:
            each.setblocking(False)
        self._watch_sockets()

    def close(self) -> None:
        """Accept nothing more, and end the handshakes; sessions go on."""
        if self._is_closed:
            return
        self._is_closed = True
        for each in self._sockets:
            self._loop.remove_reader(each)
            each.close()
        for handshake in self._handshakes:
            handshake.cancel()

    def _watch_sockets(self) -> None:
        if not self._is_closed:
            for each in self._sockets:
                self._loop.add_reader(each, self._accept, each)

    def _accept(self, listening: socket.socket) -> None:
        try:
            accepted, peer = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            message = f"no connection is accepted for {PAUSE_S:g} s: {error}"
            self._lines.write(logging.ERROR, "failed accepts", message, self._loop.time())
            for each in self._sockets:
                self._loop.remove_reader(each)
            self._loop.call_later(PAUSE_S, self._watch_sockets)
            return
        if len(self._handshakes) >= MOST_HANDSHAKES:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            oldest.cancel()
        accepted.setblocking(False)
        name = format_address(peer[0], peer[1])
        handshake = self._tasks.start(self._shake_hands(accepted, name), name=f"TLS handshake with {name}")
        self._handshakes[handshake] = None
        handshake.add_done_callback(lambda done: self._ended(done, accepted))

    async def _shake_hands(self, accepted: socket.socket, peer: str) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make_session,
                accepted,
                ssl=self._certificate.context,
                ssl_handshake_timeout=self._timeout_s,
                ssl_shutdown_timeout=FAREWELL_S,
            )
        except OSError as error:  # also those of ssl, and that the time is over
            message = f"TLS handshake with {peer} failed: {why_failed(error)}"
            self._lines.write(logging.INFO, "failed TLS handshakes", message, self._loop.time())
        except asyncio.CancelledError:
            if not self._is_closed:
                message = f"TLS handshake with {peer} ended: it was the oldest of {MOST_HANDSHAKES} on its listener"
                self._lines.write(logging.WARNING, "TLS handshakes ended", message, self._loop.time())
            raise

    def _ended(self, handshake: "asyncio.Task[None]", accepted: socket.socket) -> None:
        self._handshakes.pop(handshake, None)
        if handshake.cancelled():  # maybe before its first step
            accepted.close()


def why_failed(error: OSError) -> str:
    """Return what was wrong with a handshake, for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate was refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return _HINTS.get(error.reason) or error.reason.replace("_", " ").lower()
    if isinstance(error, ConnectionAbortedError):
        return "it was not done within handshake.timeout.ms"
    if isinstance(error, ConnectionResetError):
        return "the peer has closed the connection: does it trust the issuer of tls.cert.file?"
    return str(error)
