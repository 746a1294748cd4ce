"""Lets a fork do what this process was started for, which saves the interpreter's start and the imports.

The process of the tests has a server of forks for each kind of program (see `forked`), and FORK_SERVER is the path of
its socket. As a program this is the command `warmlog` in the shell blocks of pages; Spark's Python processes come here
from `spark/preloading/sitecustomize`.
"""

import json
import os
import signal
import socket
import sys


def run_in_fork(server: str, arguments: list[str]) -> int:
    """Return the exit code of the fork, as a shell tells it.

    It has this process's streams, environment and directory, and gets its SIGTERM.
    """
    request = {
        "arguments": arguments,
        "environment": {**os.environ},
        "directory": os.getcwd(),  # noqa: PTH109 - pathlib takes longer to import than the rest
        "user": None,
        "constants": {},
    }
    reading, writing = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as requests:
        requests.connect(server)
        socket.send_fds(requests, [json.dumps(request).encode()], [0, 1, 2, writing])
    os.close(writing)
    with open(reading) as status:
        pid = int(status.readline())
        signal.signal(signal.SIGTERM, lambda number, _: os.kill(pid, number))
        exit_code = int(status.readline())
    return exit_code if exit_code >= 0 else 128 - exit_code


if __name__ == "__main__":
    sys.exit(run_in_fork(os.environ["FORK_SERVER"], sys.argv[1:]))
