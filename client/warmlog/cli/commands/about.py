"""`warmlog version`, `help` and `profile`: the command line about itself."""

from typing import Annotated, Any

import typer

from warmlog.cli.terminal.exits import ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, broker_choice
from warmlog.cli.terminal.output import json_line, line, table
from warmlog.cli.terminal.profile import PASSWORD_FILE_KEY, chosen_profile

PROGRAM = "warmlog"
PROFILE_HELP = """Show the broker and the connection options that commands use, and where they come from.

    broker = "127.0.0.1:7400"
    [production]
    broker = "logs.example.org:7400"
    request_timeout_ms = 60000

is a profile with one table: warmlog --profile production, or WARMLOG_PROFILE=production, takes it.
The file is ~/.config/warmlog/config.toml; WARMLOG_CONFIG names another. An option takes precedence
over the environment, and that over the profile."""


@ends_cleanly
def version() -> None:
    """Print the version."""
    from warmlog_transport.options import client_version

    line(f"{PROGRAM} {client_version()}")


def help_command(
    context: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="The command, such as topic create.")
    ] = None,
) -> None:
    """Show the help of a command, or of the program."""
    program = context.find_root().command
    program.main([*(command or ()), "--help"], prog_name=PROGRAM)


@ends_cleanly
def profile(context: typer.Context, broker: Broker = DEFAULT_BROKER, as_json: AsJson = False) -> None:
    from dataclasses import fields

    from warmlog_transport.options import SECRETS, ConnectionOptions

    found = chosen_profile()
    choice = broker_choice(context, broker)
    rows: list[tuple[str, Any, str]] = [("broker", choice.address, choice.origin)]
    for field in fields(ConnectionOptions):
        is_in_file = field.name == "password" and PASSWORD_FILE_KEY in found.settings
        key = PASSWORD_FILE_KEY if is_in_file else field.name
        is_set = key in found.settings
        value = found.settings[key] if is_set else field.default
        if is_in_file:
            value = f"(in {value})"
        elif is_set and key in SECRETS:
            value = "(hidden)"
        rows.append((field.name, value, found.origin(key) if is_set else "default"))
    if as_json:
        settings = {name: {"value": value, "origin": origin} for name, value, origin in rows}
        json_line({"file": str(found.path), "profile": found.name, "settings": settings})
    else:
        table(("setting", "value", "from"), rows)
