"""A broker in a thread with an event loop of its own."""

import asyncio
import os
from collections.abc import Coroutine
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

import uvloop

from warmlog_broker import Broker, BrokerConfig, start_broker

Result = TypeVar("Result")


class BrokerThread:
    """One start of a broker: `begin`, then `close`. The futures may be waited for in any thread or loop."""

    def __init__(self, config: BrokerConfig) -> None:
        self.broker: Broker
        self.was_clean = False
        """Whether all logs were closed without an error."""
        self._config = config
        self._process_id = os.getpid()
        self._loop: asyncio.AbstractEventLoop
        self._must_end: asyncio.Future[bool]
        self._is_ending = False
        self._is_ready: Future[None] = Future()
        self._has_ended: Future[None] = Future()
        # A daemon: a process whose code does not stop the broker can end.
        self._thread = Thread(target=self._run, name="warmlog-broker", daemon=True)

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one in which the broker runs."""
        return os.getpid() != self._process_id

    @property
    def has_failed(self) -> bool:
        """Whether the start has failed."""
        return self._is_ready.done() and self._is_ready.exception() is not None

    def begin(self) -> Future[None]:
        """Start the thread. The future has a result when connections are accepted, or the error of the start."""
        self._thread.start()
        return self._is_ready

    def end(self, *, is_clean: bool) -> Future[None]:
        """End the broker, which has started: in order, or as a crash does. A second call has no effect."""
        if not self._is_ending and not self._has_ended.done():
            self._is_ending = True
            self._loop.call_soon_threadsafe(self._must_end.set_result, is_clean)
        return self._has_ended

    def close(self, *, is_clean: bool = True) -> None:
        """End the broker, and return when its thread has ended. After a failed start, only wait for the thread."""
        try:
            if self._is_ready.exception() is None:
                self.end(is_clean=is_clean).result()
        finally:
            self._thread.join()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run `coroutine` in the broker's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            (self._has_ended if self._is_ready.done() else self._is_ready).set_exception(error)
        else:
            self._has_ended.set_result(None)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._must_end = self._loop.create_future()
        self.broker = await start_broker(self._config)
        self._is_ready.set_result(None)
        if await self._must_end:
            self.was_clean = await self.broker.stop()
        else:
            await self.broker.abort()
