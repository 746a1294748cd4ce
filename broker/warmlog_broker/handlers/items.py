"""Requests with many items (topics, partitions): each item has its own result or error.

Only this module turns exceptions of an item into an error code; `network/request_runner` does so for whole requests.
"""

import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request import RequestContext, request_number
from warmlog_broker.runtime.internal_error import own_failure
from warmlog_broker.runtime.tasks import in_turns
from warmlog_broker.storage.io.os_errors import storage_error
from warmlog_protocol.errors import ApiError

ITEMS_A_TURN = 100
"""Items in one turn of the event loop: each takes up to 60 µs."""


class PartitionItem(Protocol):
    """An item that concerns one partition."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...


Item = TypeVar("Item", bound=str | PartitionItem)
Result = TypeVar("Result")


class Items:
    """How one request handles its items. A str is the name of a topic."""

    __slots__ = ("_context", "_name", "_services")

    def __init__(self, services: Services, context: RequestContext, name: str) -> None:
        """`name` of the API, for error messages."""
        self._services = services
        self._context = context
        self._name = name

    def handle(
        self, item: Item, action: Callable[[Item], Result], failed: Callable[[Item, ApiError], Result]
    ) -> Result:
        """Return the result of `action`, or of `failed` with the error that it raised."""
        try:
            return action(item)
        except Exception as error:
            return failed(item, self._error(item, error))

    async def handle_all(
        self,
        items: Iterable[Item],
        action: Callable[[Item], Coroutine[Any, Any, Result]],
        failed: Callable[[Item, ApiError], Result],
    ) -> list[Result]:
        """Return the results of the items in order. Yields to the event loop after every ITEMS_A_TURN."""
        results: list[Result] = []
        async for item in in_turns(items, ITEMS_A_TURN):
            try:
                results.append(await action(item))
            except Exception as error:
                results.append(failed(item, self._error(item, error)))
        return results

    def _error(self, item: str | PartitionItem, error: Exception) -> ApiError:
        """Count and return the error for the response. One of the disk is logged in a line, a bug with a traceback."""
        self._services.counters.errors[self._context.wire, self._name, type(error).__name__] += 1
        if isinstance(error, ApiError):
            return error
        subject = repr(item) if isinstance(item, str) else f"{item.topic!r} {item.partition}"
        if isinstance(error, OSError):
            text = f"{self._name} of {subject}: the disk cannot be read or written: {error}"
            self._services.lines.write(
                logging.ERROR, "requests that failed because of the disk", text, self._services.loop.time()
            )
            return storage_error(text, error)
        return own_failure(f"request {request_number()}, {self._name} of {subject} for {self._context.peer}")
