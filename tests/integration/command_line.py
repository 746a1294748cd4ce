"""The command line, run as users run it: each command a process of its own.

Calling a CommandLine runs a command to its end; it is forked from a process that has imported everything (see
`fork_server`), which saves the interpreter's start. `start` begins a process from scratch, for tests that look at that,
at signals and at pipes.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

WARMLOG = [sys.executable, "-m", "warmlog"]

Done = subprocess.CompletedProcess[bytes]


class CommandLine:
    """Commands against one broker, which they find through the environment."""

    def __init__(self, address: str, **variables: str) -> None:
        self.environment = environment(WARMLOG_BROKER=address, **variables)

    def __call__(self, *arguments: object, given: bytes = b"") -> Done:
        """One command, run to its end; `given` is its standard input."""
        with tempfile.TemporaryDirectory() as directory:
            streams = [Path(directory, name) for name in ("stdin", "stdout", "stderr")]
            streams[0].write_bytes(given)
            exit_code = _run_forked([*map(str, arguments)], self.environment, streams)
            return Done([*map(str, arguments)], exit_code, streams[1].read_bytes(), streams[2].read_bytes())

    def start(self, *arguments: object) -> "subprocess.Popen[bytes]":
        """One command, still running, with pipes for all three streams."""
        command = [*WARMLOG, *map(str, arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=self.environment)


def _run_forked(arguments: list[str], variables: dict[str, str], streams: list[Path]) -> int:
    """The exit code of a command that reads and writes these files."""
    server = _fork_server()
    assert server.stdin is not None
    assert server.stdout is not None
    request = {"arguments": arguments, "environment": variables, "streams": [str(path) for path in streams]}
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return int(server.stdout.readline())


@functools.cache
def _fork_server() -> "subprocess.Popen[str]":
    """Started when first needed; it ends by itself when this process does, as its stdin is closed then."""
    script = Path(__file__).with_name("fork_server.py")
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, script], stdin=pipe, stdout=pipe, text=True, env=environment())


def environment(**variables: str) -> dict[str, str]:
    """The environment of the tests, without what would change how commands behave."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WARMLOG_")}
    return {**inherited, "NO_COLOR": "1", "COLUMNS": "120", **variables}


def succeeded(done: Done) -> bytes:
    """What a command printed, once it was found to have ended well."""
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def error_line(done: Done, exit_code: int = 1) -> str:
    """The one line that says why a command failed."""
    text = done.stderr.decode()
    assert done.returncode == exit_code, text
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("warmlog: error: ")]
    return line
