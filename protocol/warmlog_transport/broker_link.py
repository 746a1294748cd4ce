"""The link to one broker: a connection that is recreated on request, with growing pauses between failed attempts."""

import asyncio
import logging
import random
from collections.abc import Callable

from warmlog_protocol.errors import WarmlogError
from warmlog_protocol.codec.memory import zeroed_memory
from warmlog_protocol.wire.frames import Allocate
from warmlog_transport.address import Address
from warmlog_transport.connection import Connection
from warmlog_transport.errors import BrokerUnavailable, ClientClosed
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.responses import Throttle

_log = logging.getLogger("warmlog")

_MAX_DOUBLINGS = 20


def backoff_ms(failures: int, options: ConnectionOptions, jitter: float) -> float:
    """The pause after the `failures`-th failure in a row: doubling, bounded, 20 % up or down by `jitter` in [0, 1).

    With a random `jitter`, clients that lost a broker at the same time do not all reconnect at the same time.
    """
    if failures <= 0:
        return 0.0
    doubled = options.retry_backoff_ms * float(2 ** min(failures - 1, _MAX_DOUBLINGS))
    return min(doubled, options.retry_backoff_max_ms) * (0.8 + 0.4 * jitter)


class BrokerLink:
    """At most one connection to `address`; `on_change` is called when it opens, is lost or becomes writable."""

    def __init__(self, address: Address, options: ConnectionOptions, on_change: Callable[[], None], allocate: Allocate = zeroed_memory) -> None:
        self.address = address
        self.last_error: WarmlogError | None = None
        self.throttle = Throttle()
        self._options = options
        self._allocate = allocate
        self._on_change = on_change
        self.connection: Connection | None = None
        """The open connection, if there is one now."""
        self._attempt: asyncio.Task[None] | None = None
        self._failures = 0
        self._is_closed = False

    def want(self) -> None:
        """Connect in the background, after the pause that is due, unless it is connected or connecting."""
        if self.connection is None and self._attempt is None and not self._is_closed:
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

    async def close(self) -> None:
        """Close the connection and stop trying."""
        self._is_closed = True
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.wait([self._attempt])
        if self.connection is not None:
            await self.connection.close()

    async def _connect(self) -> None:
        try:
            await asyncio.sleep(backoff_ms(self._failures, self._options, random.random()) / 1000)  # noqa: S311
            connection = await Connection.open(self.address, self._options, self._changed, self.throttle, self._allocate)
        except WarmlogError as error:
            self._failures += 1
            if self._failures == 2:  # after a single attempt the caller reports the error
                _log.warning("%s; trying again", error)
            self.last_error = error
        else:
            self.connection = connection if connection.is_open else None
            if self._failures:
                _log.info("connected to broker %s after %d failed attempts", self.address, self._failures)
            self._failures = 0
        finally:
            self._attempt = None
            self._on_change()

    def _changed(self) -> None:
        if self.connection is None:
            return
        if not self.connection.is_open:
            self.connection = None
        self._on_change()
