"""The life of an admin client: its connections, from `start` to `close`."""

import asyncio
from collections.abc import Sequence
from typing import Self, Unpack

from warmlog.errors import ClientClosed
from warmlog_transport.address import checked_bootstrap
from warmlog_transport.cluster import Cluster, Throttled, not_open
from warmlog_transport.options import ConnectionKeywords, connection_options


class Connected(Throttled):
    """What the parts of the admin client send their requests over."""

    def __init__(self, bootstrap: str | Sequence[str], **connection: Unpack[ConnectionKeywords]) -> None:
        """`bootstrap` is HOST:PORT, or several; `connection` may set any of the fields of ConnectionOptions."""
        self._bootstrap = checked_bootstrap(bootstrap)
        self._options = connection_options(connection, type(self))
        self._is_started = False
        self._cluster: Cluster | None = None

    async def start(self) -> Self:
        """Connect. Raises BrokerUnavailable if no bootstrap address responds."""
        if self._is_started:
            raise ClientClosed("an admin client can be started once: create another one")
        self._is_started = True
        cluster = Cluster(self._bootstrap, self._options)
        try:
            await cluster.start()
        except BaseException:
            await asyncio.shield(cluster.close())
            raise
        self._cluster = cluster
        self._throttling = cluster
        return self

    async def close(self) -> None:
        """Disconnect; closing twice is allowed, and cancelling the call does not end that."""
        if self._cluster is not None:
            cluster, self._cluster = self.cluster, None
            await cluster.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def cluster(self) -> Cluster:
        """The connections, also for requests of other parts of the client. Raises ClientClosed unless they are open."""
        if self._cluster is None:
            raise not_open("Admin", is_started=self._is_started)
        self._cluster.home.check()
        return self._cluster
