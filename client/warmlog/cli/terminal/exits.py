"""How a command ends.

======  ======================================================================
  0     success, or the reader of its output closed the pipe (`| head`)
  1     failure: one line `warmlog: error: …` on stderr
  2     misuse: a wrong option, argument or value
130     Ctrl-C
======  ======================================================================

With `--debug`, or WARMLOG_DEBUG=1 in the environment, a failure also shows its traceback.
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import click
from click.exceptions import Abort, ClickException, Exit

from warmlog.cli.terminal.output import OutputClosed, note, remark
from warmlog.cli.terminal.tables import harmless

DEBUG_VARIABLE = "WARMLOG_DEBUG"

FAILED = 1
INTERRUPTED = 130

_NAMES_HERE = {
    "`username` and `password`": "--username and --password-file",
    "ssl=True": "--ssl",
    **{f"ssl_{name}": f"--ssl-{name}" for name in ("cafile", "certfile", "keyfile")},
}
"""What options of Python are called here."""
_REMEDIES = {"max.message.bytes=": "; `warmlog topic alter NAME --set max.message.bytes=8MiB` raises that"}
"""What to do about an error with this text."""

T = TypeVar("T")


class CommandFailed(Exception):
    """A command failed; the message is the line that the user reads."""


def is_debug() -> bool:
    """Whether failures show their traceback."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def run_cleanly(command: Callable[[], T]) -> T:
    """Return the result of `command`; whatever it raises ends the program as the table above says."""
    try:
        result = command()
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            raise OutputClosed from None
    except OutputClosed:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        raise Exit(0) from None
    except KeyboardInterrupt:
        raise Exit(INTERRUPTED) from None
    except (Exit, Abort, ClickException):
        raise
    except Exception as error:
        report(error)
        raise Exit(FAILED) from None
    return result


def end_quickly(code: object) -> None:
    """End the process without freeing each of its objects, which is a fifth of the time of a small command.

    Return without effect if another thread would keep the process alive, or if the output cannot be flushed: the
    interpreter's own end then waits, or reports it.
    """
    if isinstance(code, int) and all(
        each.daemon for each in threading.enumerate() if each is not threading.main_thread()
    ):
        atexit._run_exitfuncs()
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def checked(option: str, parse: Callable[[str], T], text: str) -> T:
    """Return `parse(text)`; its ValueError becomes a usage error that names `option`."""
    try:
        return parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def must_ask(*, is_certain: bool) -> bool:
    """Whether to ask the user; a usage error if there is no terminal to ask at."""
    if not is_certain and not sys.stdin.isatty():
        raise click.UsageError("there is no terminal at which this could be confirmed: give --yes")
    return not is_certain


def confirm(question: str, refusal: str, *, is_certain: bool) -> None:
    """Ask the user if `must_ask`; CommandFailed with `refusal` if the user does not agree."""
    if must_ask(is_certain=is_certain) and not click.confirm(harmless(question), err=True):
        raise CommandFailed(refusal)


def confirm_deletion(names: Sequence[str], one: str, several: str, *, is_certain: bool) -> None:
    """Ask as `confirm` whether to delete `one`, if there is one name, or `several`."""
    what, were = (one, "was") if len(names) == 1 else (several, "were")
    confirm(f"Delete {what}?", f"{', '.join(names)} {were} not deleted", is_certain=is_certain)


def report(error: Exception) -> None:
    """Write the error as one line to stderr, in debug mode after its traceback."""
    if is_debug():
        import traceback

        remark("".join(traceback.format_exception(error)).rstrip())
    note(f"error: {describe(error)}")


def describe(error: Exception) -> str:
    """Return the error as one line; with its type unless the message was written for users."""
    from warmlog_protocol.errors import WarmlogError

    if isinstance(error, OSError) and error.strerror:
        path = f"{error.filename}: " if error.filename is not None else ""
        return f"{path}{error.strerror}"
    message = "; ".join(line.strip() for line in str(error).splitlines() if line.strip()) or type(error).__name__
    if isinstance(error, WarmlogError):
        for python, here in _NAMES_HERE.items():
            message = message.replace(python, here)
        return message + next((remedy for text, remedy in _REMEDIES.items() if text in message), "")
    return message if isinstance(error, CommandFailed) else f"{type(error).__name__}: {message}"
