"""The broker in memory, in a thread of its own: for clients that run in the test's thread, or in several loops."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fake_broker import FakeBroker


@contextmanager
def broker_in_thread(**topics: int) -> Iterator[FakeBroker]:
    """A FakeBroker that runs within; its lists and settings may be looked at and changed from outside."""
    fake = FakeBroker(**topics)
    with in_thread(fake):
        yield fake


@contextmanager
def in_thread(fake: FakeBroker) -> Iterator[None]:
    """Run `fake` within."""
    is_ready, is_over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with fake:
            is_ready.set()
            await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    is_ready.wait()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
