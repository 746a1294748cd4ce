"""Which iterator has the consumer: one at a time."""

import asyncio
from weakref import ref

from warmlog.errors import ConsumerBusy

CLOSING_TURNS = 4
"""Turns of the event loop in which it ends a step that was cancelled, or closes a generator around an iterator."""


class Lease:
    """Lends the consumer to one iterator, from its first step on.

    It ends when the iterator is exhausted, is closed or raises, or when nothing refers to it, as after the `for` that
    runs over it was left. An iterator that has raised goes on with its next step, unless another one has the consumer.
    """

    def __init__(self) -> None:
        self.last: object = None
        """Stands for the iterator that has read last; what it holds the consumer with may be a copy of it."""
        self._holder: ref[object] | None = None
        self._step: tuple[object, asyncio.Task[object] | None] | None = None
        """The iterator that takes a step, and the task in which it does."""

    def is_taken(self, reading: object) -> bool:
        """Whether a step is under way, or another iterator than that which `reading` stands for has the consumer."""
        return self._step is not None or self._is_lent_to_another(reading)

    async def returned(self, reading: object) -> None:
        """Wait for the end of what is ending already."""
        for _ in range(CLOSING_TURNS):
            if self.is_taken(reading):
                await asyncio.sleep(0)

    def enter(self, reading: object) -> None:
        """Begin a step of the iterator that `reading` stands for. ConsumerBusy if the consumer is taken."""
        if self._step is not None:
            raise ConsumerBusy(
                "this consumer is waiting for what another call reads: read from one task or thread at a time. "
                "on_assigned, on_revoked and on_lost cannot read: they are called between two reads"
            )
        if self._is_lent_to_another(reading):
            raise ConsumerBusy(
                "another iterator of this consumer is open: leave its loop, or end it by aclose() (without asyncio: "
                "close()), before something else is read; or use a consumer for each"
            )
        self._step = reading, asyncio.current_task()

    def leave(self, holder: object | None) -> None:
        """End the step. `holder` has the consumer as long as it exists; None: none has it."""
        self._step = None
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

    def abandon(self, reading: object) -> None:
        """The same, and cancel a step of it for which its caller no longer waits."""
        self.end(reading)
        if self._step is not None and self._step[0] is reading:
            task = self._step[1]
            if task is not None and not task.cancelling():  # a callback of the group runs to its end
                task.cancel()

    def _is_lent_to_another(self, reading: object) -> bool:
        return self.last is not reading and self._holder is not None and self._holder() is not None
