"""Brokers whose system calls fail, are delayed or kill them: by `strace -e inject=…`."""

import shlex
import shutil
import subprocess
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

    `inject` is what follows `-e inject=`, and after that further options: `-P PATH` for calls on that file only.
    """

    def __init__(self, data_dir: Path, *more: Path, inject: str, **settings: object) -> None:
        super().__init__(data_dir, *more, **settings)
        self._inject = shlex.split(inject)

    @property
    def arguments(self) -> list[str]:
        what, *options = self._inject
        calls = what.split(":", 1)[0]
        # -D: the broker is our child, and strace watches from the side.
        tracer = ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={what}"]
        return [*tracer, *options, *super().arguments]
