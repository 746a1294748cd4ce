"""The admin port: metrics and health over HTTP, in threads of its own.

======================  ================================================================================
``/metrics``            Prometheus text, or OpenMetrics if the client asks for it
``/healthz/live``       200 if the event loop responds within RESPONSE_TIMEOUT_S, else 503: restart it
``/healthz/ready``      200 if clients are served, else 503; the text says what is wrong
======================  ================================================================================

Each answer is made in the broker's event loop, so one that hangs is noticed. It has no authentication: bind it to
loopback or to a network of operators.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple, Protocol, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

RESPONSE_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 10.0
"""A client that sends or reads nothing for this long is disconnected."""
POLL_S = 0.05
"""How long a `close` may take."""
MAX_THREADS = 16
"""Requests at once. One more ends the oldest of them, so that clients that do not finish keep no health check out."""
TEXT = "text/plain; charset=utf-8"

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Health(NamedTuple):
    """Whether the broker serves clients, and what is wrong, a line for each problem."""

    is_ready: bool
    problems: Sequence[str]


class Source(Protocol):
    """The broker, as the admin port sees it. Both are called in its event loop, also while it starts."""

    async def collect(self) -> list[Metric]: ...
    async def health(self) -> Health: ...


class Answer(NamedTuple):
    """A response of HTTP."""

    status: str
    content_type: str
    body: bytes


class AdminServer:
    """Serves on `listeners` from its creation until `close`."""

    def __init__(self, listeners: Sequence[socket.socket], loop: asyncio.AbstractEventLoop, source: Source) -> None:
        self._loop = loop
        self._source = source
        self._servers = [_Server(listener, self._respond) for listener in listeners]
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=[POLL_S], name="admin", daemon=True).start()

    def close(self) -> None:
        """End the threads that accept connections, and close the sockets."""
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _respond(self, environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        answer = self._answer(environ)
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))]
        start_response(answer.status, headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.body]

    def _answer(self, environ: dict[str, Any]) -> Answer:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _text("405 Method Not Allowed", "only GET and HEAD are allowed")
        pages = {"/metrics": self._metrics, "/healthz/live": self._live, "/healthz/ready": self._ready}
        page = pages.get(environ["PATH_INFO"])
        if page is None:
            return _text("404 Not Found", f"there are {', '.join(pages)}")
        try:
            return page(environ)
        except (TimeoutError, RuntimeError):  # the loop hangs, or has just been closed
            return _text("503 Service Unavailable", f"the broker has not responded within {RESPONSE_TIMEOUT_S:g} s")

    def _metrics(self, environ: dict[str, Any]) -> Answer:
        registry = CollectorRegistry()
        registry.register(_Collected(self._in_loop(self._source.collect())))
        ProcessCollector(registry=registry)
        try:
            encode, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        except (TypeError, ValueError):  # a version that is no number
            encode, content_type = choose_encoder("")
        return Answer("200 OK", content_type, encode(registry))

    def _live(self, _environ: dict[str, Any]) -> Answer:
        self._in_loop(asyncio.sleep(0))
        return _text("200 OK", "alive")

    def _ready(self, _environ: dict[str, Any]) -> Answer:
        health = self._in_loop(self._source.health())
        status, first = ("200 OK", "ready") if health.is_ready else ("503 Service Unavailable", "not ready")
        return _text(status, "\n".join([first, *health.problems]))

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. TimeoutError, or RuntimeError if the loop is closed."""
        try:
            done: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise
        try:
            return done.result(RESPONSE_TIMEOUT_S)
        except TimeoutError:
            done.cancel()
            raise


def _text(status: str, text: str) -> Answer:
    return Answer(status, TEXT, f"{text}\n".encode())


class _Collected(Collector):
    """Metrics that were collected already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


class _Lines:
    """Where wsgiref writes tracebacks: lines of the log, at the level debug as clients can cause them at any rate."""

    def write(self, text: str) -> None:
        _log.debug("admin port: %s", text)

    def flush(self) -> None:
        pass


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def get_stderr(self) -> Any:
        return _Lines()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name in the base class
        _log.debug("admin port, %s: %s", self.client_address[0], format % arguments)


class _Server(ThreadingMixIn, WSGIServer):
    """WSGI on a socket that is bound already, with a limit on threads."""

    daemon_threads = True
    request_queue_size = MAX_THREADS

    def __init__(self, listener: socket.socket, application: Callable[..., Iterable[bytes]]) -> None:
        self.address_family = listener.family
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self._free = threading.BoundedSemaphore(MAX_THREADS)
        self._served: dict[socket.socket, None] = {}
        """The oldest first."""
        host, port = listener.getsockname()[:2]
        self.server_name, self.server_port = host, port  # server_bind would look the host up in the DNS
        self.setup_environ()
        self.set_app(application)
        self.server_activate()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self._end_oldest()
            if not self._free.acquire(timeout=POLL_S):  # it waits for the broker
                self.shutdown_request(request)
                return
        self._served[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._served.pop(request, None)
            self._free.release()

    def _end_oldest(self) -> None:
        """End the connection; its thread wakes up, and has ended soon."""
        for oldest in list(self._served)[:1]:
            self._served.pop(oldest, None)
            with suppress(OSError):  # it has just ended by itself
                oldest.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as in the base class
        _log.debug("admin port: the connection with %s failed", client_address[0], exc_info=True)
