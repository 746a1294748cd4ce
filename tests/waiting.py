"""Waiting for what happens by itself."""

import asyncio
import time
from collections.abc import Callable

TIMEOUT_S = 40


def wait_until(condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    """Returns once `condition` is true."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s"
        time.sleep(0.02)


async def until(condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    """Returns once `condition` is true, which the event loop or another thread or process makes it."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - nothing says so
            await asyncio.sleep(0.005)
