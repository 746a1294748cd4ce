"""The open connections, and the limits on their number: in total, for each address, and for each principal."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

REFUSED_AT_ONCE = 64
"""Connections beyond the limits that may receive the reason: each uses a descriptor briefly (file_limit.RESERVED)."""


PATIENCE_S = 1.0
"""A login takes milliseconds. One that takes longer ends if max.connections is reached, so that clients that do not log
in keep no others out."""


class OpenConnection(Protocol):
    """The interface of a connection that the broker uses."""

    @property
    def host(self) -> str: ...
    @property
    def user(self) -> str:
        """The user that has authenticated; "" if none has."""
        ...

    @property
    def requests_in_flight(self) -> int:
        """Requests that have started and not ended."""
        ...

    def dismiss(self) -> None:
        """End the connection of a user that was deleted."""
        ...

    def stop(self) -> None:
        """Start no further request, and close once those under way have ended."""
        ...

    def close(self, reason: str) -> None:
        """Cut the connection."""
        ...


class Connections:
    """All connections, counted by address and by principal."""

    def __init__(self, limit: int, limit_per_address: int) -> None:
        self.limit = limit
        self.limit_per_address = limit_per_address
        self._all: set[OpenConnection] = set()
        self._by_host: Counter[str] = Counter()
        self._by_principal: Counter[str] = Counter()
        self._principals: dict[OpenConnection, str] = {}
        """Of the connections whose principal is known."""
        self._strangers: dict[OpenConnection, float] = {}
        """The others, with their beginnings; the oldest first."""
        self._refused: set[OpenConnection] = set()
        self.gone_count = 0
        """How many connections have ended since the start."""
        self.next_number = itertools.count(1).__next__
        """Returns the number of a new connection."""
        self._gone = asyncio.Event()
        self._gone.set()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[OpenConnection]:
        """As they are now, with those that are told why they are refused: connections may end meanwhile."""
        return iter([*self._all, *self._refused])

    def refusal(self, host: str, now_s: float) -> str:
        """Return why a connection from `host` cannot be served; empty if it can."""
        if len(self._all) >= self.limit and not self._make_room(now_s):
            return f"{self.limit} connections are open, as many as max.connections allows"
        if self._by_host[host] >= self.limit_per_address:
            return f"{host} has {self.limit_per_address} connections open, as many as max.connections.per.ip allows"
        return ""

    def _make_room(self, now_s: float) -> bool:
        """End the oldest connection that has not logged in, if it takes too long."""
        oldest, since_s = next(iter(self._strangers.items()), (None, now_s))
        if oldest is None or now_s - since_s < PATIENCE_S:
            return False
        del self._strangers[oldest]
        oldest.close("it has not authenticated, and max.connections is reached")
        return True

    def identify(self, connection: OpenConnection, principal: str, limit: int | None) -> str:
        """Count `connection` for its principal, unless `limit` are; return why not, empty if it is counted."""
        before = self._principals.get(connection)
        if before == principal:
            return ""
        if limit is not None and self._by_principal[principal] >= limit:
            return f"{principal} has {limit} connections open, as many as its quota allows"
        self._forget_principal(connection)
        self._strangers.pop(connection, None)
        self._principals[connection] = principal
        self._by_principal[principal] += 1
        return ""

    def dismiss(self, user: str) -> None:
        """End the connections of a user that was deleted."""
        for connection in self:
            if connection.user == user:
                connection.dismiss()

    def may_tell(self, connection: OpenConnection) -> bool:
        """Return whether the refused `connection` may stay open until it has received the reason."""
        if len(self._refused) >= REFUSED_AT_ONCE:
            return False
        self._refused.add(connection)
        return True

    def add(self, connection: OpenConnection, now_s: float) -> None:
        """Count `connection`, for which `refusal` was empty."""
        self._all.add(connection)
        if connection not in self._principals:
            self._strangers[connection] = now_s
        self._by_host[connection.host] += 1
        self._gone.clear()

    def remove(self, connection: OpenConnection) -> None:
        """Note that `connection`, served or refused, has ended. No-op if it was neither."""
        self._refused.discard(connection)
        if connection in self._all:
            self._all.remove(connection)
            self._strangers.pop(connection, None)
            self.gone_count += 1
            _decrement(self._by_host, connection.host)
            self._forget_principal(connection)
            if not self._all:
                self._gone.set()

    async def wait_until_gone(self, timeout_s: float) -> None:
        """Return when there are no more connections, or after `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._gone.wait()

    def _forget_principal(self, connection: OpenConnection) -> None:
        principal = self._principals.pop(connection, None)
        if principal is not None:
            _decrement(self._by_principal, principal)


def _decrement(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
