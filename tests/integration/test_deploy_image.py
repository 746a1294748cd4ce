"""deploy/Dockerfile without a Docker engine: what it copies builds a whole wheel, and the commands in it work."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import warmlog
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


def test_the_wheel_holds_every_module_of_the_four_packages_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    for root in ("protocol", "broker", "client"):
        for path in (ROOT / root).rglob("*.py"):
            assert path.relative_to(ROOT / root).as_posix() in held
    assert {
        f"{package}/py.typed" for package in ("warmlog", "warmlog_broker", "warmlog_protocol", "warmlog_transport")
    } <= held
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
        healthy = subprocess.run(check, capture_output=True, text=True, timeout=180, check=False)
        assert healthy.returncode == 0, healthy.stderr
        assert broker.terminate() == 0
        ill = subprocess.run(check, capture_output=True, text=True, timeout=180, check=False)
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


BARE_ROOT = """
set -eu
root=$1 volume=$2 python=$3 packages=$4 wheel=$5
shift 5
mount --make-rprivate /
mount -t tmpfs root "$root"
mkdir -p "$root/usr" "$root/python" "$root/packages" "$root/opt/warmlog" "$root/var/lib/warmlog" "$root/tmp" "$root/dev"
for name in bin sbin lib lib64; do ln -s "usr/$name" "$root/$name"; done
touch "$root/dev/null" "$root/dev/urandom"
for name in null urandom; do mount --bind "/dev/$name" "$root/dev/$name"; done
mount --bind "$volume" "$root/var/lib/warmlog"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
for pair in "/usr usr" "$python python" "$packages packages" "$wheel opt/warmlog"; do
    mount --bind "${pair% *}" "$root/${pair##* }"
    mount -o remount,ro,bind "$root/${pair##* }"
done
mount -o remount,ro "$root"
exec chroot "$root" setpriv --reuid 7400 --regid 7400 --clear-groups --no-new-privs --bounding-set=-all "$@"
"""
"""Runs a command as `docker run --read-only --cap-drop ALL` does: a root that holds the program only and is read-only
but for the volume and /tmp, and the image's user without any capability."""


class ContainedEntryPoint(BrokerProcess):
    """The image's entry point in a bare root."""

    def __init__(self, directory: Path, wheel: Path, admin: str) -> None:
        settings = {"WARMLOG_LISTEN": "127.0.0.1:0", "WARMLOG_ADMIN_LISTEN": admin}
        modules = {"PYTHONPATH": "/opt/warmlog:/packages", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHOME": "/python"}
        modules["LD_LIBRARY_PATH"] = "/python/lib"
        super().__init__(directory / "volume", environment={**settings, **modules})
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(directory / "program")
        for path in ((directory / "program"), *(directory / "program").rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        for name in ("root", "volume"):
            (directory / name).mkdir(mode=0o755)
        os.chown(directory / "volume", 7400, 7400)
        places = [directory / "root", directory / "volume", sys.base_prefix, PACKAGES, directory / "program"]
        self._prefix = ["unshare", "--mount", "sh", "-c", BARE_ROOT, "sh", *map(str, places)]

    @property
    def arguments(self) -> list[str]:
        (entry_point,) = instructions("ENTRYPOINT")
        return [*self._prefix, *self.inside(exec_form(entry_point))]

    def inside(self, command: list[str]) -> list[str]:
        """A command of the image as it is in the bare root."""
        python = f"/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
        return [python, "-m", "warmlog", *command[1:]]


PACKAGES = Path(sysconfig.get_path("purelib"))


def why_no_bare_root() -> str:
    """Return why a bare root cannot be made here; "" if it can."""
    if os.geteuid():
        return "only root may make a root directory of its own for a process"
    missing = [name for name in ("unshare", "setpriv", "chroot") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} of util-linux and coreutils are not installed here"
    if subprocess.run(["unshare", "--mount", "mount", "--make-rprivate", "/"], capture_output=True).returncode:
        return "this machine does not allow new mounts"
    if not PACKAGES.stat().st_mode & 0o005 or not Path(sys.base_prefix).stat().st_mode & 0o005:
        return "the installed packages may be read by their owner only"
    return ""


def assert_confined(pid: int) -> None:
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert status["Uid"].split() == ["7400"] * 4
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {0}
    assert status["NoNewPrivs"] == "1"


async def test_the_image_works_read_only_as_its_user_without_capabilities(wheel: Path, tmp_path: Path) -> None:
    reason = why_no_bare_root()
    if reason:
        pytest.skip(reason)
    admin = f"127.0.0.1:{port_to_keep()}"
    with ContainedEntryPoint(tmp_path, wheel, admin) as broker:
        assert_confined(broker.pid)
        async with warmlog.Admin(broker.address) as client:
            await client.create_topic("flights")
        async with warmlog.Producer(broker.address) as producer:
            await producer.send("flights", b"contained")
        broker.restart()
        async with warmlog.Consumer(broker.address, topics=["flights"], start="earliest") as consumer:
            assert [record.value async for record in consumer.records(until="latest")] == [b"contained"]
        assert broker.terminate() == 0, broker.output
    assert {path.stat().st_uid for path in (tmp_path / "volume").rglob("*")} == {7400}
    assert not any((tmp_path / "root").iterdir())
