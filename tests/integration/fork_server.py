"""Runs command lines in forks of one process that has imported them: real processes, without their start-up time.

Reads requests as lines of JSON: the arguments, the environment, and files for the three standard streams. Answers each
with a line, the exit code.
"""

import json
import os
import signal
import sys
from typing import Any, NoReturn

from typer.testing import CliRunner

TIMEOUT_S = 60


def serve() -> None:
    """Answers requests until there are no more. A command that is misused imports what the others need, too."""
    import uvloop  # noqa: F401

    import warmlog.cli.terminal.formats
    import warmlog.cli.terminal.lines  # noqa: F401
    from warmlog.cli.app import build_app

    CliRunner().invoke(build_app(is_terminal=False), ["consume", "topic", "--from", "nowhere"])
    for request in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(json.loads(request))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(request: dict[str, Any]) -> NoReturn:
    """Turns this process into the one that was asked for."""
    signal.alarm(TIMEOUT_S)
    flags = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT)
    for number, (path, flag) in enumerate(zip(request["streams"], flags, strict=True)):
        os.dup2(os.open(path, flag), number)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["warmlog", *request["arguments"]]

    from warmlog.cli import main

    exit_code = 0
    try:
        main()
    except SystemExit as end:
        exit_code = end.code if isinstance(end.code, int) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    serve()
