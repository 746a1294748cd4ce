"""A broker in a thread with an event loop of its own."""

from collections.abc import Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from warmlog_broker import Broker, BrokerConfig, start_broker
from warmlog_transport.loop_thread import LoopThread, bulk_loop

Result = TypeVar("Result")


class BrokerThread:
    """One start of a broker: `begin`, then `close`. The futures may be waited for in any thread or loop."""

    def __init__(self, config: BrokerConfig) -> None:
        self.broker: Broker
        self.was_clean = False
        """Whether all logs were closed without an error."""
        self._config = config
        self._thread: LoopThread
        self._is_ready: Future[None]
        self._has_ended: Future[None] | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one in which the broker runs."""
        return self._thread.is_foreign

    def begin(self) -> Future[None]:
        """Start the thread. The future has a result when connections are accepted, or the error of the start."""
        self._thread = LoopThread("warmlog-broker", bulk_loop)
        self._is_ready = self._thread.submit(self._start)
        return self._is_ready

    def end(self, *, is_clean: bool) -> Future[None]:
        """End the broker, which has started: in order, or as a crash does. A second call has no effect."""
        if self._has_ended is None:
            self._has_ended = self._thread.submit(partial(self._end, is_clean))
        return self._has_ended

    def close(self, *, is_clean: bool = True) -> None:
        """End the broker, and return when its thread has ended. After a failed start, only wait for the thread."""
        try:
            if self._is_ready.exception() is None:
                self.end(is_clean=is_clean).result()
        finally:
            self._thread.stop()

    def run(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run `work` in the broker's loop."""
        return self._thread.submit(lambda: work)

    async def _start(self) -> None:
        self.broker = await start_broker(self._config)

    async def _end(self, is_clean: bool) -> None:
        if is_clean:
            self.was_clean = await self.broker.stop()
        else:
            await self.broker.abort()
