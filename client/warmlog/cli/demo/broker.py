"""The demo's broker: `warmlog serve` as a process of its own, which can be killed and started again."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from warmlog.cli.terminal.exits import CommandFailed

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.01

_READY = re.compile(r"ready, listening on \S+?:(\d+)\s")


class DemoBroker:
    """A broker on `data_dir` that writes its log to `log_path`."""

    def __init__(self, data_dir: Path, log_path: Path) -> None:
        self.data_dir = data_dir
        self.log_path = log_path
        self.port = 0
        self.start_seconds = 0.0
        """How long the last start took until it listened."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The HOST:PORT for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it listens: on a free port the first time, then on the same one."""
        command = [sys.executable, "-m", "warmlog", "serve"]
        command += ["--data-dir", str(self.data_dir), "--listen", self.address, "--set", "log.format=text"]
        started_at = time.monotonic()
        with self.log_path.open("ab") as log:
            log_start = log.tell()
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal is for the demo, which then stops its broker
            )
        while (ready := _READY.search(self._log_from(log_start))) is None:
            if self._process.poll() is not None:
                raise CommandFailed(f"the broker ended with exit code {self._process.returncode} before it listened")
            if time.monotonic() - started_at > START_TIMEOUT_S:
                raise CommandFailed(f"the broker did not listen within {START_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)
        self.port = int(ready[1])
        self.start_seconds = time.monotonic() - started_at

    def kill(self) -> None:
        """Send SIGKILL, so that the broker can flush nothing; do nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM and wait for the exit; CommandFailed if it is not a clean one."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            exit_code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise CommandFailed(f"the broker did not stop within {STOP_TIMEOUT_S:.0f} s") from None
        if exit_code != 0:
            raise CommandFailed(f"the broker stopped with exit code {exit_code}")

    def _log_from(self, position: int) -> str:
        return self.log_path.read_bytes()[position:].decode(errors="replace")
