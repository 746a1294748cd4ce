"""The console in a browser by TLS: its own, and that of a proxy which has it below a path."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from broker_process import BrokerProcess
from console.conftest import browsing, row
from console_process import ConsoleProcess
from warmlog.blocking import Admin


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of localhost, and its key, in one file."""
    path = tmp_path_factory.mktemp("tls") / "console.pem"
    trustme.CA().issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(path)
    return path


@pytest.fixture(scope="module", autouse=True)
def topic(broker: BrokerProcess) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("flights")


class Proxy:
    """Ends TLS at a port of this machine, and passes everything on to `target`."""

    def __init__(self, certificate: Path) -> None:
        self.target = ("", 0)
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate)
        self._writers: list[asyncio.StreamWriter] = []
        self._end = asyncio.Event()

    async def serve(self, port: Future[int]) -> None:
        """Listen, tell the port, and serve until `end`."""
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0, ssl=self._context)
        port.set_result(server.sockets[0].getsockname()[1])
        await self._end.wait()
        server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0.1)  # transports close in the loop

    def end(self) -> None:
        """Let `serve` return; from another thread."""
        self._loop.call_soon_threadsafe(self._end.set)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self.target)
        self._writers += [writer, there_writer]
        await asyncio.gather(self._copy(reader, there_writer), self._copy(there_reader, writer), return_exceptions=True)

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


@contextmanager
def proxy(certificate: Path) -> Iterator[tuple[Proxy, int]]:
    """A proxy that runs in a thread, and its port."""
    running, port = Proxy(certificate), Future[int]()
    thread = threading.Thread(target=lambda: asyncio.run(running.serve(port)))
    thread.start()
    try:
        yield running, port.result(20)
    finally:
        running.end()
        thread.join(20)


def test_with_a_certificate_pages_are_live_by_tls(chromium: Any, broker: BrokerProcess, certificate: Path) -> None:
    with ConsoleProcess(broker.address, "--tls-cert", str(certificate)) as console:
        assert console.url.startswith("https://127.0.0.1:")
        with browsing(chromium, console) as browser:
            page = browser.page("/topics")
            row(page, "flights").wait_for()
            (cookie,) = browser.context.cookies()
            assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Lax")


def test_behind_a_proxy_that_ends_tls_pages_below_its_path_are_live(
    chromium: Any, broker: BrokerProcess, certificate: Path
) -> None:
    with proxy(certificate) as (before, port):
        origin = f"https://localhost:{port}"
        with ConsoleProcess(
            broker.address, "--listen", "127.0.0.1:0", "--origin", origin, "--root-path", "/console", "--allow-changes"
        ) as console:
            assert console.url == f"{origin}/console"
            before.target = ("127.0.0.1", console.port)
            with browsing(chromium, console) as browser:
                page = browser.page("/topics")
                row(page, "flights").get_by_role("link").click()
                row(page, "retention.ms").wait_for()
                assert page.url == f"{origin}/console/topic?name=flights"
                page.get_by_role("button", name="Delete topic").click()
                page.get_by_role("dialog").get_by_role("button", name="Delete topic").click()
                page.get_by_role("heading", level=1, name="Topics").wait_for()
                assert page.url == f"{origin}/console/topics"
                (cookie,) = browser.context.cookies()
                assert (cookie["secure"], cookie["path"]) == (True, "/console")
