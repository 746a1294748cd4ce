"""The admin port over real sockets, with a scripted broker."""

import asyncio
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric

from warmlog_broker.metrics import admin_server
from warmlog_broker.metrics.admin_server import MAX_THREADS, AdminServer, Health
from warmlog_broker.server.listener import bind


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
    server = AdminServer(listeners, broker.loop, broker)
    yield listeners[0].getsockname()[1]
    server.close()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """Return status, content type and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
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
def test_a_loop_that_hangs_is_noticed(port: int, broker: Scripted, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(admin_server, "RESPONSE_TIMEOUT_S", 0.05)
    hanging = threading.Event()
    broker.loop.call_soon_threadsafe(hanging.wait)
    status, _, body = ask(port, path)
    assert status == 503
    assert "has not responded within" in body
    hanging.set()
    monkeypatch.setattr(admin_server, "RESPONSE_TIMEOUT_S", 5.0)
    assert ask(port, path)[0] == 200


def test_clients_that_do_not_finish_their_requests_keep_no_health_check_out(port: int) -> None:
    with ExitStack() as held:
        slow = [held.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(2 * MAX_THREADS)]
        for each in slow[MAX_THREADS:]:
            each.sendall(b"GET /healthz/live HTTP/1.1\r\nName: ")
        for _ in range(2):
            assert ask(port, "/healthz/live")[0] == 200
        assert slow[0].recv(1) == b"", "the oldest were ended"
        threads = sum("process_request_thread" in each.name for each in threading.enumerate())
        assert threads <= MAX_THREADS
