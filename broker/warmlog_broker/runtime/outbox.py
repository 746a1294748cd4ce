"""Responses that are ready leave together, in the next turn of the event loop.

One event (a read from a socket, the end of a group commit) often completes many requests of one connection: their
responses are sent in one write.
"""

import asyncio
from typing import Protocol


class Sender(Protocol):
    """A connection with something to send."""

    def flush(self) -> None:
        """Send what is ready."""
        ...


class Outbox:
    """The senders that have something to send."""

    def __init__(self) -> None:
        self._senders: dict[Sender, None] = {}

    def add(self, sender: Sender) -> None:
        """Flush `sender` in the next turn of the event loop, once however often it is added."""
        if not self._senders:
            asyncio.get_running_loop().call_soon(self._flush)
        self._senders[sender] = None

    def _flush(self) -> None:
        senders, self._senders = self._senders, {}
        for sender in senders:
            sender.flush()
