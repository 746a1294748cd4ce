"""A broker in a thread of the test's own process: for tests that must reach into it, to let a disk fail for example."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from warmlog.testing.broker_thread import BrokerThread as Running
from warmlog_broker import Broker, BrokerConfig

TIMEOUT_S = 30.0
Result = TypeVar("Result")


class BrokerThread:
    """A context manager; settings have underscores for dots, as those of BrokerProcess."""

    def __init__(self, data_dir: Path, *more: Path, **settings: object) -> None:
        texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
        directories = ",".join(map(str, (data_dir, *more)))
        if "listeners" not in texts:
            texts["listen"] = texts.get("listen", "127.0.0.1:0")
        self.config = BrokerConfig.from_settings({"data.dirs": directories, **texts})
        self._thread = Running(self.config)

    def __enter__(self) -> Self:
        self._thread.begin().result(TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.end(is_clean=True).result(TIMEOUT_S)
        self._thread.close()

    @property
    def broker(self) -> Broker:
        return self._thread.broker

    @property
    def was_clean(self) -> bool:
        return self._thread.was_clean

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
        return self._thread.run(coroutine).result(TIMEOUT_S)
