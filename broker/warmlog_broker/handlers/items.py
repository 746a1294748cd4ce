"""Requests with many items (topics, partitions): each item has its own result or error.

Only this module turns exceptions of an item into an error code; `network/request_runner` does so for whole requests.
"""

import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request import CURRENT_REQUEST, request_number
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


def handle(
    services: Services, item: Item, action: Callable[[Item], Result], failed: Callable[[Item, ApiError], Result]
) -> Result:
    """Return the result of `action`, or of `failed` with the error that it raised. A str is the name of a topic."""
    try:
        return action(item)
    except Exception as error:
        return failed(item, _api_error(services, item, error))


async def handle_all(
    services: Services,
    items: Iterable[Item],
    action: Callable[[Item], Coroutine[Any, Any, Result]],
    failed: Callable[[Item, ApiError], Result],
) -> list[Result]:
    """Return the results of the items in order, as `handle`. Yields to the event loop after every ITEMS_A_TURN."""
    results: list[Result] = []
    async for item in in_turns(items, ITEMS_A_TURN):
        try:
            results.append(await action(item))
        except Exception as error:
            results.append(failed(item, _api_error(services, item, error)))
    return results


def failed_name(result: Callable[[int, str, str], Result]) -> Callable[[str, ApiError], Result]:
    """Return what makes the result of a name that failed: `result` begins with code, text and name."""
    return lambda name, error: result(error.code, str(error), name)


def failed_partition(result: Callable[[str, int, int, str], Result]) -> Callable[[PartitionItem, ApiError], Result]:
    """Return what makes the result of a partition that failed: `result` begins with topic, partition, code and text."""
    return lambda item, error: result(item.topic, item.partition, error.code, str(error))


def _api_error(services: Services, item: str | PartitionItem, error: Exception) -> ApiError:
    """Count and return the error for the response. One of the disk is logged in a line, a bug with a traceback."""
    current = CURRENT_REQUEST.get()
    assert current is not None, "items are handled within a request"
    context, api = current[0], current[1].endpoint.name
    services.counters.errors[context.wire, api, type(error).__name__] += 1
    if isinstance(error, ApiError):
        return error
    subject = repr(item) if isinstance(item, str) else f"{item.topic!r} {item.partition}"
    if isinstance(error, OSError):
        text = f"{api} of {subject}: the disk cannot be read or written: {error}"
        services.lines.write(logging.ERROR, "requests that failed because of the disk", text, services.loop.time())
        return storage_error(text, error)
    return own_failure(f"request {request_number()}, {api} of {subject} for {context.peer}")
