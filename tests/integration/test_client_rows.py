"""The table of `make test-clients`: a registry that does not answer fails its row and no other, as does a client."""

import os
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SILENT = """
from pathlib import Path
from clients import fetched
CLIENT = "silent"
fetched.BUILD = Path(__file__).with_name("build")
fetched.TIMEOUT_S = 3
def test_first():
    fetched.node_directory()
test_second = test_first
"""
HANGING = """
import time
CLIENT = "hanging"
ROW_TIMEOUT_S = 0.5
def test_first():
    time.sleep(600)
test_second = test_first
"""
WELL = """
CLIENT = "well"
def test_it_works():
    pass
"""


@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm")
def test_what_hangs_fails_its_row_and_no_other(tmp_path: Path) -> None:
    for name, text in {"test_a": SILENT, "test_b": HANGING, "test_c": WELL}.items():
        (tmp_path / f"{name}.py").write_text(text)
    with socket.create_server(("127.0.0.1", 0)) as registry:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
            "npm_config_registry": f"http://127.0.0.1:{registry.getsockname()[1]}",
        }
        command = [sys.executable, "-m", "pytest", "-p", "clients.conftest", "-p", "no:cacheprovider", "-q", tmp_path]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        registry.settimeout(0.1)
        with suppress(TimeoutError), registry.accept()[0] as asked:  # unless it was ended before it could ask
            asked.settimeout(60)
            while asked.recv(4096):  # until npm has ended
                pass
    rows = [line.rpartition("|")[0].rpartition("|")[0] for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows == [
        "| client | passed | what | failed ",
        "| silent | 0 of 2 |  | first, second ",
        "| hanging | 0 of 2 |  | first, second ",
        "| well | 1 of 1 | it works |  ",
    ], done.stdout + done.stderr
    assert "npm: Command" in done.stdout, done.stdout
    assert "RowTimeout: after" in done.stdout
