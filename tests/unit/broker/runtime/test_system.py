"""What the process has from the system: descriptors, arenas of memory, and the service manager."""

import logging
import os
import platform
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog_broker.runtime.file_limit import LEAST_OPEN_FILES, RESERVED, raise_file_limit, share_files
from warmlog_broker.runtime.malloc import GONE_BEFORE_TRIM, TRIM_INTERVAL_S, MemoryReturn, trim
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


# Descriptors, shared between connections and files


def test_everybody_gets_what_is_wanted_when_there_is_enough() -> None:
    assert share_files(20_000, connections=8000, open_files=8000) == (8000, 8000)


def test_both_give_way_when_there_is_not() -> None:
    connections, open_files = share_files(RESERVED + 1000, connections=3000, open_files=1000)
    assert connections + open_files == 1000
    assert open_files == 250


@given(st.integers(0, 100_000), st.integers(1, 20_000), st.integers(64, 20_000))
def test_nobody_gets_more_than_is_wanted_or_nothing(limit: int, connections: int, open_files: int) -> None:
    shares = share_files(limit, connections=connections, open_files=open_files)
    assert 1 <= shares.connections <= connections
    assert LEAST_OPEN_FILES <= shares.open_files <= open_files
    assert sum(shares) <= max(limit - RESERVED, 2 * LEAST_OPEN_FILES)


def test_the_soft_limit_is_raised_as_far_as_the_hard_one_lets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: limits.append(pair))
    assert raise_file_limit(2000) == 2000
    assert raise_file_limit(100_000) == 4096
    assert limits[-1] == (4096, 4096)
    assert raise_file_limit(100) == 4096


# Memory


def test_it_is_due_when_enough_have_gone_and_not_too_often() -> None:
    memory = MemoryReturn()
    assert not memory.is_due(GONE_BEFORE_TRIM - 1, 100.0)
    assert memory.is_due(GONE_BEFORE_TRIM, 100.2)
    assert not memory.is_due(GONE_BEFORE_TRIM, 200.0)
    assert not memory.is_due(3 * GONE_BEFORE_TRIM, 100.3)
    assert memory.is_due(3 * GONE_BEFORE_TRIM, 100.2 + TRIM_INTERVAL_S)


def test_trimming_does_no_harm() -> None:
    trim()


VARIABLES = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
COUNT_ARENAS = """
import ctypes, re, tempfile, threading
from warmlog_broker.runtime.malloc import keep_to_one_arena
{call}
barrier = threading.Barrier(5)
def allocate():
    kept = [bytearray(1000) for _ in range(1000)]
    barrier.wait()
    barrier.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
barrier.wait()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(len(re.findall(b"<heap nr=", file.read())))
barrier.wait()
"""


def arenas(call: str, **environment: str) -> int:
    """How many malloc has for a process of five threads that has made this call before they were started."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT_ARENAS.format(call=call)],
        env={**{name: text for name, text in os.environ.items() if name not in VARIABLES}, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_threads_share_one_arena_unless_the_operator_decides() -> None:
    assert arenas("") > 1
    assert arenas("keep_to_one_arena()") == 1
    assert arenas("keep_to_one_arena()", MALLOC_ARENA_MAX="3") == 3
    assert arenas("keep_to_one_arena()", GLIBC_TUNABLES="glibc.malloc.arena_max=2") == 2
