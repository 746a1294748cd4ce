"""The notification protocol of systemd, against a real socket."""

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmlog_broker.runtime.systemd import ALIVE, READY, ServiceManager, extend_timeout, status


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[tuple[socket.socket, dict[str, str]]]:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        listener.setblocking(False)
        yield listener, {"NOTIFY_SOCKET": path}


def test_lines_arrive_in_one_datagram(manager: tuple[socket.socket, dict[str, str]]) -> None:
    listener, environment = manager
    ServiceManager(environment).tell(READY, status("listening"), extend_timeout(5))
    assert listener.recv(1000) == b"READY=1\nSTATUS=listening\nEXTEND_TIMEOUT_USEC=5"


def test_an_abstract_name_begins_with_an_at_sign() -> None:
    name = f"warmlog-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).tell(READY)
        listener.setblocking(False)
        assert listener.recv(1000) == b"READY=1"


def test_without_a_manager_nothing_happens() -> None:
    service_manager = ServiceManager({})
    service_manager.tell(READY)
    service_manager.keep_alive(1000.0)


def test_a_manager_that_does_not_listen_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).tell(READY)
    assert "nobody" in caplog.text


def test_the_sign_of_life_comes_twice_as_often_as_is_wanted(manager: tuple[socket.socket, dict[str, str]]) -> None:
    listener, environment = manager
    service_manager = ServiceManager({**environment, "WATCHDOG_USEC": "10000000", "WATCHDOG_PID": str(os.getpid())})
    for now_s in range(100, 120):
        service_manager.keep_alive(float(now_s))
    signs = 0
    while True:
        try:
            assert listener.recv(1000) == ALIVE.encode()
        except BlockingIOError:
            break
        signs += 1
    assert signs == 4


def test_a_watchdog_of_another_process_is_not_ours(manager: tuple[socket.socket, dict[str, str]]) -> None:
    listener, environment = manager
    ServiceManager({**environment, "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}).keep_alive(1000.0)
    with pytest.raises(BlockingIOError):
        listener.recv(1000)
