"""A broker in a thread of the test's own process: for tests that must reach into it, to let a disk fail for example."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from warmlog_broker import Broker, BrokerConfig, start_broker
from warmlog_transport.loop_thread import LoopThread, bulk_loop

TIMEOUT_S = 40
Result = TypeVar("Result")


class BrokerThread:
    """A context manager; settings have underscores for dots, as those of BrokerProcess."""

    def __init__(self, data_dir: Path, *more: Path, **settings: object) -> None:
        texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
        directories = ",".join(map(str, (data_dir, *more)))
        if "listeners" not in texts:
            texts["listen"] = texts.get("listen", "127.0.0.1:0")
        self.config = BrokerConfig.from_settings({"data.dirs": directories, **texts})
        self.broker: Broker
        self.was_clean = False
        """Whether all logs were closed without an error."""
        self._thread: LoopThread

    def __enter__(self) -> Self:
        self._thread = LoopThread("warmlog-broker", bulk_loop)
        try:
            self.broker = self.run(start_broker(self.config))
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._thread:
            self.was_clean = self.run(self.broker.stop())

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
        return self._thread.begin(lambda: coroutine).result(TIMEOUT_S)
