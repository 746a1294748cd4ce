"""`warmlog config check`."""

from pathlib import Path
from typing import Annotated

import typer

from warmlog.cli.terminal.exits import FAILED, CommandFailed, ends_cleanly
from warmlog.cli.terminal.options import AsJson
from warmlog.cli.terminal.output import counted, json_line, line, note


@ends_cleanly
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Settings as TOML.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Check a file of settings without a broker, and show the mistakes. The exit code is 1 if there are any.

    The file alone is checked: neither the environment, nor whether paths and addresses can be used.
    """
    from warmlog_broker.config.checking import mistakes_of_file
    from warmlog_protocol.errors import InvalidConfig

    try:
        mistakes = mistakes_of_file(file)
    except InvalidConfig as error:
        raise CommandFailed(str(error)) from None
    if as_json:
        json_line(mistakes)
    else:
        for mistake in mistakes:
            line(f"{file}: {mistake.message}")
        note(f"{file}: {counted(len(mistakes), 'mistake')}" if mistakes else f"{file}: no mistakes")
    if mistakes:
        raise typer.Exit(FAILED)
