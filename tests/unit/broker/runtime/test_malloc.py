"""How many arenas there are, and when memory is given back to the system."""

import os
import platform
import subprocess
import sys

import pytest

from warmlog_broker.runtime.malloc import GONE_BEFORE_TRIM, TRIM_INTERVAL_S, MemoryReturn, trim


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
