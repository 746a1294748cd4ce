"""A broker in a thread of the test's own process: for tests that must reach into it, to let a disk fail for example."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from warmlog_broker import Broker, BrokerConfig, start_broker

TIMEOUT_S = 30.0
Result = TypeVar("Result")


class BrokerThread:
    """A context manager; settings have underscores for dots, as those of BrokerProcess."""

    def __init__(self, data_dir: Path, *more: Path, **settings: object) -> None:
        texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
        directories = ",".join(map(str, (data_dir, *more)))
        self.config = BrokerConfig.from_settings({"data.dirs": directories, "listen": "127.0.0.1:0", **texts})
        self.broker: Broker
        self.was_clean = False
        self._loop: asyncio.AbstractEventLoop
        self._must_stop: asyncio.Event
        self._is_ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_ready.wait(TIMEOUT_S)
        if self._error is not None:
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._must_stop.set)
        self._thread.join(TIMEOUT_S)

    @property
    def address(self) -> str:
        return self.broker.address

    def in_loop(self, function: Callable[[Broker], Result]) -> Result:
        """What `function` returns for the broker, called in the thread that it runs in."""

        async def call() -> Result:
            return function(self.broker)

        return self.run(call())

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """The result of `coroutine`, run in the broker's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT_S)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._error = error
            self._is_ready.set()

    async def _serve(self) -> None:
        self._loop, self._must_stop = asyncio.get_running_loop(), asyncio.Event()
        self.broker = await start_broker(self.config)
        self._is_ready.set()
        await self._must_stop.wait()
        self.was_clean = await self.broker.stop()
