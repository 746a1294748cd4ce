"""Runs a program in forks of one process that has imported it: real processes, without their start-up time.

`fork_server.py MODULE DESCRIPTOR`, with a Unix socket as its standard input, whose other end is that of the process
that started it, and another one at DESCRIPTOR for requests of others. A request is one message: a JSON object of the
arguments, the environment, the working directory, the user to become or null, and constants that have other values
there (by module and name), with four descriptors: the three standard streams, and one for the status. The status is two
lines: the process id, and, once the process has ended, its exit code.
"""

import functools
import gc
import importlib
import itertools
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

MAX_REQUEST_BYTES = 128 * 1024
DESCRIPTORS = 4


def broker() -> Callable[[], object]:
    """The broker's program, with what it imports late: the user that it becomes may not be able to read it."""
    import encodings.idna  # noqa: F401

    import warmlog_broker
    import warmlog_protocol.sasl.scram  # noqa: F401
    from warmlog_broker.__main__ import main

    for module in pkgutil.walk_packages(warmlog_broker.__path__, "warmlog_broker."):
        importlib.import_module(module.name)
    return main


def command_line() -> Callable[[], object]:
    """The command line's program, with what commands import. A misused command imports what the others need, too."""
    import warmlog.cli.terminal.formats
    import warmlog.cli.terminal.lines  # noqa: F401
    from warmlog.cli import main
    from warmlog.cli.app import Family, LazyCommand, build_program

    broker()
    families = [family.commands.values() for family in build_program().commands.values() if isinstance(family, Family)]
    for command in (*build_program().commands.values(), *itertools.chain.from_iterable(families)):
        if isinstance(command, LazyCommand):
            command.load()
    return main


def spark_python() -> Callable[[], object]:
    """A module that Spark runs with Python, and what it imports, which its arguments name."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy starts threads otherwise, and a fork takes none along
    import pandas  # noqa: F401
    import pyspark.sql.worker
    import pyspark.worker

    import warmlog.ranges.range_reader
    import warmlog.spark.read.planning
    import warmlog.spark.source
    import warmlog.spark.write.writer  # noqa: F401

    for module in pkgutil.iter_modules(pyspark.sql.worker.__path__, "pyspark.sql.worker."):
        importlib.import_module(module.name)
    return run_module


def run_module() -> None:
    """Run the module that the first argument names, as `python -m` does."""
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def of_tests(module: str) -> Callable[[], object]:
    """The program of a client that is killed and stopped in tests."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    program: Callable[[], object] = importlib.import_module(module).main
    return program


CLIENTS = (
    "integration.member_program",
    "faults.history.member",
    "faults.history.kafka.member",
    "faults.history.kafka.copier",
    "faults.history.transactional.pair",
    "faults.history.transactional.job",
)
PROGRAMS = {
    "warmlog": command_line,
    "warmlog_broker": broker,
    "pyspark": spark_python,
    **{module: functools.partial(of_tests, module) for module in CLIENTS},
}


def serve(sockets: list[socket.socket]) -> dict[str, Any] | None:
    """Serve requests until there are no more. In the process that a request asks for, return the request."""
    while True:
        (requests, *_), _, _ = select.select(sockets, [], [])
        message, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, DESCRIPTORS)
        if not message:
            return None
        if os.fork() == 0:
            for each in sockets[1:]:
                each.close()
            sockets[0].detach()
            return _fork_and_tell(json.loads(message), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_and_tell(request: dict[str, Any], *descriptors: int) -> dict[str, Any]:
    """Return in a child of this process; this process tells its id, waits for it, tells its exit code, and ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, status = descriptors
    pid = os.fork()
    if pid:
        for stream in streams:
            os.close(stream)
        os.write(status, b"%d\n" % pid)
        _, wait_status = os.waitpid(pid, 0)
        with suppress(BrokenPipeError):
            os.write(status, b"%d\n" % os.waitstatus_to_exitcode(wait_status))
        os._exit(0)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    return request


def run(program: Callable[[], object], request: dict[str, Any]) -> NoReturn:
    """Run the program as a process of its own does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["directory"])
    if request["user"] is not None:
        os.setgroups([])
        os.setuid(request["user"])
    for module, constants in request["constants"].items():
        vars(importlib.import_module(module)).update(constants)
    sys.argv[1:] = request["arguments"]
    sys.exit(program())


def main(module: str, descriptor: int) -> None:
    """Serve until the other end of the first socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the programs
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the processes that wait for them are not waited for
    program = PROGRAMS[module]()
    gc.freeze()  # collections in the forks then leave what they share with this process alone
    request = serve([socket.socket(fileno=0), socket.socket(fileno=descriptor)])
    if request is not None:
        run(program, request)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
