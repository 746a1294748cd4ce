"""The command `warmlog` in the shell blocks of pages: it runs as a fork, which saves the interpreter's start.

The process of the tests has the server of forks (see `forked`), whose socket is open here as well; FORK_SERVER is the
number of its descriptor. The fork has this process's streams, environment and directory, and gets its SIGTERM.
"""

import json
import os
import signal
import socket
import sys


def main() -> int:
    """Return the exit code of the fork, as a shell tells it."""
    request = {
        "arguments": sys.argv[1:],
        "environment": {**os.environ},
        "directory": os.getcwd(),  # noqa: PTH109 - pathlib takes longer to import than the rest
        "user": None,
        "constants": {},
    }
    reading, writing = os.pipe()
    with socket.socket(fileno=int(os.environ["FORK_SERVER"])) as requests:
        socket.send_fds(requests, [json.dumps(request).encode()], [0, 1, 2, writing])
    os.close(writing)
    with open(reading) as status:
        pid = int(status.readline())
        signal.signal(signal.SIGTERM, lambda number, _: os.kill(pid, number))
        exit_code = int(status.readline())
    return exit_code if exit_code >= 0 else 128 - exit_code


if __name__ == "__main__":
    sys.exit(main())
