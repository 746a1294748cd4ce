"""How long programs take, from their start to their end, as multiples of the floor.

The floor is a Python that imports what every program with an event loop, TLS and messages imports. All programs run in
turns, so that whatever else the machine does meets each of them alike; the figure is the median over the rounds. The
compiled modules are there: the first round is not counted.
"""

import os
import pty
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from rich.table import Table

from broker_process import BrokerProcess, port_to_keep
from faults.process_use import use_of

FLOOR = "floor: asyncio, ssl, msgspec, uvloop"
BARS = {
    "warmlog --help": 0.8,
    "completion of options": 0.8,
    "topic list, in a pipe": 1.8,
    "topic list, on a terminal": 1.8,
    "serve, until it accepts": 2.0,
}
"""The most that a program may take, in floors. An embedded broker may take one more than `import warmlog`."""
IDLE_MIB = 38
"""The most memory that an idle broker may have."""
WARMLOG = (sys.executable, "-m", "warmlog")
COMPLETING = {"_WARMLOG_COMPLETE": "bash_complete", "COMP_WORDS": "warmlog topic create --", "COMP_CWORD": "3"}


def _python(code: str) -> Callable[[], float]:
    return lambda: _seconds([sys.executable, "-c", code], {})


def _seconds(command: list[str], variables: dict[str, str]) -> float:
    started_s = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, env={**os.environ, **variables}, check=True)
    return time.perf_counter() - started_s


def _seconds_on_terminal(command: list[str], variables: dict[str, str]) -> float:
    """Return the seconds until the command has ended and its output, which is a terminal, is read."""
    controller, terminal = pty.openpty()
    started_s = time.perf_counter()
    environment = {**os.environ, **variables}
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        while _read(controller):
            pass
        exit_code = process.wait()
    taken_s = time.perf_counter() - started_s
    os.close(controller)
    assert exit_code == 0, exit_code
    return taken_s


def _read(controller: int) -> bytes:
    try:
        return os.read(controller, 65_536)
    except OSError:  # the other end is closed
        return b""


def _seconds_to_accept(directory: Path) -> float:
    """Return the seconds until `warmlog serve` on `directory` accepts a connection."""
    port = port_to_keep()
    command = [*WARMLOG, "serve", "--data-dir", str(directory), "--listen", f"127.0.0.1:{port}"]
    started_s = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while True:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, "the broker did not start"
            time.sleep(0.001)
        taken_s = time.perf_counter() - started_s
        process.terminate()
    return taken_s


def idle_mib(directory: Path) -> float:
    """Return the memory of a broker that has started and does nothing."""
    with BrokerProcess(directory) as broker:
        time.sleep(1)
        return use_of(broker.pid).memory_bytes / 2**20


def measure_programs(directory: Path, rounds: int) -> dict[str, float]:
    """Return the median seconds of each program."""
    with BrokerProcess(directory) as broker:
        at_broker = {"WARMLOG_BROKER": broker.address}
        subprocess.run([*WARMLOG, "topic", "create", "a", "b", "c"], env={**os.environ, **at_broker}, check=True)
        listing = [*WARMLOG, "topic", "list"]
        programs: dict[str, Callable[[], float]] = {
            "bare interpreter": _python("pass"),
            FLOOR: _python("import asyncio, ssl, msgspec, uvloop"),
            "import warmlog": _python("import warmlog"),
            "warmlog --help": lambda: _seconds([*WARMLOG, "--help"], {}),
            "completion of options": lambda: _seconds([*WARMLOG], COMPLETING),
            "topic list, in a pipe": lambda: _seconds(listing, at_broker),
            "topic list, on a terminal": lambda: _seconds_on_terminal(listing, at_broker),
            "serve, until it accepts": lambda: _seconds_to_accept(directory / "served"),
            "embedded broker": _python("from warmlog.testing import embedded\nwith embedded(): pass"),
        }
        taken_s = [{name: run() for name, run in programs.items()} for _ in range(rounds + 1)][1:]
    return {name: median(each[name] for each in taken_s) for name in programs}


def table_of_programs(figures: dict[str, float]) -> Table:
    """Return the figures with their multiples of the floor, and what these may be."""
    table = Table("program", "ms", "floors", "at most")
    for name, seconds in figures.items():
        at_most = f"{BARS[name]}" if name in BARS else ""
        table.add_row(name, f"{seconds * 1000:.0f}", f"{seconds / figures[FLOOR]:.2f}", at_most)
    return table
