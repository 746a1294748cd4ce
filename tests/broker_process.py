"""A real broker, as a process of its own, for tests: started, killed, started again on the same directory."""

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

from forked import Constants, Forked

PROGRAM = [sys.executable, "-m", "warmlog_broker"]
READY = re.compile(r"ready, listening on (?P<host>\S+):(?P<port>\d+)")
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 40
_KEPT_PORTS = range(15_000, 32_000)
"""Below those that the system gives out by itself."""
_next_port = itertools.count(os.getpid() * 101)


def port_to_keep() -> int:
    """A free port below those that the system gives out by itself, and that this process has not had for long.

    By chance two brokers of a cluster would have the same now and then. While a broker is down, nobody else is given
    its port: not even a client that dials it again and again, which the system may connect to itself when its own end
    happens to get the same number.
    """
    while True:
        port = _KEPT_PORTS[next(_next_port) % len(_KEPT_PORTS)]
        with socket.socket() as candidate:
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


class BrokerFailed(Exception):
    """The broker ended instead of becoming ready; `output` is what it wrote to stderr."""

    def __init__(self, exit_code: int | None, output: str) -> None:
        super().__init__(f"the broker ended with exit code {exit_code}:\n{output}")
        self.exit_code = exit_code
        self.output = output


class BrokerProcess:
    """`python -m warmlog_broker` on `data_dir`, or several; settings have underscores for dots: `flush_ms=5`.

    A context manager: entering starts it and waits until it listens, leaving kills what still runs. As tests kill it
    often, a start is refused after crashes only if a test sets `crash_loop_limit`; its log is text. With `constants`,
    times that are not settings are shorter.
    """

    may_fork = False
    """Whether a process that has nothing special about it is a fork, which starts in a tenth of the time."""

    def __init__(
        self,
        data_dir: Path,
        *more: Path,
        environment: dict[str, str] | None = None,
        constants: Constants | None = None,
        **settings: object,
    ) -> None:
        self.data_dir = data_dir
        self.data_dirs = [data_dir, *more]
        settings.setdefault("crash_loop_limit", 0)
        settings.setdefault("log_format", "text")
        self.settings = {name.replace("_", "."): _as_text(value) for name, value in settings.items()}
        self.environment = environment or {}
        self.constants = constants or {}
        self.host = "127.0.0.1"
        self.port = port_to_keep()
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self._lines: list[str] = []
        self._reader: threading.Thread | None = None
        self._is_ready = False
        self._has_answered = threading.Event()
        """Whether the last start has become ready, or has ended."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        ended = None if self.process is None else self.process.poll()
        self.kill()
        if kind is not None:
            print(f"the broker of {self.data_dir}, exit code {ended}:", self.output, sep="\n")

    @property
    def address(self) -> str:
        """HOST:PORT of the running broker."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def output(self) -> str:
        """What all starts so far wrote to stderr."""
        return "".join(self._lines)

    @property
    def arguments(self) -> list[str]:
        """The command line. A restart asks for the same port."""
        command = [*PROGRAM]
        for path in self.data_dirs:
            command += ["--data-dir", str(path)]
        if "listeners" not in self.settings:
            command += ["--listen", f"{self.host}:{self.port}"]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        return command

    def start(self) -> None:
        """Returns when the broker listens; raises BrokerFailed when it ends before that."""
        self._is_ready = False
        self._has_answered.clear()
        reading, writing = os.pipe()
        self._reader = threading.Thread(target=self._read_output, args=(reading,), daemon=True)
        self._reader.start()
        try:
            self.process = self._launch(writing)
        finally:
            os.close(writing)
        if not self._has_answered.wait(START_TIMEOUT_S):
            self.kill()
            raise BrokerFailed(None, self.output + f"\nnot ready after {START_TIMEOUT_S} s")
        if not self._is_ready:
            exit_code = self._finish()
            raise BrokerFailed(exit_code, self.output)

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing is said. Harmless when it does not run."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        self._finish()

    def terminate(self) -> int:
        """SIGTERM, then the exit code once the broker has ended."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """The exit code, once the broker has ended."""
        assert self.process is not None
        self.process.wait(STOP_TIMEOUT_S)
        exit_code = self._finish()
        assert exit_code is not None
        return exit_code

    def restart(self) -> None:
        """A clean stop and a start on the same directory and port."""
        exit_code = self.terminate()
        assert exit_code == 0, self.output
        self.start()

    def _launch(self, stderr: int) -> "subprocess.Popen[bytes] | Forked":
        arguments = self.arguments
        with open(os.devnull) as nothing:
            is_plain = not self.environment and arguments[: len(PROGRAM)] == PROGRAM
            if self.constants or (self.may_fork and is_plain):
                assert is_plain, "constants are set in a fork"
                streams, given = (nothing.fileno(), 1, stderr), arguments[len(PROGRAM) :]
                return Forked("warmlog_broker", given, streams, {**os.environ}, constants=self.constants)
            environment = {**os.environ, "PYTHONUNBUFFERED": "1", **self.environment}
            return subprocess.Popen(arguments, stderr=stderr, stdin=nothing, env=environment)

    def _finish(self) -> int | None:
        if self.process is None:
            return None
        exit_code = self.process.wait()
        if self._reader is not None:
            self._reader.join()
            self._reader = None
        return exit_code

    def _read_output(self, reading: int) -> None:
        with open(reading) as lines:
            for line in lines:
                self._lines.append(line)
                found = READY.search(line)
                if found:
                    self.port = int(found["port"])
                    self._is_ready = True
                    self._has_answered.set()
        self._has_answered.set()


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
