"""What tests of connections share: each kind of event loop, and a file to send from."""

import asyncio
import os
import ssl
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop

from warmlog_broker.storage.io.open_files import OpenFile

FILE_BYTES = 6 * 1024 * 1024
TIMEOUT_S = 25
Run = Callable[[Coroutine[Any, Any, None]], None]
Tls = tuple[ssl.SSLContext | None, trustme.CA | None]


@pytest.fixture
def cold_readers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture(scope="session")
def data() -> bytes:
    return os.urandom(FILE_BYTES)


@pytest.fixture
def file(tmp_path: Path, data: bytes) -> OpenFile:
    path = tmp_path / "0.log"
    path.write_bytes(data)
    return OpenFile(str(path), os.O_RDWR)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine to its end, on each kind of event loop."""
    loop_factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_on_loop(work: Coroutine[Any, Any, None]) -> None:
        errors: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.get_loop().set_exception_handler(lambda loop, context: errors.append(context))
            runner.run(asyncio.wait_for(work, TIMEOUT_S))
        assert errors == []

    return run_on_loop


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(params=["plain text", "TLS"])
def tls(request: pytest.FixtureRequest, authority: trustme.CA) -> Tls:
    """The server's context, and whom clients trust."""
    if request.param == "plain text":
        return None, None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context, authority
