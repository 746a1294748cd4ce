"""Clients from the registries, each below build/clients once it is asked for; Unreachable if it cannot be had.

What a registry has not given is not asked for again, so that a row of many tests waits for it once.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec

TOP = Path(__file__).parents[2]
BUILD = TOP / "build" / "clients"
HERE = Path(__file__).parent
TIMEOUT_S = 600
P = ParamSpec("P")


class Unreachable(Exception):
    """A registry did not give what was asked for; the text is what its client said."""


def _once(fetch: Callable[P, Path]) -> Callable[P, Path]:
    """Each further call with the same arguments has the outcome of the first one."""
    outcomes: dict[tuple[object, ...], Path | Unreachable] = {}

    @wraps(fetch)
    def fetched(*args: P.args, **kwargs: P.kwargs) -> Path:
        if args not in outcomes:
            try:
                outcomes[args] = fetch(*args, **kwargs)
            except Unreachable as error:
                outcomes[args] = error
        outcome = outcomes[args]
        if isinstance(outcome, Unreachable):
            raise outcome
        return outcome

    return fetched


def _run(*command: object, directory: Path = TOP) -> str:
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen(
            [*map(str, command)],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=TIMEOUT_S)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # also what the command has started
                raise
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"{command[0]}: {error}") from error
    if process.returncode:
        raise Unreachable((errors + output)[-2000:])
    return output


@_once
def jars(name: str = "") -> Path:
    """A directory of jars from Maven Central, as tools/kafka-jars names them; without a name, of Kafka itself."""
    return Path(_run(TOP / "tools" / "kafka-jars", *name.split()).splitlines()[-1])


@_once
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


@_once
def debian(package: str) -> Path:
    """A program of Debian's, installed if it is not there."""
    if shutil.which(package) is None:
        _run(TOP / "tools" / "apt-install", "test-clients needs it", package)
    return Path(shutil.which(package) or package)


@_once
def go_program(name: str) -> Path:
    """The program of go/NAME, built with its modules from the proxy of Go."""
    _run("go", "build", "-o", _created(BUILD) / name, f"./{name}", directory=HERE / "go")
    return BUILD / name


@_once
def node_directory() -> Path:
    """A directory with the programs of node/ and, from npm, what they need; `node_modules/.bin/node` runs them."""
    directory = _created(BUILD / "node")
    wanted = (HERE / "node" / "package.json").read_text()
    is_here = (directory / "package.json").is_file() and (directory / "package.json").read_text() == wanted
    for source in (HERE / "node").iterdir():
        shutil.copy(source, directory)
    if not is_here or not (directory / "node_modules" / ".package-lock.json").is_file():  # which npm writes last
        _run("npm", "install", "--no-audit", "--no-fund", directory=directory)
    return directory


@_once
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
