"""The admin port: metrics and health over HTTP, served by the broker's event loop.

======================  =======================================================================
``/metrics``            Prometheus text, or OpenMetrics if the client asks for it
``/healthz/live``       200; a client that gets no response within its timeout restarts the broker
``/healthz/ready``      200 if clients are served, else 503; the text says what is wrong
``/healthz/in-sync``    200 if that is so, and all replicas here are in sync, else 503
======================  =======================================================================

It has no authentication: bind it to loopback or to a network of operators.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from http import HTTPStatus
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

REQUEST_TIMEOUT_S = 10.0
"""A client that has not sent its request or read the response then is disconnected."""
MAX_CONNECTIONS = 16
"""One more ends the oldest, so that clients that do not finish their requests keep no health check out."""
MAX_REQUEST_BYTES = 16 * 1024
PAGES = ("/metrics", "/healthz/live", "/healthz/ready", "/healthz/in-sync")
TEXT = "text/plain; charset=utf-8"

_log = logging.getLogger(__name__)


class Health(NamedTuple):
    """Whether the broker serves clients, and what is wrong, a line for each problem."""

    is_ready: bool
    problems: Sequence[str]
    is_in_sync: bool = True


class Source(Protocol):
    """The broker, as the admin port sees it, also while it starts."""

    async def collect(self) -> list[Metric]: ...
    async def health(self) -> Health: ...


class Answer(NamedTuple):
    """A response of HTTP."""

    status: HTTPStatus
    content_type: str
    body: bytes


class AdminServer:
    """Serves on `listeners`, which are bound, from `start` until `close`."""

    def __init__(self, listeners: Sequence[socket.socket], source: Source) -> None:
        self._listeners = listeners
        self._source = source
        self._servers: list[asyncio.Server] = []
        self._served: dict[asyncio.StreamWriter, None] = {}
        """The oldest first."""

    async def start(self) -> None:
        for each in self._listeners:
            server = await asyncio.start_server(self._serve, sock=each, limit=MAX_REQUEST_BYTES)
            self._servers.append(server)

    def close(self) -> None:
        """Accept no further connections, and cut those that are open."""
        for server in self._servers:
            server.close()
        if not self._servers:
            for each in self._listeners:
                each.close()
        for writer in self._served:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._served) >= MAX_CONNECTIONS:
            oldest = next(iter(self._served))
            del self._served[oldest]
            oldest.transport.abort()
        self._served[writer] = None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._respond(head.decode("latin-1")))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError) as error:
            _log.debug("admin port: a connection failed: %r", error)
        finally:
            self._served.pop(writer, None)
            writer.transport.abort()

    async def _respond(self, head: str) -> bytes:
        """Return the response to a request, of which `head` is everything but a body."""
        line, *header_lines = head.split("\r\n")
        method, target = [*line.split(" "), "", ""][:2]
        accepted = [each.partition(":")[2].strip() for each in header_lines if each.lower().startswith("accept:")]
        try:
            answer = await self._answer(method, target.partition("?")[0], ",".join(accepted))
        except Exception:
            _log.exception("admin port: %s failed: a bug", target)
            answer = _text(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug: the broker's log has it")
        text = (
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\nContent-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
        )
        return text.encode() + (b"" if method == "HEAD" else answer.body)

    async def _answer(self, method: str, path: str, accepted: str) -> Answer:
        if method not in ("GET", "HEAD"):
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed")
        if path == "/metrics":
            metrics = await self._source.collect()
            return await asyncio.to_thread(_exposition, metrics, accepted)
        if path == "/healthz/live":
            return _text(HTTPStatus.OK, "alive")
        if path in ("/healthz/ready", "/healthz/in-sync"):
            health = await self._source.health()
            if health.is_ready and (health.is_in_sync or path == "/healthz/ready"):
                return _text(HTTPStatus.OK, "\n".join(["ready", *health.problems]))
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(["not ready", *health.problems]))
        return _text(HTTPStatus.NOT_FOUND, f"there are {', '.join(PAGES)}")


def _exposition(metrics: list[Metric], accepted: str) -> Answer:
    """Return `metrics` and those of the process in the format that the client prefers. Tens of ms for many topics."""
    registry = CollectorRegistry()
    registry.register(_Collected(metrics))
    ProcessCollector(registry=registry)
    try:
        encode, content_type = choose_encoder(accepted)
    except (TypeError, ValueError):  # a version that is no number
        encode, content_type = choose_encoder("")
    return Answer(HTTPStatus.OK, content_type, encode(registry))


def _text(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, TEXT, f"{text}\n".encode())


class _Collected(Collector):
    """Metrics that were collected already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics
