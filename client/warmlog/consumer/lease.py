"""Which iterator has the consumer: one at a time."""

import asyncio
from weakref import ref

from warmlog.errors import ConsumerBusy

CLOSING_TURNS = 4
"""Turns of the event loop in which it closes an asynchronous generator that was left, and the iterator in it."""


class Lease:
    """Lends the consumer to one iterator, from its first step on.

    It ends when the iterator is exhausted, is closed or raises, or when nothing refers to it, as after the `for` that
    runs over it was left. An iterator that has raised goes on with its next step, unless another one has the consumer.
    """

    def __init__(self) -> None:
        self.last: object = None
        """Stands for the iterator that has read last; what it holds the consumer with may be a copy of it."""
        self._holder: ref[object] | None = None
        self._is_in_step = False

    async def enter(self, reading: object) -> None:
        """Begin a step of the iterator that `reading` stands for. ConsumerBusy if another one has the consumer."""
        for _ in range(CLOSING_TURNS):
            if not (self._is_in_step or self._is_lent_to_another(reading)):
                break
            await asyncio.sleep(0)
        if self._is_in_step:
            raise ConsumerBusy(
                "this consumer is waiting for what another call reads: read from one task or thread at a time. "
                "on_assigned, on_revoked and on_lost cannot read: they are called between two reads"
            )
        if self._is_lent_to_another(reading):
            raise ConsumerBusy(
                "another iterator of this consumer is open: leave its loop, or end it by aclose() (without asyncio: "
                "close()), before something else is read; or use a consumer for each"
            )
        self._is_in_step = True

    def leave(self, holder: object | None) -> None:
        """End the step. `holder` has the consumer as long as it exists; None: none has it."""
        self._is_in_step = False
        if holder is None:
            self._holder = None
        elif self._holder is None or self._holder() is None:  # else a loop over the same iterator has it
            self._holder = ref(holder)

    def pass_on(self, holder: object, to: object) -> None:
        """Let a loop over `holder` have the consumer in its place, if it does."""
        if self._holder is not None and self._holder() is holder:
            self._holder = ref(to)

    def end(self, reading: object) -> None:
        """Take the consumer back if `reading` has it."""
        if self.last is reading:
            self._holder = None

    def _is_lent_to_another(self, reading: object) -> bool:
        return self.last is not reading and self._holder is not None and self._holder() is not None
