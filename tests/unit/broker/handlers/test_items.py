"""Items of a request: each has a result of its own, and others have their turn in between."""

import asyncio
import errno
import logging

import pytest

from unit.broker.handlers.conftest import MakeServices
from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import ITEMS_A_TURN, handle, handle_all
from warmlog_broker.network.request import RequestContext
from warmlog_protocol.errors import ApiError, DiskFull, ErrorCode, InvalidRequest, OutOfResources, StorageError
from warmlog_protocol.messages import ProducePartition


@pytest.fixture
async def services(make_services: MakeServices, context: RequestContext) -> Services:
    return make_services()


def failed(item: str, error: ApiError) -> ApiError:
    return error


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (InvalidRequest("no"), InvalidRequest),
        (OSError(errno.EIO, "broken"), StorageError),
        (OSError(errno.ENOSPC, "full"), DiskFull),
        (OSError(errno.EMFILE, "too many"), OutOfResources),
        (MemoryError(), OutOfResources),
    ],
)
async def test_an_error_is_that_of_its_item(services: Services, raised: Exception, expected: type[ApiError]) -> None:
    async def act(name: str) -> str | ApiError:
        if name == "b":
            raise raised
        return name.upper()

    first, error, last = await handle_all(services, ["a", "b", "c"], act, failed)
    assert (first, type(error), last) == ("A", expected, "C")


async def test_a_disk_that_fails_is_a_line_of_the_log(services: Services, caplog: pytest.LogCaptureFixture) -> None:
    def act(item: ProducePartition) -> ApiError:
        raise OSError(errno.EIO, "broken")

    error = handle(services, ProducePartition("t", 3, 0), act, lambda item, error: error)
    assert "Fetch of 't' 3: the disk cannot be read or written: [Errno 5] broken" in str(error)
    (record,) = caplog.records
    assert (record.levelno, record.getMessage(), record.exc_info) == (logging.ERROR, str(error), None)


async def test_a_bug_is_logged_with_its_traceback(services: Services, caplog: pytest.LogCaptureFixture) -> None:
    def act(name: str) -> ApiError:
        raise KeyError("x")

    error = handle(services, "a", act, failed)
    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "Fetch of 'a' for 127.0.0.1:4711 failed: a bug" in caplog.text
    assert "KeyError" in caplog.text


async def test_others_have_their_turn_between_slices_of_many_items(services: Services) -> None:
    done: list[int] = []
    seen: list[int] = []

    async def act(name: str) -> None:
        done.append(len(name))

    async def watch() -> None:
        while len(done) < 3 * ITEMS_A_TURN:
            seen.append(len(done))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await handle_all(services, ["x"] * 3 * ITEMS_A_TURN, act, lambda name, error: None)
    await watching
    assert seen == [ITEMS_A_TURN, 2 * ITEMS_A_TURN]
