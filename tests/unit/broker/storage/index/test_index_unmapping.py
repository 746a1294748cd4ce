"""No file is ever cut under a map: that would end the process with SIGBUS, so these run in processes of their own."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

TOUCHES_A_LOST_PAGE = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 1 << 20)
mapped = mmap.mmap(file, 1 << 20, access=mmap.ACCESS_READ)
os.ftruncate(file, 0)
mapped[4096 * 9]
"""

CUTS_UNDER_EVERYBODY = """
import sys, threading
from pathlib import Path
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.time_index import TimeIndex

sys.setswitchinterval(0.0001)  # so that the threads take turns within each cut, and none waits long for another
path, kind = Path(sys.argv[1]), {"offset": OffsetIndex, "time": TimeIndex}[sys.argv[2]]
index = kind(path, 0, open_files=OpenFiles(), max_index_bytes=1 << 20)
add = index.append if kind is OffsetIndex else lambda key, value: index.maybe_append(key, value)
is_done = False

def evict():
    while not is_done:
        index.let_go()

def read():
    while not is_done:
        try:
            with kind(path, 0, open_files=OpenFiles(), is_writable=False) as reader:
                for _ in range(20):
                    list(reader)
                    [reader.lookup(key) for key in range(0, 5_000, 25)]
        except (ValueError, RuntimeError):  # CorruptIndex: cut while it was read
            pass
        except Exception as error:
            if type(error).__name__ != "CorruptIndex":
                raise

threads = [threading.Thread(target=target, daemon=True) for target in (evict, read)]
for thread in threads:
    thread.start()
for turn in range(30):
    for number in range(1, 2_000):
        add(number, number)
    index.lookup(1), index.lookup(1_999)
    held = index._map                 # another thread still holds the map
    index.trim()
    index.lookup(1_999)
    index.truncate_to(10 + turn)
    index.lookup(1_999)
    index.resize(1 << 20)
    index.lookup(1_999)
    index.truncate()
is_done = True
for thread in threads:
    thread.join()
index.close()
print("alive")
"""


def run(program: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=180
    )


def test_touching_a_page_that_a_file_has_lost_ends_the_process(tmp_path: Path) -> None:
    """What the next test would end like, were it not so."""
    assert run(TOUCHES_A_LOST_PAGE, tmp_path / "file").returncode == -signal.SIGBUS


@pytest.mark.parametrize("kind", ["offset", "time"])
def test_cutting_an_index_harms_neither_its_owner_nor_those_who_read_it(kind: str, tmp_path: Path) -> None:
    done = run(CUTS_UNDER_EVERYBODY, tmp_path / "index", kind)
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")
