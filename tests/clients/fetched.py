"""Clients from the registries, each below build/clients once it is asked for; Unreachable if it cannot be had."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).parents[2]
BUILD = TOP / "build" / "clients"
HERE = Path(__file__).parent
TIMEOUT_S = 900


class Unreachable(Exception):
    """A registry did not give what was asked for; the text is what its client said."""


def _run(*command: object, directory: Path = TOP) -> str:
    try:
        done = subprocess.run(
            list(map(str, command)),
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"{command[0]}: {error}") from error
    if done.returncode:
        raise Unreachable((done.stderr + done.stdout)[-2000:])
    return done.stdout


def jars(name: str = "") -> Path:
    """A directory of jars from Maven Central, as tools/kafka-jars names them; without a name, of Kafka itself."""
    return Path(_run(TOP / "tools" / "kafka-jars", *name.split()).splitlines()[-1])


def archive(artifact: str) -> Path:
    """What is in a `.tar.gz` from Maven Central: GROUP:NAME:VERSION:tar.gz[:CLASSIFIER]."""
    _, name, version, *_ = artifact.split(":")
    directory = BUILD / f"{name}-{version}"
    if not directory.is_dir():
        with tempfile.TemporaryDirectory(dir=_created(BUILD)) as work:
            _run("mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={work}")
            (packed,) = Path(work).glob("*.tar.gz")
            (Path(work) / "contents").mkdir()
            shutil.unpack_archive(packed, Path(work) / "contents")
            (Path(work) / "contents").rename(directory)
    return directory


def debian(package: str) -> Path:
    """A program of Debian's, installed if it is not there."""
    if shutil.which(package) is None:
        _run(TOP / "tools" / "apt-install", "test-clients needs it", package)
    return Path(shutil.which(package) or package)


def go_program(name: str) -> Path:
    """The program of go/NAME, built with its modules from the proxy of Go."""
    _run("go", "build", "-o", _created(BUILD) / name, f"./{name}", directory=HERE / "go")
    return BUILD / name


def node_directory() -> Path:
    """A directory with the programs of node/ and, from npm, what they need; `node_modules/.bin/node` runs them."""
    directory = _created(BUILD / "node")
    wanted = (HERE / "node" / "package.json").read_text()
    is_here = (directory / "package.json").is_file() and (directory / "package.json").read_text() == wanted
    for source in (HERE / "node").iterdir():
        shutil.copy(source, directory)
    if not is_here or not (directory / "node_modules").is_dir():
        _run("npm", "install", "--no-audit", "--no-fund", directory=directory)
    return directory


def python(name: str, *requirements: str) -> Path:
    """The Python of an environment of its own with these packages from PyPI."""
    directory = BUILD / name
    stamp = directory / "requirements"
    wanted = "\n".join(requirements)
    if not stamp.is_file() or stamp.read_text() != wanted:
        _run(sys.executable, "-m", "venv", "--clear", directory)
        _run(
            directory / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *requirements,
        )
        stamp.write_text(wanted)
    return directory / "bin" / "python"


def _created(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory
