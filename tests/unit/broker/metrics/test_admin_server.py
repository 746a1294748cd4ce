"""The admin port over real sockets, with a scripted broker."""

import asyncio
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric

from warmlog_broker.metrics import admin_server
from warmlog_broker.metrics.admin_server import MAX_CONNECTIONS, AdminServer, Health
from warmlog_broker.server.listening import bind


class Scripted:
    """A broker that says what the test sets, in an event loop in a thread."""

    def __init__(self) -> None:
        self.state = Health(True, [])
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    async def collect(self) -> list[Metric]:
        return [GaugeMetricFamily("warmlog_test", "a test", value=17)]

    async def health(self) -> Health:
        return self.state

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


@pytest.fixture
def broker() -> Iterator[Scripted]:
    scripted = Scripted()
    yield scripted
    scripted.stop()
    scripted.loop.close()


@pytest.fixture
def port(broker: Scripted) -> Iterator[int]:
    listeners = bind("127.0.0.1", 0)
    server = AdminServer(listeners, broker)
    asyncio.run_coroutine_threadsafe(server.start(), broker.loop).result()
    yield listeners[0].getsockname()[1]
    broker.loop.call_soon_threadsafe(server.close)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), broker.loop).result()  # their tasks end


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """Return status, content type and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=25)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read().decode()
    finally:
        connection.close()


def test_metrics_are_text_of_prometheus_or_openmetrics(port: int) -> None:
    status, content_type, body = ask(port, "/metrics")
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    assert "warmlog_test 17.0" in body
    assert "process_resident_memory_bytes" in body
    _, content_type, body = ask(port, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith("# EOF\n")


@pytest.mark.parametrize("version", ["abc", "1.x"])
def test_a_client_that_accepts_no_version_there_is_gets_text_and_writes_no_traceback(
    port: int, capfd: pytest.CaptureFixture[str], version: str
) -> None:
    status, content_type, _ = ask(port, "/metrics", Accept=f"application/openmetrics-text; version={version}")
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    assert capfd.readouterr().err == ""


def test_a_bug_is_a_line_of_the_log_and_no_text_on_stderr(
    port: int,
    broker: Scripted,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail() -> Health:
        raise ValueError("a bug")

    monkeypatch.setattr(broker, "health", fail)
    caplog.set_level("DEBUG")
    assert ask(port, "/healthz/ready")[0] == 500
    assert capfd.readouterr().err == ""
    assert "ValueError: a bug" in caplog.text


def test_readiness_says_what_is_wrong(port: int, broker: Scripted) -> None:
    assert ask(port, "/healthz/ready") == (200, admin_server.TEXT, "ready\n")
    broker.state = Health(True, ["a disk is full"])
    assert ask(port, "/healthz/ready") == (200, admin_server.TEXT, "ready\na disk is full\n")
    assert ask(port, "/healthz/in-sync")[0] == 200
    broker.state = Health(True, ["2 of its replicas are not in sync"], is_in_sync=False)
    assert ask(port, "/healthz/ready")[0] == 200
    assert ask(port, "/healthz/in-sync")[::2] == (503, "not ready\n2 of its replicas are not in sync\n")
    broker.state = Health(False, ["stopping"])
    assert ask(port, "/healthz/ready") == (503, admin_server.TEXT, "not ready\nstopping\n")
    assert ask(port, "/healthz/live")[0] == 200


def test_other_pages_and_methods_are_refused(port: int) -> None:
    status, _, body = ask(port, "/")
    assert status == 404
    assert "/metrics, /healthz/live, /healthz/ready" in body
    assert ask(port, "/metrics", "POST")[0] == 405
    assert ask(port, "/healthz/live", "HEAD") == (200, admin_server.TEXT, "")


@pytest.mark.parametrize("path", ["/healthz/live", "/healthz/ready", "/metrics"])
def test_a_loop_that_hangs_does_not_respond(port: int, broker: Scripted, path: str) -> None:
    hanging = threading.Event()
    broker.loop.call_soon_threadsafe(hanging.wait)
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        hanging.set()
        client.settimeout(10)
        assert client.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("sent", [b"\r\n\r\n", b"GET\r\n\r\n", b"\0" * 20_000, b"GET /metrics HTTP/1.1\r\n"])
def test_what_is_no_request_gets_an_error_or_nothing_and_keeps_nobody_out(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), 10) as client, suppress(ConnectionError):
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(12) in (b"HTTP/1.1 404", b"HTTP/1.1 405", b"")
    assert ask(port, "/healthz/live")[0] == 200


def test_a_client_that_takes_too_long_is_cut(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_server, "REQUEST_TIMEOUT_S", 0.05)
    with socket.create_connection(("127.0.0.1", port), 10) as client, suppress(ConnectionError):
        assert client.recv(1) == b""


def test_clients_that_do_not_finish_their_requests_keep_no_health_check_out(port: int) -> None:
    with ExitStack() as held:
        slow = [
            held.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(2 * MAX_CONNECTIONS)
        ]
        for each in slow[MAX_CONNECTIONS:]:
            each.sendall(b"GET /healthz/live HTTP/1.1\r\nName: ")
        for _ in range(2):
            assert ask(port, "/healthz/live")[0] == 200
        with suppress(ConnectionError):
            assert slow[0].recv(1) == b"", "the oldest were ended"
