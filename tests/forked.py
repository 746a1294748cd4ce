"""Processes of `python -m MODULE` that are forked, which saves the interpreter's start and the imports.

See `integration/fork_server`. Whatever looks at the start itself, at the environment as the C library reads it, or puts
another program in front, runs as a `subprocess.Popen` instead.
"""

import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from types import ModuleType
from typing import NamedTuple

Constants = Mapping[ModuleType, Mapping[str, object]]
"""Values for constants of modules."""
FORK_SERVER = Path(__file__).parent / "integration" / "fork_server.py"
TIMEOUT_S = 180.0


class Forked:
    """What of `subprocess.Popen` the tests need. The descriptors of the three standard streams stay the caller's."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        streams: tuple[int, int, int],
        environment: dict[str, str],
        *,
        user: int | None = None,
        constants: Constants | None = None,
    ) -> None:
        self.args = [sys.executable, "-m", module, *arguments]
        self.returncode: int | None = None
        reading, writing = os.pipe()
        self._status = open(reading)  # noqa: SIM115 - closed when the exit code has come
        others = {module.__name__: values for module, values in (constants or {}).items()}
        request = {
            "arguments": [*arguments],
            "environment": environment,
            "directory": str(Path.cwd()),
            "user": user,
            "constants": others,
        }
        try:
            socket.send_fds(server(module).requests, [json.dumps(request).encode()], [*streams, writing])
        finally:
            os.close(writing)
        self.pid = int(self._status.readline())

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended; TimeoutExpired if it has not."""
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._status)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal; harmless when it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run_forked(
    module: str, arguments: Sequence[object], environment: dict[str, str] | None = None, given: bytes = b""
) -> "subprocess.CompletedProcess[bytes]":
    """A process run to its end, and what it wrote; `given` is its standard input."""
    with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
        stdin.write(given)
        stdin.seek(0)
        streams = (stdin.fileno(), stdout.fileno(), stderr.fileno())
        process = Forked(module, [*map(str, arguments)], streams, environment or {**os.environ})
        try:
            exit_code = process.wait(TIMEOUT_S)
        finally:
            process.kill()
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(process.args, exit_code, stdout.read(), stderr.read())


class Server(NamedTuple):
    """A server of forks; it ends when this process does, as its end of the socket is closed then."""

    process: "subprocess.Popen[bytes]"
    requests: socket.socket
    directory: "TemporaryDirectory[str]"

    @property
    def path(self) -> str:
        """The socket that takes requests of other processes: see `fork_client`."""
        return f"{self.directory.name}/requests"


@functools.cache
def server(module: str) -> Server:
    """A server, started when first needed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    directory = TemporaryDirectory(prefix="warmlog-forks-")
    with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as named:
        named.bind(f"{directory.name}/requests")
        command = [sys.executable, str(FORK_SERVER), module, str(named.fileno())]
        return Server(subprocess.Popen(command, stdin=theirs.fileno(), pass_fds=[named.fileno()]), ours, directory)
