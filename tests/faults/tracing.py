"""Brokers whose system calls fail, are delayed or kill them: by `strace -e inject=…`."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker_process import BrokerProcess


def why_not_traced() -> str:
    """Why system calls cannot be tampered with here; empty when they can."""
    strace = shutil.which("strace")
    if strace is None:
        return "strace is missing (Debian: apt-get install strace)"
    tried = subprocess.run(
        [strace, "-o", "/dev/null", "-e", "inject=fsync:error=EIO:when=1", "true"], capture_output=True, text=True
    )
    return "" if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.strip()}"


class InjectedBroker(BrokerProcess):
    """A broker of which strace tampers with the system calls from its start on.

    `inject` is what follows `-e inject=`. With `path` it concerns calls on that file only.
    """

    def __init__(self, data_dir: Path, inject: str, path: Path | None = None, **settings: object) -> None:
        super().__init__(data_dir, **settings)
        self._inject = inject
        self._path = path

    @property
    def arguments(self) -> list[str]:
        calls = self._inject.split(":", 1)[0]
        # -D: the broker is our child, and strace watches from the side.
        tracer = [
            "strace",
            "-D",
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            f"trace={calls}",
            "-e",
            f"inject={self._inject}",
        ]
        return [*tracer, *(["-P", str(self._path)] if self._path else []), *super().arguments]


@contextmanager
def tampering(pid: int, inject: str, *paths: Path) -> Iterator["subprocess.Popen[str]"]:
    """Within, system calls of the running process fail as `inject` (`CALLS:error=ERRNO:when=N`) says.

    With `paths` only those that concern one of these files. Counting for `when` begins here. Yields strace.
    """
    command = ["strace", "-f", "-p", str(pid), "-o", "/dev/null"]
    command += ["-e", f"trace={inject.split(':', 1)[0]}", "-e", f"inject={inject}"]
    for path in paths:
        command += ["-P", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        try:
            line = ""
            while "attached" not in line:
                line = strace.stderr.readline()
                assert line, f"{command} ended with {strace.wait()}"
            yield strace
        finally:
            strace.send_signal(signal.SIGINT)
            strace.stderr.read()
