"""A process of clients, and the hand that drives it: orders go in as lines of JSON, what it did comes out as such."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Self

STOP_TIMEOUT_S = 120.0
TESTS = Path(__file__).parents[2]
REPORT_S = 1.0

Report = dict[str, Any]


class Worker:
    """`python -m faults.soak.NAME ADDRESS`, from this side. `reports` holds what it said and nobody took yet."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"faults.soak.{name}", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        self._reports: list[Report] = []
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def order(self, **order: object) -> None:
        """Tells it what to do from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def take(self) -> list[Report]:
        """What it has reported since the last time."""
        with self._lock:
            taken, self._reports = self._reports, []
        return taken

    def finish(self) -> int:
        """Lets it end as it should; its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(STOP_TIMEOUT_S)
        self._reader.join()
        return code

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._lock:
                self._reports.append(json.loads(line))


async def serve(
    work: Callable[[asyncio.Queue[Report]], Awaitable[None]], report: Callable[[], Awaitable[Report]]
) -> None:
    """In the worker: runs `work` until it ends, which it should when an empty order comes, and reports meanwhile."""
    orders: asyncio.Queue[Report] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(orders.put_nowait, json.loads(line))
        loop.call_soon_threadsafe(orders.put_nowait, {})

    threading.Thread(target=listen, daemon=True).start()
    working = asyncio.ensure_future(work(orders))
    while not working.done():
        await asyncio.wait([working], timeout=REPORT_S)
        print(json.dumps(await report()), flush=True)
    await working


async def until_ordered(orders: "asyncio.Queue[Report]", *work: Coroutine[Any, Any, None]) -> None:
    """Lets endless `work` go on until an order comes; raises the error of a part that ends before."""
    ordered = asyncio.ensure_future(orders.get())
    tasks = [asyncio.ensure_future(part) for part in work]
    ended, _ = await asyncio.wait([ordered, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in (ordered, *tasks):
        task.cancel()
    await asyncio.wait(tasks)
    for task in ended:
        task.result()
