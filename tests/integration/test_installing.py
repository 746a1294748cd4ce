"""Wheel and source distribution build, install with all extras, and have one version; what `make` sets up."""

import os
import stat
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

import warmlog

ROOT = Path(__file__).parents[2]
EXTRAS = "adopt,arrow,spark,picture,console"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both distributions. The wheel is built from the unpacked source distribution, as pip does it."""
    directory = tmp_path_factory.mktemp("built")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", directory, cwd=ROOT)
    (source,) = directory.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(directory, filter="data")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory, cwd=directory / source.name[:-7])
    (wheel,) = directory.glob("*.whl")
    return {"sdist": source, "wheel": wheel}


@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_a_distribution_installs_with_its_extras_and_runs(built: dict[str, Path], kind: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    base = str(tmp_path / "venv")
    packages = Path(sysconfig.get_path("purelib", vars={"base": base, "platbase": base}))
    # Dependencies come from this environment, whose own .pth files, and so its warmlog, stay out.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = tmp_path / "venv" / "bin" / "python"
    offline = ("--no-index", "--no-build-isolation", "--no-warn-conflicts", "--disable-pip-version-check")
    _run(python, "-m", "pip", "install", "--quiet", *offline, f"warmlog[{EXTRAS}] @ {built[kind].as_uri()}")
    assert "No broken requirements" in _run(python, "-m", "pip", "check")
    code = "import warmlog, warmlog.arrow.reader, warmlog.spark; print(warmlog.__version__); print(warmlog.__file__)"
    version, file = _run(python, "-c", code).splitlines()
    assert Path(file).is_relative_to(tmp_path)
    assert version == warmlog.__version__
    assert _run(tmp_path / "venv" / "bin" / "warmlog", "--version") == f"warmlog {version}\n"


def test_the_version_is_the_same_everywhere(built: dict[str, Path]) -> None:
    for path in built.values():
        assert path.name.startswith(f"warmlog-{warmlog.__version__}")
    assert _run(Path(sys.executable).with_name("warmlog"), "--version") == f"warmlog {warmlog.__version__}\n"


def _run(*command: object, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def java(home: Path, version: str) -> Path:
    """A directory that looks like a Java of `version`."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return home


def java_home(home: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"JAVA_HOME": str(home)}
    return subprocess.run(
        [ROOT / "tools" / "java-home"], env=environment, capture_output=True, text=True, timeout=180, check=False
    )


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea", "26.0.1"])
def test_java_home_is_taken_when_it_is_new_enough(tmp_path: Path, version: str) -> None:
    home = java(tmp_path / "a java", version)
    found = java_home(home)
    assert (found.returncode, found.stdout) == (0, f"{home}\n")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "16"])
def test_an_older_java_home_is_passed_over(tmp_path: Path, version: str) -> None:
    home = java(tmp_path / "old", version)
    assert java_home(home).stdout != f"{home}\n"


def test_what_cannot_be_installed_is_said_in_one_line(tmp_path: Path) -> None:
    only_id = tmp_path / "id"
    only_id.write_text("#!/bin/sh\necho 1000\n")
    only_id.chmod(0o755)
    refused = subprocess.run(
        [ROOT / "tools" / "apt-install", "Spark needs Java 17 or newer", "default-jre-headless"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert refused.returncode == 1
    assert refused.stderr == (
        "warmlog: Spark needs Java 17 or newer; please install it (Debian: apt-get install default-jre-headless)\n"
    )
