"""The daemon of the benchmarks: what a worker has used is not forgotten when it ends, however it ends."""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from process_tree import processes_of, used_between
from processor_time import ProcessorTime, processor_time

TESTS = Path(__file__).parents[1]
SECRET = b"secret"
PATIENCE_S = 40
USED_S = 0.1
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
WAITING = "benchmarks.spark.waiting_daemon"
MODULE = "pyspark_endless"
"""PySpark's daemon takes modules whose names begin so."""
ENDLESS_WORK = "def main(infile, outfile):\n    while True:\n        pass\n"


@contextmanager
def daemon_with_worker(directory: Path, daemon: str = WAITING) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """The daemon, as Spark starts it, and the process of a worker that it has forked, which computes on and on."""
    (directory / f"{MODULE}.py").write_text(ENDLESS_WORK)
    process = subprocess.Popen(
        [sys.executable, "-m", daemon, MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": f"{TESTS}{os.pathsep}{directory}",
            "PYTHON_WORKER_FACTORY_SECRET": SECRET.decode(),
        },
    )
    with process:
        try:
            assert process.stdout is not None
            (port,) = struct.unpack("!i", process.stdout.read(4))
            with socket.create_connection(("127.0.0.1", port)) as connection:
                (pid,) = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))
                connection.sendall(struct.pack("!i", len(SECRET)) + SECRET)
                assert connection.recv(6, socket.MSG_WAITALL) == struct.pack("!i", 2) + b"ok"
                yield process, pid
        finally:
            assert process.stdin is not None
            process.stdin.close()  # its workers end with it


def wait_until_used(pid: int, least_s: float) -> float:
    """Returns the processor time of `pid` as soon as it has used so much."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (used_s := processor_time(pid).own_s) < least_s:
        assert time.monotonic() < deadline_s, f"the worker has used {used_s} s only"
        time.sleep(0.01)
    return used_s


def end(pid: int) -> None:
    """Kills it, and returns when it is gone."""
    os.kill(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline_s, "nobody has waited for it"
        time.sleep(0.01)


def test_what_a_killed_worker_has_used_is_the_daemons(tmp_path: Path) -> None:
    with daemon_with_worker(tmp_path) as (daemon, worker):
        assert processor_time(daemon.pid).ended_s == 0
        used_s = wait_until_used(worker, USED_S)
        end(worker)
        assert processor_time(daemon.pid).ended_s >= used_s


def test_the_daemon_waits_for_its_workers_when_it_ends(tmp_path: Path) -> None:
    before = os.times()
    with daemon_with_worker(tmp_path) as (daemon, worker):
        used_s = wait_until_used(worker, USED_S)
        own_s = processor_time(daemon.pid).own_s
        assert daemon.stdin is not None
        daemon.stdin.close()
        daemon.wait(PATIENCE_S)
        assert not Path(f"/proc/{worker}").exists()
    after = os.times()
    ended_s = after.children_user + after.children_system - before.children_user - before.children_system
    assert ended_s >= used_s + own_s - 2 * TICK_S


@pytest.mark.parametrize("daemon", [WAITING, "pyspark.daemon"])
def test_an_ended_worker_is_not_taken_off_what_is_used_after_it(tmp_path: Path, daemon: str) -> None:
    with daemon_with_worker(tmp_path, daemon) as (process, worker):
        wait_until_used(worker, USED_S)
        before = processes_of(process.pid)
        assert before.keys() == {process.pid, worker}
        wait_until_used(worker, before[worker].own_s + 2 * USED_S)
        os.kill(worker, signal.SIGSTOP)
        seen = used_between(before, processes_of(process.pid), process.pid)
        end(worker)
        found = used_between(before, processes_of(process.pid), process.pid)
    assert seen.below > USED_S
    assert found.below == (pytest.approx(seen.below, abs=2 * TICK_S) if daemon == WAITING else 0.0)


def test_a_daemon_that_has_ended_is_counted_with_its_workers() -> None:
    java, daemon, worker = 2, 3, 4
    before = {
        java: ProcessorTime("java", 1, 1.0, 0.5),
        daemon: ProcessorTime("python", java, 0.25, 8.0),
        worker: ProcessorTime("python", daemon, 2.0, 0.0),
    }
    after = {java: ProcessorTime("java", 1, 4.0, 0.5 + 0.5 + 8.0 + 3.0)}
    assert used_between(before, after, java) == (3.0, (0.5 - 0.25) + (3.0 - 2.0))


def test_workers_treat_their_own_children_as_python_does(tmp_path: Path) -> None:
    with daemon_with_worker(tmp_path) as (_, worker):
        status = Path(f"/proc/{worker}/status").read_text()
    for field in ("SigIgn", "SigCgt"):
        (mask,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith(field))
        assert not mask >> (signal.SIGCHLD - 1) & 1
