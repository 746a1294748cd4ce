"""A wheel and a source distribution build, install with all extras, and have one version."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

import warmlog
from warmlog_transport.options import ConnectionOptions

ROOT = Path(__file__).parents[2]
EXTRAS = "adopt,arrow,spark,picture"


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
    assert ConnectionOptions().handshake().client_version == warmlog.__version__


def _run(*command: object, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
