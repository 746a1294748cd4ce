"""deploy/warmlog.service: valid for systemd, hardened, and its command and its notifications do what it relies on."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.notify_socket import NotifySocket
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.server.broker import CLOSE_TIMEOUT_S, TASKS_TIMEOUT_S

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "warmlog.service"
PROGRAM = "/opt/warmlog/bin/warmlog"
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here: the unit is not verified"
)


def unit_settings() -> dict[str, list[str]]:
    """Every setting of the unit with all its values, in order."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def systemd_analyze(verb: str, *arguments: str, unit: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", verb, *arguments, str(unit)], capture_output=True, text=True, timeout=180, check=False
    )


@pytest.fixture
def runnable_unit(tmp_path: Path) -> Path:
    """The unit with a program that exists on this machine: systemd checks that, too."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(PROGRAM, "/bin/sh"))
    return unit


@needs_systemd
def test_systemd_finds_nothing_wrong_with_the_unit(runnable_unit: Path) -> None:
    verified = systemd_analyze("verify", unit=runnable_unit)
    about_ours = [line for line in verified.stderr.splitlines() if "warmlog" in line]
    assert (verified.returncode, about_ours) == (0, [])


@needs_systemd
def test_the_service_is_exposed_to_little(runnable_unit: Path) -> None:
    security = systemd_analyze("security", "--offline=true", "--threshold=20", "--no-pager", unit=runnable_unit)
    assert security.returncode == 0, security.stdout[-400:]


def test_the_service_is_given_more_than_twice_the_time_that_a_drain_may_take() -> None:
    stop_s = int(unit_settings()["TimeoutStopSec"][0])
    assert stop_s * 1000 >= 2 * BrokerConfig().shutdown_drain_ms


def test_the_service_is_given_the_time_that_a_stop_may_take() -> None:
    stop_s = int(unit_settings()["TimeoutStopSec"][0])
    bounds = BrokerConfig()
    own_s = CLOSE_TIMEOUT_S + TASKS_TIMEOUT_S
    assert stop_s > (bounds.shutdown_drain_ms + bounds.shutdown_disk_ms) / 1000 + own_s


def test_the_service_is_started_again_often_enough_for_the_broker_to_say_why_it_crashes() -> None:
    settings, bounds = unit_settings(), BrokerConfig()
    assert int(settings["StartLimitBurst"][0]) > bounds.crash_loop_limit + 1
    assert int(settings["StartLimitIntervalSec"][0]) * 1000 < bounds.crash_loop_window_ms


def test_the_service_may_open_as_many_files_as_the_broker_bounds_itself_to() -> None:
    bounds = BrokerConfig()
    limit = int(unit_settings()["LimitNOFILE"][0])
    assert limit >= bounds.max_open_files + bounds.max_connections + 1024


# --- the command and its notifications ------------------------------------------------------------------------------


def service_command(state_directory: Path) -> list[str]:
    """ExecStart as systemd would run it, with this environment's program."""
    program, *arguments = unit_settings()["ExecStart"][0].split()
    assert program == PROGRAM
    given = [argument.replace("${STATE_DIRECTORY}", str(state_directory)) for argument in arguments]
    return [sys.executable, "-m", "warmlog", *given]


@contextmanager
def service(state_directory: Path, manager: NotifySocket, **more: str) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"NOTIFY_SOCKET": str(manager.path), "WARMLOG_LISTEN": "127.0.0.1:0"} | more
    with subprocess.Popen(
        service_command(state_directory), env=environment, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def listening_port(process: subprocess.Popen[str]) -> int:
    """The port that the service says it listens on; reads its output up to there."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"ready, listening on 127\.0\.0\.1:(\d+)", line):
            return int(found[1])
    raise AssertionError("the service ended without listening")


def can_connect(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_ready_is_told_once_the_port_is_open_and_stopping_before_it_exits_with_0(tmp_path: Path) -> None:
    with NotifySocket(tmp_path / "notify") as manager, service(tmp_path / "data", manager) as process:
        port = listening_port(process)
        manager.wait_for("READY=1")
        assert can_connect(port)
        assert any(line.startswith("STATUS=") for line in manager.lines)
        assert "STOPPING=1" not in manager.lines

        process.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        assert process.wait(timeout=180) == 0
        assert manager.lines.index("READY=1") < manager.lines.index("STOPPING=1")
        assert not can_connect(port)


def test_a_start_after_a_kill_is_ready_again_and_says_so_once(tmp_path: Path) -> None:
    with NotifySocket(tmp_path / "first") as manager, service(tmp_path / "data", manager) as process:
        manager.wait_for("READY=1")
        process.kill()
        process.wait(timeout=180)
    with NotifySocket(tmp_path / "second") as manager, service(tmp_path / "data", manager) as process:
        port = listening_port(process)
        manager.wait_for("READY=1")
        assert can_connect(port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=180) == 0
        assert manager.lines.count("READY=1") == 1


def test_signs_of_life_come_as_often_as_the_unit_asks_for(tmp_path: Path) -> None:
    assert int(unit_settings()["WatchdogSec"][0]) > 0
    with (
        NotifySocket(tmp_path / "notify") as manager,
        service(tmp_path / "data", manager, WATCHDOG_USEC="1000000") as process,
    ):
        assert manager.wait_for("READY=1") <= manager.wait_for("WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=180) == 0


def test_ready_is_never_told_when_the_service_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the directory should be")
    with NotifySocket(tmp_path / "notify") as manager, service(tmp_path / "data", manager) as process:
        assert process.wait(timeout=180) == 1
        time.sleep(0.05)
        assert "READY=1" not in manager.lines


def test_a_setting_that_does_not_exist_ends_the_service_with_the_code_that_prevents_restarts(tmp_path: Path) -> None:
    command = [*service_command(tmp_path / "data"), "--set", "no.such.setting=1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert str(ended.returncode) in unit_settings()["RestartPreventExitStatus"][0].split()
    assert "no.such.setting" in ended.stderr
