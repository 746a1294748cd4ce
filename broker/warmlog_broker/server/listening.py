"""The listeners of a broker: bound at the start, accepting connections while it serves, with certificates reloaded."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import datetime
from functools import partial

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.config.listeners import Listener
from warmlog_broker.network.session import Session
from warmlog_broker.network.tls.acceptor import MOST_HANDSHAKES, TlsAcceptor
from warmlog_broker.network.tls.certificate import Certificate
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.runtime.tasks import Tasks
from warmlog_broker.server.listener import BoundListener, bind_all

BACKLOG = 1024

_log = logging.getLogger(__name__)


class Listening:
    """All listeners of one broker."""

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
        """The addresses, with name and protocol if the setting `listeners` gave them."""
        if not self._config.listeners:
            return ", ".join(self.addresses.values())
        listeners = self._config.all_listeners
        return ", ".join(f"{each.name}={each.protocol}://{self.addresses[each.name]}" for each in listeners)

    def certificate_expiry(self) -> datetime | None:
        """When the certificate in use expires; None without TLS, or if that cannot be told."""
        return None if self._certificate is None else self._certificate.expires_at

    @property
    def most_handshakes(self) -> int:
        """How many connections may be in their TLS handshake, on all listeners: each has a descriptor."""
        return MOST_HANDSHAKES * sum(each.uses_tls for each in self._config.all_listeners)

    async def load_certificate(self) -> None:
        """Load the files of TLS if a listener uses it. Raises InvalidConfig."""
        if self.most_handshakes:
            self._certificate = await self._loop.run_in_executor(self._threads, Certificate, self._config)

    def bind(self) -> list[BoundListener]:
        """Bind all. Raises CannotListen."""
        return bind_all(self._config.all_listeners)

    async def accept(self, bound: list[BoundListener], make_session: Callable[[Listener], Session]) -> None:
        """Accept connections on all that `bind` returned, until `close`. Raises CannotListen."""
        self.addresses = {each.listener.name: each.address for each in bound}
        for each in bound:
            await self._accept_on(each, partial(make_session, each.listener))
        if self._certificate is not None and self._config.tls_reload_interval_ms:
            self._reloading = self._tasks.start(self._reload_when_changed(self._certificate), name="TLS reloads")

    async def _accept_on(self, bound: BoundListener, make_session: Callable[[], Session]) -> None:
        bound.listen(BACKLOG)  # uvloop would not report that this fails
        if bound.listener.uses_tls:
            assert self._certificate is not None, "load_certificate comes first"
            self._servers.append(
                TlsAcceptor(
                    bound.sockets,
                    certificate=self._certificate,
                    handshake_timeout_s=self._config.handshake_timeout_ms / 1000,
                    make_session=make_session,
                    tasks=self._tasks,
                    lines=self._lines,
                )
            )
            return
        for listening in bound.sockets:
            self._servers.append(await self._loop.create_server(make_session, sock=listening, backlog=BACKLOG))

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

    async def _reload_when_changed(self, certificate: Certificate) -> None:
        while True:
            await asyncio.sleep(self._config.tls_reload_interval_ms / 1000)
            await self._in_thread(certificate.reload_if_changed)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        await self._loop.run_in_executor(self._threads, work)
