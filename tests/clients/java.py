"""Java programs of ../clients/java: compiled against a set of jars, and run with it."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clients import fetched
from clients.programs import Program

HOME = Path(os.environ.get("JAVA_HOME", "/usr"))
OPENED = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.util", "java.lang", "java.time")]
"""What Flink's serializers look into."""
OPTIONS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx768m", *OPENED]


def java(jars: str, *arguments: object) -> list[object]:
    """A command line; `jars` is a name of tools/kafka-jars."""
    return [HOME / "bin" / "java", *OPTIONS, "-cp", f"{_classes(jars)}:{fetched.jars(jars)}/*", *arguments]


def program(name: str, jars: str, main: str) -> Program:
    """The class `main` of java/, compiled against these jars."""
    compile_class(jars, main)
    return Program(name, [str(word) for word in java(jars, main)], fetched.BUILD)


def compile_class(jars: str, main: str) -> None:
    source = fetched.HERE / "java" / f"{main}.java"
    done = subprocess.run(
        [HOME / "bin" / "javac", "-nowarn", "-cp", f"{fetched.jars(jars)}/*", "-d", _classes(jars), source],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def _classes(jars: str) -> Path:
    return fetched.BUILD / f"classes-{jars}"


@contextmanager
def running(command: list[object], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that writes to `log`; it is killed at the end if it still runs."""
    with log.open("ab") as output, subprocess.Popen(list(map(str, command)), stdout=output, stderr=output) as process:
        try:
            yield process
        finally:
            process.kill()
