"""Background tasks and their owner, which awaits them when the broker stops."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, TypeVar

Item = TypeVar("Item")

_log = logging.getLogger(__name__)


async def in_turns(items: Iterable[Item], items_a_turn: int) -> AsyncIterator[Item]:
    """Yield `items`, and to the event loop after every `items_a_turn` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % items_a_turn == 0:
            await asyncio.sleep(0)


class Tasks:
    """Running tasks. One that fails is logged; the others continue."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, None], name: str | None = None) -> asyncio.Task[None]:
        """Run `work` as a task."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def cancel(self) -> None:
        """Cancel all tasks; `finish` waits for them."""
        for task in self._running:
            task.cancel()

    async def finish(self, timeout_s: float) -> None:
        """Wait for all tasks; those that run longer than `timeout_s` are cancelled."""
        if not self._running:
            return
        _, late = await asyncio.wait(self._running, timeout=timeout_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed: a bug", task.get_name(), exc_info=error)
