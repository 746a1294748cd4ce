"""How a command ends.

======  ==================================================================================
  0     it did what was asked, or whoever read its output has closed the pipe (`| head`)
  1     it failed: one line `warmlog: error: …` on stderr
  2     it was misused: a wrong option, argument or value
130     Ctrl-C
======  ==================================================================================

With `--debug`, or WARMLOG_DEBUG=1 in the environment, a failure also shows its traceback.
"""

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from warmlog.cli.terminal.output import OutputClosed, flush_output, forget_output, note

DEBUG_VARIABLE = "WARMLOG_DEBUG"

FAILED = 1
INTERRUPTED = 130

P = ParamSpec("P")
T = TypeVar("T")


class CommandFailed(Exception):
    """A command cannot do what was asked; the message is the line that the user reads."""


def is_debug() -> bool:
    """Whether failures show their traceback."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def ends_cleanly(command: Callable[P, None]) -> Callable[P, None]:
    """`command`, ending as the table above says, whatever it raises."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            flush_output()
        except OutputClosed:
            forget_output()
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except Exception as error:
            report(error)
            raise typer.Exit(FAILED) from None

    return run


def checked(option: str, parse: Callable[[str], T], text: str) -> T:
    """What `parse` makes of `text`; its ValueError becomes a usage error that names `option`."""
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def report(error: Exception) -> None:
    """Tells the user why a command failed: one line, and before it the traceback when that was asked for."""
    if is_debug():
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    note(f"error: {describe(error)}")


def describe(error: Exception) -> str:
    """What went wrong, in one line for users."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror}"
    message = "; ".join(line.strip() for line in str(error).splitlines() if line.strip()) or type(error).__name__
    return message if _is_on_purpose(error) else f"{type(error).__name__}: {message}"


def _is_on_purpose(error: Exception) -> bool:
    """Whether the message was written for users. Anything else is a bug, and its type helps those who look for it."""
    from warmlog_protocol.errors import WarmlogError

    return isinstance(error, CommandFailed | WarmlogError)
