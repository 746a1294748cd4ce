"""The listeners of a broker: bound at the start, accepting connections while it serves, with certificates reloaded."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.config.listeners import Listener, Wire, format_address
from warmlog_broker.network.session import Session
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.runtime.tasks import Tasks
from warmlog_protocol.errors import WarmlogError

if TYPE_CHECKING:
    from warmlog_broker.network.tls.acceptor import TlsAcceptor
    from warmlog_broker.network.tls.certificate import Certificate

BACKLOG = 1024

_log = logging.getLogger(__name__)


class CannotListen(WarmlogError):
    """The broker cannot listen at an address; the message says why."""


class BoundListener(Struct, frozen=True):
    """A listener and its sockets, one for each address of its host."""

    listener: Listener
    sockets: list[socket.socket]

    @property
    def address(self) -> str:
        """Its host, and the port that it has."""
        return format_address(self.listener.host, self.sockets[0].getsockname()[1])

    def listen(self, backlog: int) -> None:
        """Listen at all addresses. Raises CannotListen if another socket does, which `bind` cannot tell if it was bound
        at the same time."""
        for each in self.sockets:
            try:
                each.listen(backlog)
            except OSError as error:
                raise CannotListen(f"cannot listen at {self.address}: {error.strerror}") from error

    def close(self) -> None:
        for each in self.sockets:
            each.close()


def bind_all(listeners: Iterable[Listener]) -> list[BoundListener]:
    """Bind each of `listeners`. Raises CannotListen, and binds none, if one cannot be bound."""
    bound: list[BoundListener] = []
    try:
        bound.extend(BoundListener(each, bind(each.host, each.port)) for each in listeners)
    except CannotListen:
        for each in bound:
            each.close()
        raise
    return bound


def bind(host: str, port: int) -> list[socket.socket]:
    """Return a socket for each address of `host`, bound to `port`; with port 0 all to one free port.

    Raises CannotListen, naming the address, if one of them cannot be bound.
    """
    sockets: list[socket.socket] = []
    try:
        # For text socket would import the rules of international names, which take a while.
        name = host.encode() if host.isascii() else host
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            sockets.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address[0], sockets[0].getsockname()[1] if len(sockets) > 1 else port, *address[2:]))
    except (OSError, UnicodeError) as error:
        for listener in sockets:
            listener.close()
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise CannotListen(f"cannot listen at {format_address(host, port)}: {reason}") from error
    return sockets


class Listening:
    def __init__(self, config: BrokerConfig, *, threads: Executor, tasks: Tasks, lines: RepeatedLines) -> None:
        self.addresses: dict[str, str] = {}
        """HOST:PORT of each listener by its name, while they accept connections."""
        self._config = config
        self._threads = threads
        self._tasks = tasks
        self._lines = lines
        self._loop = asyncio.get_running_loop()
        self._servers: list[asyncio.Server | TlsAcceptor] = []
        self._certificate: Certificate | None = None
        self._reloading: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        """The addresses, with name and protocol if `listeners` gave them, and what clients of Kafka are told."""
        return ", ".join(map(self._shown, self._config.all_listeners))

    def _shown(self, listener: Listener) -> str:
        shown = self.addresses[listener.name]
        if self._config.listeners:
            kafka = f"{listener.wire}+" if listener.wire is Wire.KAFKA else ""
            shown = f"{listener.name}={kafka}{listener.protocol}://{shown}"
        if listener.wire is Wire.KAFKA:
            told = format_address(*listener.advertised) if listener.advertised else "the address that they came to"
            shown += f" (clients of Kafka are told to use {told})"
        return shown

    def certificate_expiry(self) -> datetime | None:
        """When the certificate in use expires; None without TLS, or if that cannot be told."""
        return None if self._certificate is None else self._certificate.expires_at

    @property
    def most_handshakes(self) -> int:
        """How many connections may be in their TLS handshake, on all listeners: each has a descriptor."""
        listeners = sum(each.uses_tls for each in self._config.all_listeners)
        if not listeners:
            return 0
        from warmlog_broker.network.tls.acceptor import MOST_HANDSHAKES

        return MOST_HANDSHAKES * listeners

    async def load_certificate(self) -> None:
        """Load the files of TLS if a listener uses it. Raises InvalidConfig."""
        if self.most_handshakes:
            from warmlog_broker.network.tls.certificate import Certificate

            self._certificate = await self._loop.run_in_executor(self._threads, Certificate, self._config)

    async def accept(self, bound: list[BoundListener], make_session: Callable[[Listener], Session]) -> None:
        """Accept connections on all that `bind` returned, until `close`. Raises CannotListen."""
        self.addresses = {each.listener.name: each.address for each in bound}
        for each in bound:
            each.listen(BACKLOG)  # uvloop would not report that this fails
            make = partial(make_session, each.listener)
            if each.listener.uses_tls:
                self._servers.append(self._accept_tls(each.sockets, make))
            else:
                for listening in each.sockets:
                    self._servers.append(await self._loop.create_server(make, sock=listening, backlog=BACKLOG))
        if self._certificate is not None and self._config.tls_reload_interval_ms:
            self._reloading = self._tasks.start(self._reload_when_changed(self._certificate), name="TLS reloads")

    def _accept_tls(self, sockets: list[socket.socket], make_session: Callable[[], Session]) -> "TlsAcceptor":
        from warmlog_broker.network.tls.acceptor import TlsAcceptor

        assert self._certificate is not None, "load_certificate comes first"
        return TlsAcceptor(
            sockets,
            certificate=self._certificate,
            handshake_timeout_s=self._config.handshake_timeout_ms / 1000,
            make_session=make_session,
            tasks=self._tasks,
            lines=self._lines,
        )

    def close(self) -> None:
        """Accept no further connections; open ones stay."""
        for server in self._servers:
            server.close()
        if self._reloading is not None:
            self._reloading.cancel()

    def reload_certificate(self) -> None:
        """Load the files of TLS again, for new connections; only log that if there are none, or no connections yet."""
        if self._certificate is None or not self._servers:
            _log.info("warmlog: there is no TLS certificate to reload")
        else:
            self._tasks.start(self._in_thread(self._certificate.reload), name="reload of the TLS certificate")

    async def _reload_when_changed(self, certificate: "Certificate") -> None:
        while True:
            await asyncio.sleep(self._config.tls_reload_interval_ms / 1000)
            await self._in_thread(certificate.reload_if_changed)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        await self._loop.run_in_executor(self._threads, work)
