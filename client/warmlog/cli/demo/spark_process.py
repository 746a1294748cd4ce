"""Spark in another process that leads a process group, to which the Java that it starts belongs.

So their output goes to a log, and the demo can end all of them at any time.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from warmlog.cli.terminal.exits import CommandFailed

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Quick to start: Java's second compiler and its larger collectors pay off after minutes, not in one query."""


class SparkProcess:
    """A running `python -m module`. At the end of a `with` block the process and what it has started are killed."""

    def __init__(self, module: str, *arguments: str, directory: Path) -> None:
        """Its log goes to `directory`."""
        directory.mkdir(exist_ok=True)
        with log_path(directory).open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> None:
        """Return when it has ended; CommandFailed if that is with an error."""
        exit_code = self._process.wait()
        if exit_code != 0:
            raise CommandFailed(f"Spark ended with exit code {exit_code}")

    def kill(self) -> None:
        """Kill the process and those that it started: an interrupted pyspark leaves Java running."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def log_path(directory: Path) -> Path:
    """Return the path of Spark's log."""
    return directory / "spark.log"


def start_session(scratch: Path) -> Any:
    """Return a Spark session whose files are in `scratch`."""
    from pyspark.sql import SparkSession

    # By its name: Spark finds no Python data sources if the path of Python has a space in it.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = Path(sys.executable).name
    builder = SparkSession.builder.master("local[2]").appName("warmlog demo")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.local.dir", str(scratch / "local"))
    session = builder.config("spark.sql.warehouse.dir", str(scratch / "warehouse")).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
