"""Sends all responses that are ready together, in the next turn of the event loop.

One event (a read from a socket, the end of a group commit) often completes many requests of one connection: their
responses are sent in one write.
"""

import asyncio
from typing import Protocol


class Flushable(Protocol):
    """A connection that sends on `flush`."""

    def flush(self) -> None:
        """Send what is ready."""
        ...


class Outbox:
    """The connections with responses to send."""

    def __init__(self) -> None:
        self._connections: dict[Flushable, None] = {}

    def add(self, connection: Flushable) -> None:
        """Flush `connection` in the next turn of the event loop, once even if it is added again."""
        if not self._connections:
            asyncio.get_running_loop().call_soon(self._flush)
        self._connections[connection] = None

    def _flush(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections:
            connection.flush()
