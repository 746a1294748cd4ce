"""Answers that are ready: sent at the end of the event that brought them about.

One event (a read from a socket, the end of a group commit) often answers many requests of one connection; they leave
in one write when they are sent together at its end.
"""

import asyncio
from typing import Protocol


class Sender(Protocol):
    """Somebody with something to send."""

    def flush(self) -> None:
        """Sends what is ready."""
        ...


class Outbox:
    """The senders that have something to send."""

    def __init__(self) -> None:
        self._senders: dict[Sender, None] = {}

    def add(self, sender: Sender) -> None:
        """`sender` is flushed by the next `send`, at the latest in the next turn of the event loop."""
        if not self._senders:
            asyncio.get_running_loop().call_soon(self.send)
        self._senders[sender] = None

    def send(self) -> None:
        """Flushes everyone who was added, those included whom a flush adds."""
        while self._senders:
            senders, self._senders = self._senders, {}
            for sender in senders:
                sender.flush()
