"""deploy/Dockerfile without a Docker engine: what it copies builds a whole wheel, and the commands in it work."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from broker_process import BrokerProcess, port_to_keep

ROOT = Path(__file__).parents[2]
INSTRUCTIONS = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")


def instructions(name: str) -> list[str]:
    """The arguments of every instruction of that name, in order."""
    return re.findall(rf"^{name}\s+(.+)$", INSTRUCTIONS, re.MULTILINE)


def exec_form(text: str) -> list[str]:
    """The command of an instruction in exec form; the shell form is no JSON list."""
    command: list[str] = json.loads(text[text.index("[") :])
    return command


def program(command: list[str]) -> list[str]:
    """`command` with this environment's program."""
    programs = {"warmlog": [sys.executable, "-m", "warmlog"], "python": [sys.executable]}
    return [*programs[command[0]], *command[1:]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of nothing but what the image copies from the source tree."""
    source = tmp_path_factory.mktemp("source")
    copied = [line.split() for line in instructions("COPY") if not line.startswith("--from")]
    for *names, place in copied:
        for name in names:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, source / place)
    target = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    built = subprocess.run(build, cwd=source, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr
    (found,) = target.glob("warmlog-*.whl")
    return found


def test_the_wheel_holds_every_module_of_the_three_packages_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    for root in ("protocol", "broker", "client"):
        for path in (ROOT / root).rglob("*.py"):
            assert path.relative_to(ROOT / root).as_posix() in held
    assert {f"{package}/py.typed" for package in ("warmlog", "warmlog_broker", "warmlog_protocol")} <= held
    assert any(name.endswith("licenses/LICENSE") for name in held)
    assert not any(name.startswith("tests") for name in held)


def test_the_program_runs_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    code = "import warmlog, warmlog_broker, warmlog_protocol\n"
    code += "for package in (warmlog, warmlog_broker, warmlog_protocol): print(package.__file__)"
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert all(path.startswith(str(tmp_path)) for path in ran.stdout.splitlines())


def test_the_image_runs_as_a_fixed_user_that_is_not_root_with_one_volume() -> None:
    uid, gid = instructions("USER")[-1].split(":")
    assert uid.isdigit()
    assert gid.isdigit()
    assert uid != "0"
    assert instructions("VOLUME") == ["/var/lib/warmlog"]
    assert instructions("STOPSIGNAL") == ["SIGTERM"]


def test_entry_point_and_health_check_are_exec_forms_that_work(tmp_path: Path) -> None:
    (entry_point,) = instructions("ENTRYPOINT")
    (health_check,) = instructions("HEALTHCHECK")
    admin = f"127.0.0.1:{port_to_keep()}"
    check = [part.replace("127.0.0.1:9464", admin) for part in program(exec_form(health_check))]
    assert admin in check[-1]
    with EntryPoint(tmp_path / "data", exec_form(entry_point), admin) as broker:
        healthy = subprocess.run(check, capture_output=True, text=True, timeout=30, check=False)
        assert healthy.returncode == 0, healthy.stderr
        assert broker.terminate() == 0
        ill = subprocess.run(check, capture_output=True, text=True, timeout=30, check=False)
        assert ill.returncode == 1


def test_the_health_check_asks_where_the_image_serves_it() -> None:
    (environment,) = instructions("ENV")
    (port,) = re.findall(r"WARMLOG_ADMIN_LISTEN=0\.0\.0\.0:(\d+)", environment)
    assert f"127.0.0.1:{port}/healthz/ready" in instructions("HEALTHCHECK")[0]
    assert instructions("EXPOSE") == [f"7400 {port}"]


class EntryPoint(BrokerProcess):
    """The image's entry point, on another directory and a free port of the loopback interface."""

    def __init__(self, data_dir: Path, command: list[str], admin: str) -> None:
        super().__init__(data_dir, environment={"WARMLOG_LISTEN": "127.0.0.1:0", "WARMLOG_ADMIN_LISTEN": admin})
        self._command = program(command)
        self._command[self._command.index("/var/lib/warmlog")] = str(data_dir)

    @property
    def arguments(self) -> list[str]:
        return self._command
