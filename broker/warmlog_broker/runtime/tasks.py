"""Background tasks and their owner, which awaits them when the broker stops."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable
from typing import Any, TypeVar

SLICE_S = 0.002
"""How long the event loop works for `Slices` at a time: a request that comes meanwhile waits for that."""

Item = TypeVar("Item")
R = TypeVar("R")

_log = logging.getLogger(__name__)


async def in_turns(items: Iterable[Item], items_a_turn: int) -> AsyncIterator[Item]:
    """Yield `items`, and to the event loop after every `items_a_turn` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % items_a_turn == 0:
            await asyncio.sleep(0)


class Slices:
    """Long computations in the event loop: slices of SLICE_S, each in its turn, for at most half of the time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._free_s = 0.0

    async def run(self, steps: Generator[None, None, R]) -> R:
        """Return what `steps` returns. It yields wherever it may be interrupted, at least every millisecond."""
        while True:
            async with self._turn:  # fair: a long computation delays a short one by one slice
                await asyncio.sleep(max(0.0, self._free_s - time.perf_counter()))
                began_s = now_s = time.perf_counter()
                try:
                    while now_s - began_s < SLICE_S:
                        next(steps)
                        now_s = time.perf_counter()
                except StopIteration as end:
                    result: R = end.value
                    return result
                finally:
                    now_s = time.perf_counter()
                    self._free_s = 2 * now_s - began_s


class Tasks:
    """Running tasks. One that fails is logged; the others continue."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, None], name: str | None = None) -> asyncio.Task[None]:
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
