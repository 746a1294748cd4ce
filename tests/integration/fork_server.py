"""Runs a program in forks of one process that has imported it: real processes, without their start-up time.

`fork_server.py MODULE DESCRIPTOR`, with a Unix socket as its standard input, whose other end is that of the process
that started it, and another one at DESCRIPTOR for requests of others. A request is one message: a JSON object of the
arguments, the environment, the working directory, the user to become or null, and constants that have other values
there (by module and name), with four descriptors: the three standard streams, and one for the status. The status is two
lines: the process id, and, once the process has ended, its exit code.
"""

import gc
import importlib
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
from types import ModuleType
from typing import Any, NoReturn

MAX_REQUEST_BYTES = 128 * 1024
DESCRIPTORS = 4


def broker() -> Callable[[], object]:
    """The broker's program, with what it imports late: the user that it becomes may not be able to read it."""
    import encodings.idna  # noqa: F401

    import warmlog_broker
    import warmlog_protocol.sasl.scram  # noqa: F401
    from warmlog_broker.__main__ import main
    from warmlog_broker.runtime.version import broker_version

    import_all(warmlog_broker)
    broker_version()
    return main


def command_line() -> Callable[[], object]:
    """The command line's program, with what commands import. A misused command imports what the others need, too."""
    import click._textwrap  # noqa: F401

    import warmlog.cli
    from warmlog_transport.options import client_version

    broker()
    import_all(warmlog.cli)
    for name in warmlog.__all__:
        getattr(warmlog, name)
    client_version()
    return warmlog.cli.main


def import_all(package: ModuleType) -> None:
    """Import all modules of a package."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)


def console() -> Callable[[], object]:
    """The command line's program, for `warmlog console`."""
    import warmlog.console.server  # noqa: F401

    return command_line()


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

    import_all(pyspark.sql.worker)
    return run_module


def run_module() -> None:
    """Run the module that the first argument names, as `python -m` does."""
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def clients() -> Callable[[], object]:
    """The programs of clients that are killed and stopped in tests; the first argument is the module of one."""
    from warmlog_transport.options import client_version

    sys.path.insert(0, str(Path(__file__).parents[1]))
    programs = {module: importlib.import_module(module).main for module in CLIENTS}
    client_version()

    def main() -> object:
        return programs[sys.argv.pop(1)]()

    return main


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
    "warmlog.console": console,
    "warmlog_broker": broker,
    "pyspark": spark_python,
    "clients": clients,
}


def serve(sockets: list[socket.socket]) -> dict[str, Any] | None:
    """Serve requests until there are no more. In the process that a request asks for, return the request."""
    poll, statuses = select.poll(), dict[int, tuple[int, int]]()
    by_descriptor = {each.fileno(): each for each in sockets}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready in statuses:
                poll.unregister(ready)
                _tell_end(ready, *statuses.pop(ready))
                continue
            message, descriptors, _, _ = socket.recv_fds(by_descriptor[ready], MAX_REQUEST_BYTES, DESCRIPTORS)
            if not message:
                return None
            *streams, status = descriptors
            pid = os.fork()
            if pid == 0:
                ours = *(each.detach() for each in sockets), *statuses, *(each for _, each in statuses.values()), status
                for descriptor in ours:
                    os.close(descriptor)
                for number, descriptor in enumerate(streams):
                    os.dup2(descriptor, number)
                    os.close(descriptor)
                return dict(json.loads(message))
            for descriptor in streams:
                os.close(descriptor)
            with suppress(BrokenPipeError):
                os.write(status, b"%d\n" % pid)
            watched = os.pidfd_open(pid)
            statuses[watched] = pid, status
            poll.register(watched, select.POLLIN)


def _tell_end(watched: int, pid: int, status: int) -> None:
    """Tell the exit code of the process `pid`, which has ended."""
    _, wait_status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(wait_status))
    os.close(watched)
    os.close(status)


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
    program = PROGRAMS[module]()
    gc.freeze()  # collections in the forks then leave what they share with this process alone
    request = serve([socket.socket(fileno=0), socket.socket(fileno=descriptor)])
    if request is not None:
        run(program, request)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
