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

from warmlog.cli.terminal.output import OutputClosed, flush_output, forget_output, note

DEBUG_VARIABLE = "WARMLOG_DEBUG"

FAILED = 1
INTERRUPTED = 130

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
        flush_output()
    except OutputClosed:
        forget_output()
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


def confirm(question: str, refusal: str, *, is_certain: bool) -> None:
    """Ask the user, unless `is_certain` or stdin is no terminal: then the command line is the agreement.

    CommandFailed with `refusal` if the user does not agree.
    """
    if not is_certain and sys.stdin.isatty() and not click.confirm(question, err=True):
        raise CommandFailed(refusal)


def confirm_deletion(names: Sequence[str], one: str, several: str, *, is_certain: bool) -> None:
    """Ask as `confirm` whether to delete `one`, if there is one name, or `several`."""
    what, were = (one, "was") if len(names) == 1 else (several, "were")
    confirm(f"Delete {what}?", f"{', '.join(names)} {were} not deleted", is_certain=is_certain)


def report(error: Exception) -> None:
    """Write the error as one line to stderr, in debug mode after its traceback."""
    if is_debug():
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    note(f"error: {describe(error)}")


def describe(error: Exception) -> str:
    """Return the error as one line; with its type unless the message was written for users."""
    from warmlog_protocol.errors import WarmlogError

    if isinstance(error, OSError) and error.strerror:
        path = f"{error.filename}: " if error.filename is not None else ""
        return f"{path}{error.strerror}"
    message = "; ".join(line.strip() for line in str(error).splitlines() if line.strip()) or type(error).__name__
    return message if isinstance(error, CommandFailed | WarmlogError) else f"{type(error).__name__}: {message}"
