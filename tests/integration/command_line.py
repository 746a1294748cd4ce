"""The command line, run as users run it: each command a process of its own.

Calling a CommandLine runs a command to its end; it is forked from a process that has imported everything (see
`forked`), which saves the interpreter's start. `start` begins a process from scratch, for tests that look at that,
at signals and at pipes.
"""

import os
import pty
import struct
import subprocess
import sys
import termios
from fcntl import ioctl

from forked import Forked, run_forked

TERMINAL_COLUMNS = 80
WARMLOG = [sys.executable, "-m", "warmlog"]

Done = subprocess.CompletedProcess[bytes]


class CommandLine:
    """Commands against one broker, which they find through the environment."""

    def __init__(self, address: str, **variables: str) -> None:
        self.environment = environment(WARMLOG_BROKER=address, **variables)

    def __call__(self, *arguments: object, given: bytes = b"") -> Done:
        """One command, run to its end; `given` is its standard input."""
        return run_forked("warmlog", arguments, self.environment, given)

    def start(self, *arguments: object) -> "subprocess.Popen[bytes]":
        """One command, still running, with pipes for all three streams."""
        command = [*WARMLOG, *map(str, arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=self.environment)


def at_terminal(commands: CommandLine, *arguments: str, typed: bytes = b"") -> tuple[int, list[str]]:
    """Exit code and lines of a command whose three streams are a terminal of TERMINAL_COLUMNS.

    `typed` is typed at its first prompt: what is typed before a prompt for a password is dropped.
    """
    controller, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, TERMINAL_COLUMNS, 0, 0))
    variables = {name: value for name, value in commands.environment.items() if name != "COLUMNS"}
    process = Forked("warmlog", arguments, (terminal, terminal, terminal), variables)
    os.close(terminal)
    shown = b""
    while True:
        if shown.endswith(b": "):
            os.write(controller, typed)
            typed = b""
        try:
            piece = os.read(controller, 65536)
        except OSError:  # the other end is closed
            break
        shown += piece
    os.close(controller)
    return process.wait(60), shown.decode().splitlines()


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
