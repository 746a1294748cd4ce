"""The demo's broker and its Spark: processes of their own, which can be killed.

Each leads a session, so that Ctrl-C at the terminal reaches the demo alone, which then ends them, and has a log.
"""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.01

_READY = re.compile(r"ready, listening on \S+?:(\d+)\s")


class DemoFailed(Exception):
    """The demo cannot go on; the message is the line that the user reads."""


class PythonProcess:
    """A running `python -m module`. At the end of a `with` block it is killed, with all that it has started."""

    def __init__(self, *arguments: str, log_path: Path) -> None:
        """`arguments` are the module and its arguments."""
        with log_path.open("ab") as log:
            self._log, self._log_start = log_path, log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
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
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def output(self) -> str:
        """What it has written to its log."""
        return self._log.read_bytes()[self._log_start :].decode(errors="replace")

    def wait(self, name: str, timeout_s: float | None = None) -> None:
        """Return when it has ended. DemoFailed, which calls it by `name`, after an error or the timeout."""
        try:
            exit_code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"{name} did not end within {timeout_s:.0f} s") from None
        if exit_code != 0:
            raise DemoFailed(f"{name} ended with exit code {exit_code}")

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to the process and to those that it started: an interrupted pyspark leaves Java running."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Broker:
    """`warmlog serve` on `data_dir`, which writes its log to `log_path`."""

    def __init__(self, data_dir: Path, log_path: Path) -> None:
        self.data_dir = data_dir
        self.log_path = log_path
        self.port = 0
        self.process: PythonProcess | None = None

    @property
    def address(self) -> str:
        """The HOST:PORT for clients."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> float:
        """Return the seconds until it listens: on a free port the first time, then on the same one."""
        started_at = time.monotonic()
        options = ("--data-dir", str(self.data_dir), "--listen", self.address, "--set", "log.format=text")
        self.process = process = PythonProcess("warmlog", "serve", *options, log_path=self.log_path)
        while (ready := _READY.search(process.output)) is None:
            if process.has_ended:
                process.wait("the broker")
                raise DemoFailed("the broker ended before it listened")
            if time.monotonic() - started_at > START_TIMEOUT_S:
                raise DemoFailed(f"the broker did not listen within {START_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)
        self.port = int(ready[1])
        return time.monotonic() - started_at

    def kill(self) -> None:
        """Send SIGKILL, so that it can flush nothing; do nothing if it was never started."""
        if self.process is not None:
            self.process.kill()

    def stop(self) -> None:
        """Send SIGTERM and wait for a clean exit."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait("the broker", STOP_TIMEOUT_S)
