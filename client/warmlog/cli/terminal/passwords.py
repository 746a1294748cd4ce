"""Passwords on the command line: from a file, the environment or the terminal, and never from an argument, which other
users of the machine see in the list of processes."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from warmlog.cli.terminal.exits import CommandFailed
from warmlog.cli.terminal.profile import PASSWORD_FILE_KEY

USERNAME_VARIABLE = "WARMLOG_USERNAME"
PASSWORD_VARIABLE = "WARMLOG_PASSWORD"  # noqa: S105
PASSWORD_FILE_VARIABLE = "WARMLOG_PASSWORD_FILE"  # noqa: S105
MECHANISM_VARIABLE = "WARMLOG_SASL_MECHANISM"
STDIN = Path("-")


def read_password(path: Path) -> str:
    """Return the first line of a file, or of stdin for "-". CommandFailed if it is empty or not text."""
    try:
        if path == STDIN:
            text = sys.stdin.readline()
        else:
            with path.open(encoding="utf-8") as file:
                text = file.readline()
    except UnicodeDecodeError:
        raise CommandFailed(f"the password in {path} is not UTF-8") from None
    password = text.rstrip("\r\n")
    if not password:
        raise CommandFailed(f"there is no password in the first line of {'stdin' if path == STDIN else path}")
    return password


def new_password(name: str, path: Path | None) -> str:
    """Return the password that a user gets: from the file, from the terminal, which is asked twice, or from stdin."""
    if path is None and sys.stdin.isatty():
        prompt = f"New password of user {name}"
        return str(typer.prompt(prompt, hide_input=True, confirmation_prompt="The same again", err=True))
    return read_password(path or STDIN)


def login_options(profile: Mapping[str, Any], *, asks: bool = True) -> dict[str, Any]:
    """Return `profile`, options of connections, with what the environment says in place of its login.

    A password that is missing is asked for on a terminal, unless `asks` is false.
    """
    options = dict(profile)
    file = options.pop(PASSWORD_FILE_KEY, None)
    if username := os.environ.get(USERNAME_VARIABLE):
        options["username"] = username
    if mechanism := os.environ.get(MECHANISM_VARIABLE):
        options["sasl_mechanism"] = mechanism
    if named := os.environ.get(PASSWORD_FILE_VARIABLE):
        options["password"] = read_password(Path(named))
    elif password := os.environ.get(PASSWORD_VARIABLE):
        options["password"] = password
    elif file is not None:
        options["password"] = read_password(Path(file).expanduser())
    if options.get("username") and not options.get("password") and asks and sys.stdin.isatty():
        options["password"] = str(typer.prompt(f"Password of user {options['username']}", hide_input=True, err=True))
    return options
